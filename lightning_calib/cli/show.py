"""``calibrate.py show``: what came out of a run."""

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning_calib.cli.recommend import advised, told
from lightning_calib.experiment.advice import TOLD, Preserve
from lightning_calib.kit.files import plain, read_json
from lightning_calib.kit.tables import Cell, Table


def show(
    calibration: Path,
    preserve: Preserve = "order",
    translation_invariant: bool = True,
    candidates: str | list[str] | None = None,
    reference: str | None = None,
    metrics: list[str] = ["nll", "dice", "ece", "ba_ece"],  # noqa: B006  # never changed
    json: bool = False,
    trust: bool = False,
) -> int:
    """Show the scores of a run, the pipeline to deploy and, on request, whether one pipeline beats another.

    Comparisons are made where --candidates or --reference is given, case by case, with intervals and verdicts. Holm's
    correction covers all comparisons that are asked for together: ask for those you care about.

    Args:
        calibration: folder that calibrate.py run wrote, such as runs/camvid/calibration.
        preserve: what must stay of the pooled ranking: order, argmax (the segmentation map) or none.
        translation_invariant: recommend only pipelines to which shifts of the logits do not matter.
        candidates: pipelines to compare, as a list or with commas in between.
        reference: what each is compared with; by default the uncalibrated ensemble, pooled as the candidate is.
        metrics: what is compared.
        json: print everything as JSON.
        trust: import classes of other packages that the run's folder names.
    """
    advice = advised(calibration, preserve, translation_invariant, trust)
    compared = _compared(calibration, candidates, reference, metrics, trust)
    pipelines: dict[str, Any] = read_json(calibration / "summary.json")["pipelines"]
    if json:
        entries = [asdict(found) for found in compared]
        facts = {"pipelines": pipelines, "recommendation": asdict(advice[0]), "comparisons": entries}
        print(json_format.dumps(plain(facts, digits=10)))
        return 0
    print(scores(pipelines, advice[0].pipeline).to_text(), told(advice), sep="\n")
    if compared:
        from lightning_calib.report.sections.comparisons import comparison_table

        print(f"\n{comparison_table(plain([asdict(found) for found in compared], digits=10)).to_markdown()}", end="")
    print(f"results: {calibration}")
    return 0


def _compared(
    calibration: Path, candidates: str | list[str] | None, reference: str | None, metrics: list[str], trust: bool
) -> list[Any]:
    """The comparisons that are asked for; they take torch, and seconds."""
    if candidates is None and reference is None:
        return []
    from lightning_calib.cli.compare import compared

    return compared(calibration, candidates, reference, metrics, trust)


def scores(pipelines: dict[str, Any], recommended: str) -> Table:
    """The headline scores of a run's summary, a row a pipeline."""
    rows = []
    for name, entry in pipelines.items():
        found = [entry["metrics"].get(key, {}).get("mean") for key, _, _ in TOLD]
        cells = [
            Cell() if value is None else Cell(f"{scale * value:.4f}" if scale == 1 else f"{scale * value:.2f}")
            for value, (_, _, scale) in zip(found, TOLD, strict=True)
        ]
        rows.append([Cell(name, mark=" <" if name == recommended else ""), *cells])
    heads = [f"{label} %" if scale == 100 else label for _, label, scale in TOLD]
    mark = "<: recommended; " if recommended in pipelines else ""
    return Table.of("scores", f"{mark}means over test cases, then over repeats", ("pipeline", *heads), rows)
