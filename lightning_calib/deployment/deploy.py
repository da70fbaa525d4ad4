"""From a finished calibration run to the folder of a deployed pipeline."""

import os
import warnings
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lightning_calib.calibrators import Pipeline, PipelineName, save_calibrator
from lightning_calib.datasets.preprocessing import Preprocessing
from lightning_calib.datasets.registry import current_class_paths
from lightning_calib.deployment.card import write_card
from lightning_calib.deployment.ensemble import CalibratedEnsemble
from lightning_calib.deployment.folder import AUDIT, CALIBRATOR, REFERENCE, Deployment, DeploymentError
from lightning_calib.deployment.refit import Cases, fitting_cases, refit, selected_fit
from lightning_calib.deployment.statistics import case_statistics, save_statistics
from lightning_calib.experiment.advice import Preserve
from lightning_calib.experiment.recommend import recommend
from lightning_calib.experiment.results import Results
from lightning_calib.kit.checksums import refuse_changed
from lightning_calib.kit.files import plain, read_yaml, replaced_files, sha256, write_json
from lightning_calib.kit.registry import refuse_strange
from lightning_calib.outputs.manifest import MANIFEST, Member
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.studies.audit import audit

_PACKAGES = ("lightning-calib", "torch")

# Cases, evenly spread, on which the promises of the final calibrator are measured.
AUDIT_CASES = 32


def deploy(results: Results, store: OutputStore, folder: Path, pipeline: str | None, **options: Any) -> Deployment:
    """Deploy a pipeline into a folder; what is deployed there already works until the new one is whole.

    Args:
        results: the run that the pipeline was chosen in.
        store: the outputs of that run.
        folder: the deployed folder.
        pipeline: name such as ``cms_op(p)``; None for what the run recommends.
        **options: further arguments of :func:`write_deployment`.
    """
    with replaced_files(folder) as aside:
        return write_deployment(results, store, aside, pipeline, home=folder, **options)


def write_deployment(
    results: Results,
    store: OutputStore,
    folder: Path,
    pipeline: str | None,
    cases: Cases = "all",
    repeat: int = 0,
    networks: bool = True,
    preserve: Preserve = "order",
    trust: bool = False,
    bundle: bool = False,
    home: Path | None = None,
) -> Deployment:
    """Fit a pipeline for the last time and write its folder; ``deployment.json`` and the hashes come last.

    What a run has selected by groups is taken as it was fitted then, on the same cases.

    Args:
        results: the run that the pipeline was chosen in.
        store: the outputs of that run.
        folder: where to write, an empty folder.
        pipeline: name such as ``cms_op(p)``; None for what the run recommends.
        cases: fit on ``all`` pool cases or on ``cal_val`` of one repeat.
        repeat: which repeat, for ``cal_val``.
        networks: also name the networks and their preprocessing, so that images can be taken.
        preserve: what a recommended pipeline must keep of the pooled ranking.
        trust: import data sets of other packages that a member's config names, where the store is an old one.
        bundle: also copy the networks into the folder, which is then whole by itself.
        home: where the folder will be in the end: paths of networks are relative to it; by default where it is.
    """
    refuse_foreign(results, store)
    taken = image_facts(store, trust) if networks else {}
    if pipeline is None and results.selects_by_groups:
        name, calibrator, fit = selected_fit(results, preserve, cases, repeat)
    else:
        name = PipelineName.parse(pipeline or recommend(results, preserve).pipeline, imports=pipeline is not None)
        refuse_unscored(results, str(name))
        calibrator, fit = refit(results, store, name, cases, repeat)
    described = {"pipeline": str(name), "hyperparameters": fit["hyperparameters"]}
    save_calibrator(folder / CALIBRATOR, calibrator, list(store.manifest.class_names), plain(described))
    attach_audit(folder, store, name)
    ensemble = CalibratedEnsemble(Pipeline(name.pooling, calibrator.eval().requires_grad_(False)))
    reference = fitting_cases(results, store, cases, repeat)
    seen = StoredCases(store, name.pooling)
    save_statistics(folder / REFERENCE, (case_statistics(seen, case_id, ensemble) for case_id in reference))
    fit |= {"outputs_sha256": sha256(store.path / MANIFEST)}
    fit |= {"folds": len(store.manifest.folds)} if store.manifest.out_of_fold else {}
    found = {"calibrator_sha256": sha256(folder / CALIBRATOR), **taken}
    deployment = describe(results, store, home or folder, str(name), fit, found)
    deployment = deployment.with_networks(home or folder, folder) if bundle else deployment
    write_card(folder, deployment, results)
    deployment.save(folder)
    return deployment


