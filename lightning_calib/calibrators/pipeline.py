"""Pipelines: a pooling and a calibrator under one name such as ``cms_op(p)``."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from lightning_calib.calibrators.base import Calibrator, features_of, seen_by
from lightning_calib.calibrators.registry import CALIBRATORS, build, named_in, registered_name
from lightning_calib.functional.cones import Cone
from lightning_calib.functional.pooling import POOLINGS, Pooling, pool


@dataclass(frozen=True, order=True)
class PipelineName:
    """A pipeline's name, with what follows from it alone.

    Args:
        calibrator: key of ``CALIBRATORS``, or the dotted path of a class.
        pooling: ``"z"``, ``"p"`` or ``"p0"``.

    Example:
        >>> name = PipelineName.parse("ms(p)")
        >>> str(name), name.slug, name.translation_invariant, PipelineName.parse("ms(z)").translation_invariant
        ('ms(p)', 'ms-p', True, False)
    """

    calibrator: str
    pooling: Pooling

    def __post_init__(self) -> None:
        """Refuse unknown parts."""
        named_in("a pipeline's name", self.calibrator)
        if self.pooling not in POOLINGS:
            raise ValueError(f"unknown pooling {self.pooling!r}; choose one of {', '.join(POOLINGS)}")

    @classmethod
    def parse(cls, text: str, file: str | Path = "a file", imports: bool = False) -> Self:
        """Read ``calibrator(pooling)``.

        Args:
            text: the name.
            file: where it comes from, for messages.
            imports: import the class of a dotted path: only where a user has named it, since that runs its code.
        """
        match = re.fullmatch(r"\s*([\w.]+)\s*\(\s*(\w+)\s*\)\s*", text)
        if match is None:
            raise ValueError(
                f"{text!r} is not a pipeline; write calibrator(pooling), such as cms_op(p), with a calibrator of "
                f"{', '.join(CALIBRATORS)} and a pooling of {', '.join(POOLINGS)}"
            )
        calibrator, pooling = match.groups()
        if imports:
            CALIBRATORS[calibrator]
        named_in(file, calibrator)
        return cls(calibrator, pooling)  # type: ignore[arg-type]  # __post_init__ checks it

    def __str__(self) -> str:
        """The form that :meth:`parse` reads."""
        return f"{self.calibrator}({self.pooling})"

    @property
    def slug(self) -> str:
        """The name of a folder for it."""
        return f"{self.calibrator}-{self.pooling}"

    @property
    def cls(self) -> type[Calibrator]:
        """The calibrator's class."""
        return CALIBRATORS[self.calibrator]

    @property
    def translation_invariant(self) -> bool:
        """Whether shifts of a member's logits change nothing: by the calibrator, or because ``p`` forgets them."""
        return self.pooling == "p" or self.cls.translation_invariant

    @property
    def preserves(self) -> Cone | None:
        """What is kept of the pooled logits' ranking."""
        return self.cls.preserves


class Pipeline(nn.Module):
    """Member logits to calibrated log-probabilities.

    Args:
        pooling: how the members become one map.
        calibrator: what calibrates the pooled map.

    Example:
        >>> import torch
        >>> pipeline = Pipeline.parse("cms_op(p)", num_classes=3)
        >>> pipeline(torch.randn(1, 5, 3, 8, 8)).shape
        torch.Size([1, 3, 8, 8])
    """

    def __init__(self, pooling: Pooling, calibrator: Calibrator) -> None:
        super().__init__()
        self.pipeline_name = PipelineName(registered_name(type(calibrator)), pooling)
        self.calibrator = calibrator

    @classmethod
    def parse(cls, name: str, num_classes: int, spatial_dims: int = 2, **options: Any) -> Self:
        """Pipeline at the identity from a name such as ``cms_op(p)``."""
        parsed = PipelineName.parse(name, imports=True)
        return cls(parsed.pooling, build(parsed.calibrator, num_classes, spatial_dims, **options))

    @property
    def pooling(self) -> Pooling:
        """How members are pooled."""
        return self.pipeline_name.pooling

    @property
    def translation_invariant(self) -> bool:
        """Whether shifts of a member's logits change nothing."""
        return self.pooling == "p" or self.calibrator.translation_invariant

    @property
    def preserves(self) -> Cone | None:
        """What is kept of the pooled logits' ranking."""
        return self.calibrator.preserves

    def forward(self, logits: Tensor) -> Tensor:
        """Log-probabilities ``(B, C, *S)`` of member logits ``(B, M, C, *S)``."""
        pooled = pool(logits, self.pooling)
        features = features_of(self.calibrator, pooled, logits)
        log_probs: Tensor = self.calibrator(pooled, *seen_by(self.calibrator, features))
        return log_probs

    def __str__(self) -> str:
        """The pipeline's name."""
        return str(self.pipeline_name)


# Blocks (a) to (f) of the paper's main table, in its order.
PAPER_BLOCKS: dict[str, tuple[str, ...]] = {
    "a": ("identity(p0)", "identity(p)", "identity(z)"),
    "b": ("ms(z)", "dc(z)", "ms_c(z)"),
    "c": ("lts(z)", "lts_ti(z)"),
    "d": ("cdc(p)", "cms_ap(p)", "cms_op(p)", "cdc(z)", "cms_ap(z)", "cms_op(z)"),
    "e": ("ts(p)", "ts(z)", "ets(p)", "ets(z)"),
    "f": ("dc(p)",),
}
PAPER_PIPELINES: tuple[str, ...] = tuple(name for block in PAPER_BLOCKS.values() for name in block)


def expand_pipelines(names: str | list[str]) -> list[PipelineName]:
    """Pipelines of a list, or of a text with commas, that may hold ``paper`` and ``all``; each once, in order.

    Users name them: classes of dotted paths are imported.

    ``all`` is every known calibrator that a solver fits on ``p`` and on ``z``, those of other packages included.

    Example:
        >>> [str(name) for name in expand_pipelines("ts(z), ms(z), ts(z)")]
        ['ts(z)', 'ms(z)']
        >>> len(expand_pipelines(["paper"]))
        19
    """
    listed = [text.strip() for text in (names.split(",") if isinstance(names, str) else names)]
    groups = {"paper": PAPER_PIPELINES}
    if "all" in listed:  # looks into installed packages
        fitted = [name for name in CALIBRATORS if CALIBRATORS[name].solver != "stacking"]
        groups["all"] = ("identity(p0)", *(f"{name}({pooling})" for name in fitted for pooling in ("p", "z")))
    expanded = [name for text in listed if text for name in groups.get(text, (text,))]
    return list(dict.fromkeys(PipelineName.parse(name, imports=True) for name in expanded))
