"""The model card of a deployed pipeline: what it is, what it was fitted on, how well it did, how to use it."""

from pathlib import Path
from typing import Any

import yaml

from lightning_calib.calibrators import Pipeline
from lightning_calib.deployment.folder import AUDIT, CARD, DIAGRAM, Deployment
from lightning_calib.experiment.advice import describe_groups, selected_advice
from lightning_calib.experiment.results import Results
from lightning_calib.kit.files import atomic_path, write_text
from lightning_calib.kit.program import named
from lightning_calib.kit.tables import Table, markdown_escape
from lightning_calib.metrics.score import main_scores
from lightning_calib.outputs.folds import SENTENCE
from lightning_calib.report.figures import reliability_figure
from lightning_calib.report.sections.curves import BINS, pooled_curve

_KEEPS = {
    "order": "The order of all classes is kept at every voxel: the segmentation map is the uncalibrated one.",
    "argmax": "The predicted class is kept at every voxel: the segmentation map is the uncalibrated one.",
    None: "The predicted class may change: the segmentation map is the argmax of the calibrated probabilities.",
}
_WHAT, _HOW = "What it is", "How to use it"


def write_card(folder: Path, deployment: Deployment, results: Results) -> None:
    """Write ``README.md`` and ``reliability.png``."""
    names = compared(results, deployment)
    curves = [pooled_curve(name, [results.bin_table(r, name, BINS) for r in results.repeats]) for name in names]
    with atomic_path(folder / DIAGRAM) as aside:
        reliability_figure(curves).savefig(aside, format="png", dpi=150)
    write_text(folder / CARD, named(card(deployment, results, deployment.read_pipeline(folder))))


def compared(results: Results, deployment: Deployment) -> list[str]:
    """The same pooling without a calibrator, where the run has it, and the deployed pipeline."""
    names = dict.fromkeys((f"identity({deployment.name.pooling})", deployment.pipeline))
    return [name for name in names if name in results.summary["pipelines"]]


def card(deployment: Deployment, results: Results, pipeline: Pipeline) -> str:
    """The card as Markdown; what is kept is said by the fitted pipeline, since the name of a stack does not tell."""
    sections = [
        front_matter(deployment, results),
        f"# {deployment.pipeline} on {markdown_escape(deployment.dataset)}",
        _KEEPS[pipeline.preserves]
        + (" Shifts of the logits change nothing." if pipeline.translation_invariant else ""),
        "## Expected performance",
        *([f"**{SENTENCE}**"] if deployment.out_of_fold else []),
        *(_selected(deployment, results) or (_performance(results), score_table(deployment, results))),
        f"![Reliability diagram]({DIAGRAM})",
        f"## {_WHAT}",
        _facts(deployment),
        f"## {_HOW}",
        _usage(deployment, "this/folder"),
        "## Limits",
        "The figures hold for images like those it was fitted on. `calibrate.py monitor` compares new outputs with "
        "the reference statistics in this folder, without labels, and says when they have drifted away; "
        "`calibrate.py apply --guard` trusts the calibrator less on cases that lie outside them.",
    ]
    return "\n\n".join(sections) + "\n"


def front_matter(deployment: Deployment, results: Results) -> str:
    """The head of the card that the Hugging Face hub reads: what the model is for, and its scores as an index."""
    scores = results.summary["pipelines"].get(deployment.pipeline, {}).get("metrics", {})
    metrics = [
        {"type": score.key, "name": score.label, "value": float(scores[score.key]["mean"])}
        for score in main_scores()
        if (scores.get(score.key) or {}).get("mean") is not None
    ]
    facts: dict[str, Any] = {
        "library_name": "lightning_calib",
        "pipeline_tag": "image-segmentation",
        "tags": ["calibration", "uncertainty", "ensemble", "segmentation"],
    }
    if metrics:
        task = {"type": "image-segmentation", "name": "calibrated segmentation"}
        result = {"task": task, "dataset": {"type": "custom", "name": deployment.dataset}, "metrics": metrics}
        facts["model-index"] = [{"name": f"{deployment.pipeline} on {deployment.dataset}", "results": [result]}]
    return f"---\n{yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)}---"


