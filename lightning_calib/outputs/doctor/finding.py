"""What an examination of frozen outputs says: one finding a fault."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One fault of an output store.

    Attributes:
        name: short name of the kind of fault.
        severity: ``error`` where results would be wrong, ``warning`` where they may be.
        evidence: what was seen, with numbers.
        cause: how that usually comes about.
        remedy: what to do.
        cases: ids of the cases that show it; empty where it is a matter of the whole store.
    """

    name: str
    severity: Severity
    evidence: str
    cause: str
    remedy: str
    cases: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """The finding as JSON holds it."""
        return asdict(self) | {"cases": list(self.cases)}

    def __str__(self) -> str:
        """Four lines for a terminal."""
        lines = [
            f"{self.severity}: {self.name}: {self.evidence}",
            f"likely cause: {self.cause}",
            f"remedy: {self.remedy}",
        ]
        if self.cases:
            more = f" and {len(self.cases) - 5} more" if len(self.cases) > 5 else ""
            lines.insert(1, f"cases: {', '.join(self.cases[:5])}{more}")
        return "\n  ".join(lines)


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether any finding is an error.

    Example:
        >>> has_errors([Finding("void_class", "warning", "...", "...", "...")])
        False
    """
    return any(finding.severity == "error" for finding in findings)
