"""From a finished calibration run to the folder of a deployed pipeline."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lightning_calib.calibrators import Pipeline, PipelineName, save_calibrator
from lightning_calib.deployment.card import write_card
from lightning_calib.deployment.ensemble import CalibratedEnsemble
from lightning_calib.deployment.folder import AUDIT, CALIBRATOR, DEPLOYMENT, REFERENCE, Deployment, DeploymentError
from lightning_calib.deployment.networks import member_references, training_config, training_facts
from lightning_calib.deployment.refit import Cases, fitting_cases, refit
from lightning_calib.deployment.statistics import case_statistics, save_statistics
from lightning_calib.experiment.results import Results
from lightning_calib.kit.files import plain, sha256, write_text
from lightning_calib.outputs.manifest import MANIFEST
from lightning_calib.outputs.store import OutputStore
from lightning_calib.studies.audit import audit

_PACKAGES = ("lightning-calib", "torch")

# Cases, evenly spread, on which the promises of the final calibrator are measured.
AUDIT_CASES = 32


def deploy(
    results: Results,
    store: OutputStore,
    folder: Path,
    pipeline: str,
    cases: Cases = "all",
    repeat: int = 0,
    networks: bool = True,
) -> Deployment:
    """Fit a pipeline for the last time and write its folder; ``deployment.json`` comes last.

    Args:
        results: the run that the pipeline was chosen in.
        store: the outputs of that run.
        folder: where to write.
        pipeline: name such as ``cms_op(p)``.
        cases: fit on ``all`` pool cases or on ``cal_val`` of one repeat.
        repeat: which repeat, for ``cal_val``.
        networks: also name the networks and their preprocessing, so that images can be taken.
    """
    name = PipelineName.parse(pipeline)
    refuse_foreign(results, store, str(name))
    config = training_config(store.manifest, store.path.resolve().parent) if networks else None
    taken = training_facts(config) if config is not None else {}
    calibrator, fit = refit(results, store, name, cases, repeat)
    folder.mkdir(parents=True, exist_ok=True)
    for outdated in (DEPLOYMENT, AUDIT):  # what is half written must not pass for what was there before
        (folder / outdated).unlink(missing_ok=True)
    described = {"pipeline": str(name), "hyperparameters": fit["hyperparameters"]}
    save_calibrator(folder / CALIBRATOR, calibrator, list(store.manifest.class_names), plain(described))
    attach_audit(folder, store, name)
    ensemble = CalibratedEnsemble(Pipeline(name.pooling, calibrator.eval().requires_grad_(False)))
    reference = fitting_cases(results, store, cases, repeat)
    save_statistics(folder / REFERENCE, (case_statistics(store[case_id], ensemble) for case_id in reference))
    fit |= {"outputs_sha256": sha256(store.path / MANIFEST)}
    deployment = describe(results, store, folder, str(name), fit, taken)
    write_card(folder, deployment, results)
    deployment.save(folder)
    return deployment


def describe(
    results: Results, store: OutputStore, folder: Path, pipeline: str, fit: dict[str, Any], taken: dict[str, Any]
) -> Deployment:
    """What ``deployment.json`` says; ``taken`` are the facts that images need."""
    manifest = store.manifest
    return Deployment(
        pipeline=pipeline,
        dataset=manifest.dataset,
        class_names=manifest.class_names,
        spatial_dims=manifest.spatial_dims,
        members=member_references(manifest, store.path.resolve().parent, folder.resolve()),
        representation=manifest.representation,
        background=manifest.background,
        ignore_index=manifest.ignore_index,
        calibrator_sha256=sha256(folder / CALIBRATOR),
        fit=plain(fit),
        estimate=plain(results.summary["pipelines"][pipeline]["metrics"]),
        versions={package: version(package) for package in _PACKAGES},
        **taken,
    )


def refuse_foreign(results: Results, store: OutputStore, pipeline: str) -> None:
    """Stop where the pipeline has no results, or the store is not the one that they come from."""
    if pipeline not in results.summary["pipelines"]:
        known = ", ".join(results.summary["pipelines"])
        raise DeploymentError(f"{results.folder} has no scores of {pipeline}; it has {known}")
    recorded = results.settings.get("outputs_sha256")
    if recorded is not None and recorded != sha256(store.path / MANIFEST):
        raise DeploymentError(
            f"{store.path} has changed since {results.folder} was computed from it: run `calibrate.py run` again"
        )


def attach_audit(folder: Path, store: OutputStore, name: PipelineName) -> None:
    """Measure the promises of the calibrator in the folder on the store; nothing is deployed where one is broken."""
    certificate = audit(folder / CALIBRATOR, store, name.pooling, AUDIT_CASES)
    write_text(folder / AUDIT, json.dumps(certificate, indent=1) + "\n")
    if not certificate["passed"]:
        raise DeploymentError(f"{name} breaks a promise: {'; '.join(certificate['broken'])}; see {folder / AUDIT}")