def shared_card(card: str, deployment: Deployment, place: str) -> str:
    """A card that says how the model is loaded from another place, and names no paths of this machine."""
    for heading, text in ((_WHAT, _facts(deployment)), (_HOW, _usage(deployment, place))):
        before, _, rest = card.partition(f"## {heading}\n\n")
        card = f"{before}## {heading}\n\n{text}\n\n## {rest.partition(chr(10) + '## ')[2]}"
    return card


def _selected(deployment: Deployment, results: Results) -> tuple[str, ...]:
    """What is known of a pipeline that was selected by groups; nothing where it was chosen otherwise."""
    if "selection" not in deployment.fit:
        return ()
    advice = selected_advice(results.summary, deployment.fit["selection"]["preserve"])
    assert advice is not None
    about = (
        "Selected by groups. The figures judge the procedure, not only its result: in each repeat the selection was "
        "made anew on some groups and judged on test cases of others."
    )
    told = "\n".join(f"- {line}" for line in describe_groups(advice).splitlines())
    if not advice.scores:
        return about, told
    rows = [
        [score.label, *(_cell(vars(advice.scores[score.key][part])) for part in ("before", "after"))]
        for score in main_scores()
        if score.key in advice.scores
    ]
    return about, told, Table.of("scores", "", ("score", "`identity(p)`", "selected by groups"), rows).grid()


def _performance(results: Results) -> str:
    repeats = len(results.repeats)
    return (
        f"Measured in {repeats} repeat{'s' if repeats != 1 else ''} of the protocol: fitted on one part of the cases, "
        "selected on a second, judged on a third. Mean with 95 % interval; ACE with its range over the repeats. The "
        "deployed parameters were fitted after that, as stated below."
    )


def score_table(deployment: Deployment, results: Results) -> str:
    """Scores of the deployed pipeline beside the uncalibrated ones."""
    names = compared(results, deployment)
    found = [results.summary["pipelines"][name]["metrics"] for name in names]
    rows = [[score.label, *(_cell(each.get(score.key)) for each in found)] for score in main_scores()]
    return Table.of("scores", "", ("score", *(f"`{name}`" for name in names)), rows).grid()


def _cell(score: dict[str, Any] | None) -> str:
    if score is None or score.get("mean") is None:
        return "not available"
    low, high = (score.get(key, score.get(other)) for key, other in (("low", "min"), ("high", "max")))
    interval = f" [{low:.4f}, {high:.4f}]" if low is not None and high is not None else ""
    return f"{score['mean']:.4f}{interval}"


def _facts(deployment: Deployment) -> str:
    fit = deployment.fit
    where = "all pool cases" if fit["cases"] == "all" else f"cal and val of repeat {fit['repeat']}"
    values = ", ".join(f"{key} = {value:g}" for key, value in fit["hyperparameters"].items()) or "none"
    folds = f", out of {fit['folds']} folds" if deployment.out_of_fold else ""
    members = [
        f"{markdown_escape(m.name)} (`{m.checkpoint or 'outputs only'}`, sha256 `{m.sha256[:12]}`)"
        for m in deployment.members
    ]
    rows = [
        f"- classes: {', '.join(map(markdown_escape, deployment.class_names))}",
        f"- members: {', '.join(members)}",
        f"- fitted on: {fit['num_cases']} cases ({where}{folds}); hyperparameters: {values}",
        f"- images: {'taken' if deployment.network else 'not taken, only stored member outputs'}",
        f"- written by: {', '.join(f'{name} {number}' for name, number in deployment.versions.items())}",
    ]
    if "nll" in fit:
        rows.insert(3, f"- NLL of these cases: {fit['nll']:.4f}, {fit['identity_nll']:.4f} without calibration")
    rows += [f"- note: {fit['note']}"] if fit.get("note") else []
    rows += [f"- warning of the fit: {warning}" for warning in fit["certificate"].get("warnings", [])]
    rows += [f"- promises measured on outputs: `{AUDIT}`"]
    return "\n".join(rows)


def _usage(deployment: Deployment, place: str) -> str:
    call = "ensemble.predict(image)  # a file, a PIL image or an array; normalised as in deployment.json"
    if deployment.network is None:
        call = "ensemble.calibrate(member_logits)  # (B, members, classes, *S)"
    return "\n".join(
        [
            "```python",
            "import lightning_calib as lc",
            "",
            f'ensemble = lc.load_model("{place}")',
            f"log_probs, mask, confidence = {call}",
            "```",
        ]
    )
