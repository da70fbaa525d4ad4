"""The section on how the report came about: data, splits, settings, versions."""

import json
import platform
from typing import Any

import torch

from lightning_calib import __version__
from lightning_calib.report.division import LevelCounts, conclusion, count_groups
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import format_count
from lightning_calib.report.section import Section


def provenance(inputs: Inputs) -> Section:
    """Facts that let someone else make the same report."""
    settings = dict(inputs.results.settings)
    versions = settings.pop("versions", {})
    counts = group_counts(inputs)
    data = {
        "facts": [*_facts(inputs), *((f"groups in cal / val / test: {c.level}", c.text) for c in counts)],
        "division": conclusion(counts),
        "versions": versions,
        "here": {"lightning_calib": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "settings": json.dumps(settings, indent=2, ensure_ascii=False),
        "folder": str(inputs.results.folder),
    }
    lead = "The same settings and versions on the same outputs give the same numbers."
    return Section("provenance", "How it was made", lead, template="provenance.html", data=data)


def group_counts(inputs: Inputs) -> list[LevelCounts]:
    """Groups of the parts at each level; none without the store, which knows them, or the splits."""
    results, store = inputs.results, inputs.store
    try:
        splits = [results.split(repeat) for repeat in results.repeats]
    except OSError:
        return []
    if store is None or not splits or not all(case in store for split in splits for p in split.values() for case in p):
        return []
    return [count_groups(level, store.groups_at(level), splits) for level in store.group_levels]


def _folds(dataset: dict[str, Any]) -> str:
    """How many networks took turns as the one member of an out-of-fold store."""
    return f" (out of {dataset['folds']} folds)" if "folds" in dataset else ""


def _facts(inputs: Inputs) -> list[tuple[str, str]]:
    results = inputs.results
    dataset: dict[str, Any] = results.dataset
    facts = [
        ("data set", str(dataset["name"])),
        ("classes", ", ".join(dataset["class_names"])),
        ("members of the ensemble", format_count(dataset.get("num_members")) + _folds(dataset)),
        ("held-out cases", format_count(dataset.get("num_cases"))),
        ("repeats", format_count(len(results.repeats))),
        ("pipelines", format_count(len(results.pipelines))),
    ]
    try:
        parts = results.split(results.repeats[0])
        facts.append(("cases in cal / val / test", " / ".join(format_count(len(p)) for p in parts.values())))
    except OSError:
        facts.append(("cases in cal / val / test", "no split was written"))
    return facts
