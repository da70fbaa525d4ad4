"""The paper's claims, each put to the test on the cases of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.comparisons import Comparison, Verdict
from lightning_calib.experiment.summary import paired_comparisons
from lightning_calib.kit.tables import Table
from lightning_calib.metrics.score import SCORES
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import choose_decimals, format_interval, format_number, format_score
from lightning_calib.report.section import Section
from lightning_calib.studies.base import Study, StudyError

CALIBRATION = ("nll", "ece", "ba_ece")

_HEAD = ("comparison", "metric", "difference", "95 % interval", "p (Holm)", "verdict", "expected", "outcome")

Expected = Literal["better", "no worse", "worse"]
Outcome = Literal["seen", "not seen", "opposite"]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper as comparisons of pipelines.

    Attributes:
        key: short name.
        text: what is claimed.
        expected: how candidates should compare with their references, in each of the metrics.
        pairs: references and candidates.
        metrics: what is compared.
        classes: whether it is about two classes, about more, or about any number.
    """

    key: str
    text: str
    expected: Expected
    pairs: tuple[tuple[str, str], ...]
    metrics: tuple[str, ...]
    classes: Literal["two", "more", "any"] = "any"


_PRESERVING = tuple((f"cdc({q})", f"cms_{kind}({q})") for q in ("p", "z") for kind in ("ap", "op"))

CLAIMS = (
    Claim(
        "ensembles segment better",
        "Ensembles segment better than a single network",
        "better",
        (("identity(p0)", "identity(p)"), ("identity(p0)", "identity(z)")),
        ("dice",),
    ),
    Claim(
        "ensembles are not calibrated",
        "Ensembles do not fix calibration: a temperature after pooling still improves it",
        "better",
        (("identity(p)", "ts(p)"), ("identity(z)", "ts(z)")),
        CALIBRATION,
    ),
    Claim(
        "invariance, affine",
        "Translation-invariant counterparts of matrix scaling improve on it or match it",
        "no worse",
        (("ms(z)", "dc(z)"), ("ms(z)", "ms_c(z)")),
        CALIBRATION,
    ),
    Claim(
        "invariance, local",
        "Translation-invariant local temperature scaling improves on the original or matches it",
        "no worse",
        (("lts(z)", "lts_ti(z)"),),
        CALIBRATION,
    ),
    Claim(
        "affine calibration costs Dice",
        "Unconstrained affine calibration changes labels and loses Dice",
        "worse",
        (*(("identity(z)", f"{name}(z)") for name in ("ms", "dc", "ms_c", "cdc")), ("identity(p)", "cdc(p)")),
        ("dice",),
    ),
    Claim(
        "preservation keeps Dice",
        "Decision-preserving counterparts of class-conditional calibration have the better Dice",
        "better",
        _PRESERVING,
        ("dice",),
    ),
    Claim(
        "preservation is free",
        "Preserving decisions has no clear cost in calibration with more than two classes",
        "no worse",
        _PRESERVING,
        CALIBRATION,
        "more",
    ),
    Claim(
        "preservation costs in binary tasks",
        "With two classes, preserving decisions costs calibration",
        "worse",
        _PRESERVING,
        CALIBRATION,
        "two",
    ),
)


@dataclass(frozen=True)
class ClaimRow:
    """One comparison behind a claim (``claims.csv``): candidate minus reference with the interval by case."""

    claim: str
    reference: str
    candidate: str
    metric: str
    expected: str
    difference: float
    low: float
    high: float
    p_holm: float
    verdict: str
    outcome: str


def outcome_of(expected: Expected, verdict: Verdict) -> Outcome:
    """What a verdict says about an expectation.

    "No worse" is contradicted by "worse" alone; a difference that noise hides is what it expects.

    Example:
        >>> outcome_of("no worse", "within noise"), outcome_of("better", "within noise"), outcome_of("worse", "better")
        ('seen', 'not seen', 'opposite')
    """
    if expected == "no worse":
        return "opposite" if verdict == "worse" else "seen"
    if verdict == "within noise":
        return "not seen"
    return "seen" if verdict == expected else "opposite"