def describe(
    results: Results, store: OutputStore, folder: Path, pipeline: str, fit: dict[str, Any], taken: dict[str, Any]
) -> Deployment:
    """What ``deployment.json`` says; ``taken`` are the hash of the calibrator and the facts that images need."""
    manifest = store.manifest
    return Deployment(
        pipeline=pipeline,
        dataset=manifest.dataset,
        class_names=manifest.class_names,
        spatial_dims=manifest.spatial_dims,
        members=_members(store, folder),
        representation=manifest.representation,
        background=manifest.background,
        ignore_index=manifest.ignore_index,
        fit=plain(fit),
        estimate=plain(estimate(results, pipeline, fit)),
        versions={package: version(package) for package in _PACKAGES},
        **taken,
    )


def estimate(results: Results, pipeline: str, fit: dict[str, Any]) -> dict[str, Any]:
    """Scores on test cases: of the pipeline or, where it was selected by groups, of the selection."""
    if "selection" in fit:
        selected: dict[str, Any] = results.summary["selection"][fit["selection"]["preserve"]] or {"scores": {}}
        return {key: parts["after"] for key, parts in selected["scores"].items()}
    metrics: dict[str, Any] = results.summary["pipelines"][pipeline]["metrics"]
    return metrics


def image_facts(store: OutputStore, trust: bool = False) -> dict[str, Any]:
    """``network`` and ``preprocessing`` of a deployment that takes images; nothing where it cannot take any."""
    manifest = store.manifest
    config = store.path.resolve().parent / "members" / manifest.members[0].name / "config.yaml"
    if not manifest.members[0].checkpoint or not config.is_file():
        return {}
    remedy = "bring it back, or remove it: what is deployed then takes no images"
    refuse_changed(config.parent, remedy)
    facts = current_class_paths(read_yaml(config, remedy))
    network = facts.get("model", {}).get("network")
    if network is None:
        raise DeploymentError(f"{config} names no network; {remedy}")
    preprocessing = manifest.preprocessing
    if manifest.format_version == 1:
        warnings.warn(
            f"{store.path} is of an earlier version and does not say how images are read: that is taken from {config}, "
            "which needs the training data; `train.py predict` again writes it down",
            stacklevel=2,
        )
        refuse_strange(str(facts["data"]["class_path"]), config, trust)
        preprocessing = training_preprocessing(facts)
    return {} if preprocessing is None else {"network": network, "preprocessing": preprocessing}


def training_preprocessing(config: dict[str, Any]) -> Preprocessing:
    """What the DataModule of a training's config does to images."""
    from jsonargparse import ArgumentParser

    from lightning_calib.datasets.base import SegmentationDataModule

    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(SegmentationDataModule, "data")
    options = {**config["data"], "init_args": {**config["data"].get("init_args", {}), "check": False}}
    try:
        data: SegmentationDataModule = parser.instantiate_classes(parser.parse_object({"data": options})).data
    except (ValueError, OSError) as problem:
        raise DeploymentError(
            f"the preprocessing cannot be read off the training data: {problem}\n"
            "bring the data back, or deploy for stored outputs alone with --networks false"
        ) from problem
    return replace(data.preprocessing, inference=config["model"].get("inference"))


def _members(store: OutputStore, folder: Path) -> tuple[Member, ...]:
    """The members with checkpoints relative to the deployed folder."""
    run, start = store.path.resolve().parent, folder.resolve()
    return tuple(
        replace(member, checkpoint=os.path.relpath(run / member.checkpoint, start) if member.checkpoint else "")
        for member in store.manifest.members
    )


def refuse_unscored(results: Results, pipeline: str) -> None:
    """Stop where the pipeline has no results."""
    if pipeline not in results.summary["pipelines"]:
        known = ", ".join(results.summary["pipelines"])
        raise DeploymentError(f"{results.folder} has no scores of {pipeline}; it has {known}")


def refuse_foreign(results: Results, store: OutputStore) -> None:
    """Stop where the store is not the one that the results come from."""
    recorded = results.settings.get("outputs_sha256")
    if recorded is not None and recorded != sha256(store.path / MANIFEST):
        raise DeploymentError(
            f"{store.path} has changed since {results.folder} was computed from it: run `calibrate.py run` again"
        )


def attach_audit(folder: Path, store: OutputStore, name: PipelineName) -> None:
    """Measure the promises of the calibrator in the folder on the store; nothing is deployed where one is broken."""
    certificate = audit(folder / CALIBRATOR, store, name.pooling, AUDIT_CASES)
    write_json(folder / AUDIT, certificate)
    if not certificate["passed"]:
        raise DeploymentError(f"{name} breaks a promise: {'; '.join(certificate['broken'])}")