class Claims(Study):
    """What the paper reports, beside what the run shows."""

    name, title = "claims", "The paper's claims"

    def run(self) -> dict[str, Any]:
        """Put the paper's claims to the test: seen, not seen, or opposite on these cases.

        Holm's correction covers all comparisons together.

        Returns:
            ``study.json``: by claim how often it was seen, and what wins in each metric.
        """
        binary = int(self.results.dataset["num_classes"]) == 2
        claims = {c.key: c for c in CLAIMS if c.classes == "any" or (c.classes == "two") == binary}
        keys = [(c.key, *pair, metric) for c in claims.values() for pair in c.pairs for metric in c.metrics]
        rows = [_row(claims[found.family], found) for found in paired_comparisons(self.results, keys)]
        if not rows:
            raise StudyError(
                f"{self.calibration} has none of the pairs behind the paper's claims; run `--pipelines paper`"
            )
        self.save("claims.csv", rows, ClaimRow)
        told = [_judged(claim, [row for row in rows if row.claim == claim.key]) for claim in claims.values()]
        return self.write({"claims": [entry for entry in told if entry["tested"]], "best": self._best()})

    def _best(self) -> dict[str, str]:
        """The calibrated pipeline with the best mean in each metric."""
        entries = self.results.summary["pipelines"]
        names = [name for name in entries if PipelineName.parse(name).calibrator != "identity"]
        metrics = (*CALIBRATION, "ace")
        return {m: min(names, key=lambda name: entries[name]["metrics"][m]["mean"]) for m in metrics if names}

    def tell(self, facts: dict[str, Any]) -> list[str]:
        """Each claim with its outcome."""
        return [
            f"{entry['outcome']:<9} {entry['text']} ({entry['counts']['seen']} of {entry['tested']} comparisons)"
            for entry in facts["claims"]
        ]

    def section(self, inputs: Inputs, facts: dict[str, Any]) -> Section:
        """Each claim with the number of comparisons that show it, then all of them."""
        outcomes = get_args(Outcome)
        body = [[e["text"], e["outcome"], *(str(e["counts"][o]) for o in outcomes)] for e in facts["claims"]]
        best = ", ".join(f"{SCORES[metric].label} {name}" for metric, name in facts["best"].items())
        caption = (
            "Number of comparisons that show a claim, that noise leaves open, and that show the opposite. "
            f"Lowest means among calibrated pipelines: {best}."
        )
        pairs = (
            "Candidate minus reference, case by case, with intervals from cases drawn as wholes; p-values after Holm's "
            'correction over the whole table. "No worse" is contradicted by "worse" alone.'
        )
        rows = [_cells(row) for row in self.read("claims.csv", ClaimRow)]
        tables = (
            Table.of("claims", caption, ("claim", "outcome", *outcomes), body),
            Table.of("claims-comparisons", pairs, _HEAD, rows),
        )
        lead = "What the paper reports on its three data sets, put to the test on the cases of this run."
        return Section(self.key, self.title, lead, tables=tables)


def _row(claim: Claim, found: Comparison) -> ClaimRow:
    return ClaimRow(
        claim.key,
        found.reference,
        found.candidate,
        found.metric,
        claim.expected,
        found.difference.mean,
        found.difference.low,
        found.difference.high,
        found.p_holm,
        found.verdict,
        outcome_of(claim.expected, found.verdict),
    )


def _judged(claim: Claim, rows: Sequence[ClaimRow]) -> dict[str, Any]:
    """How often a claim was seen; as a whole what most comparisons say, mixed where some contradict others."""
    counts = {outcome: sum(row.outcome == outcome for row in rows) for outcome in get_args(Outcome)}
    whole = "mixed" if counts["seen"] and counts["opposite"] else max(counts, key=lambda outcome: counts[outcome])
    clear = sum(row.verdict == "better" for row in rows)
    facts = {"key": claim.key, "text": claim.text, "expected": claim.expected, "tested": len(rows)}
    return facts | {"outcome": whole, "counts": counts, "clearly_better": clear}


def _cells(row: ClaimRow) -> list[str]:
    score = SCORES[row.metric]
    decimals = choose_decimals(score, [row.difference, row.high - row.low]) + score.percent
    value = format_score(score, row.difference, decimals, signed=True)
    interval = format_interval(score, row.low, row.high, decimals, signed=True)
    pair = f"{row.reference} \N{RIGHTWARDS ARROW} {row.candidate}"
    return [pair, score.label, value, interval, format_number(row.p_holm, 3), row.verdict, row.expected, row.outcome]
