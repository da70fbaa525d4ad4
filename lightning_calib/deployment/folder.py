"""The folder of a deployed pipeline: ``deployment.json`` and the files that it names."""

import os
import shutil
import warnings
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from lightning_calib.calibrators import Calibrator, Pipeline, PipelineName, load_calibrator, read_header
from lightning_calib.datasets.preprocessing import Preprocessing
from lightning_calib.kit.checksums import note_checksums, refuse_changed
from lightning_calib.kit.files import FileError, read_json, sha256, write_json
from lightning_calib.kit.typed import WrongTypeError, typed
from lightning_calib.outputs.folds import SENTENCE
from lightning_calib.outputs.manifest import Manifest, Member, Representation

FORMAT_VERSION = 2
_READ = (1, 2)  # format versions; the first kept inference beside preprocessing
DEPLOYMENT, CALIBRATOR, REFERENCE, AUDIT = "deployment.json", "calibrator.safetensors", "reference.json", "audit.json"
DECISIONS = "decisions.json"
NETWORKS = "networks"  # folder of checkpoints that came along
CARD, DIAGRAM = "README.md", "reliability.png"


class DeploymentError(ValueError):
    """A folder does not hold the deployed pipeline that it is taken for, or does not fit what it is applied to."""


@dataclass(frozen=True)
class Deployment:
    """Everything about a deployed pipeline but its parameters.

    Attributes:
        pipeline: name such as ``cms_op(p)``.
        dataset: name of the data that it was fitted on.
        class_names: names of the classes.
        spatial_dims: 2 or 3.
        members: the networks; their checkpoints are paths relative to the folder, empty where outputs were imported.
        representation: what the members' scores are, ``logits`` or ``log_probs``.
        background: background class, where there is one.
        ignore_index: label that counts nowhere, where there is one.
        network: class and options of the members' architecture; None where images cannot be taken.
        preprocessing: what happens to images, sliding window included; None where they cannot be taken.
        calibrator_sha256: hash of the calibrator's file.
        fit: cases, hyperparameters and the solver's account of the fit.
        estimate: scores of the pipeline in the repeats of the protocol, on cases that it had not seen there.
        versions: of the libraries that wrote the folder.
    """

    pipeline: str
    dataset: str
    class_names: tuple[str, ...]
    spatial_dims: int
    members: tuple[Member, ...]
    representation: Representation = "logits"
    background: int | None = None
    ignore_index: int | None = None
    network: dict[str, Any] | None = None
    preprocessing: Preprocessing | None = None
    calibrator_sha256: str = ""
    fit: dict[str, Any] = field(default_factory=dict)
    estimate: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def name(self) -> PipelineName:
        """The pipeline's name, parsed."""
        return PipelineName.parse(self.pipeline, file=DEPLOYMENT)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def out_of_fold(self) -> bool:
        """Whether the cases of the fit were scored by different networks, each by one that it was not trained on."""
        return "folds" in self.fit

    def save(self, folder: Path) -> None:
        """Write ``deployment.json``, and note the hashes of all files: the folder is whole."""
        write_json(folder / DEPLOYMENT, asdict(self))
        note_checksums(folder, (DEPLOYMENT, CALIBRATOR, REFERENCE, AUDIT, DECISIONS))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read ``deployment.json``; anything else is refused with the reason."""
        path = Path(folder) / DEPLOYMENT
        if not path.is_file():
            raise DeploymentError(f"{path} is missing: no deployed pipeline there; make one with `calibrate.py deploy`")
        try:
            refuse_changed(Path(folder), "deploy again")
            facts = typed(read_json(path), dict[str, Any])
            if facts["format_version"] not in _READ:
                raise DeploymentError(
                    f"{path} has format version {facts['format_version']}, this release reads "
                    f"{' and '.join(map(str, _READ))}: "
                    "deploy again, or use the release that wrote it"
                )
            beside = {"inference": facts["inference"]} if "inference" in facts else {}
            facts = {entry.name: facts[entry.name] for entry in fields(cls)}
            if facts["preprocessing"] is not None:
                facts["preprocessing"] = Preprocessing.from_dict(facts["preprocessing"] | beside).to_dict()
            deployment: Self = typed(facts, cls)
        except FileError as problem:
            raise DeploymentError(str(problem)) from problem
        except (KeyError, TypeError, WrongTypeError) as problem:
            raise DeploymentError(f"{path} does not describe a deployed pipeline: {problem}; deploy again") from problem
        return deployment

    def read_calibrator(self, folder: Path) -> Calibrator:
        """The calibrator, if its file is the one that was deployed."""
        path = folder / CALIBRATOR
        if not path.is_file():
            raise DeploymentError(f"{path} is missing: the folder is not whole; deploy again")
        if sha256(path) != self.calibrator_sha256:
            raise DeploymentError(f"{path} is not the file that was deployed (its hash differs): deploy again")
        self._refuse_foreign(path)
        return load_calibrator(path).eval().requires_grad_(False)

    def _refuse_foreign(self, path: Path) -> None:
        """Stop where the calibrator's own header contradicts what is said about it here."""
        header = read_header(path)
        fitted = header.get("fitted") or {}
        theirs = {
            "calibrator": header["name"],
            "num_classes": header["num_classes"],
            "spatial_dims": header["spatial_dims"],
            "class_names": header.get("class_names") or list(self.class_names),
            "pipeline": fitted.get("pipeline", self.pipeline) if isinstance(fitted, dict) else None,
        }
        ours = {
            "calibrator": self.name.calibrator,
            "num_classes": self.num_classes,
            "spatial_dims": self.spatial_dims,
            "class_names": list(self.class_names),
            "pipeline": self.pipeline,
        }
        differing = [
            f"{key}: {ours[key]!r} there, {theirs[key]!r} in the file" for key in ours if ours[key] != theirs[key]
        ]
        if differing:
            raise DeploymentError(f"{path} is not of {DEPLOYMENT} beside it ({'; '.join(differing)}): deploy again")

    def read_pipeline(self, folder: Path) -> Pipeline:
        """Pooling and calibrator."""
        return Pipeline(self.name.pooling, self.read_calibrator(folder))

    def checkpoints(self, folder: Path) -> dict[str, Path]:
        """Checkpoint file of each member, checked against its hash; all problems in one error."""
        paths = [Path(os.path.normpath(folder / member.checkpoint)) for member in self.members]
        problems = [
            f"member {member.name}: {path} " + ("has changed since" if path.is_file() else "is missing")
            for member, path in zip(self.members, paths, strict=True)
            if not path.is_file() or sha256(path) != member.sha256
        ]
        if problems:
            listed = "\n  ".join(problems)
            raise DeploymentError(
                f"{folder} names networks that are not there as they were deployed:\n  {listed}\n"
                "bring them back, or take stored outputs instead of images"
            )
        return {member.name: path for member, path in zip(self.members, paths, strict=True)}

    def with_networks(self, folder: Path, destination: Path) -> Self:
        """Copy the networks into another folder, which is then whole by itself.

        Args:
            folder: the folder that paths of checkpoints are relative to.
            destination: where ``networks/`` goes.

        Returns:
            The deployment that names the copies.
        """
        if self.network is None:
            raise DeploymentError(
                f"{folder} names no networks: deploy again where they are, or leave out --bundle and --networks"
            )
        (destination / NETWORKS).mkdir()
        members = [replace(m, checkpoint=f"{NETWORKS}/{n}.ckpt") for n, m in enumerate(self.members)]
        for member, path in zip(members, self.checkpoints(folder).values(), strict=True):
            shutil.copyfile(path, destination / member.checkpoint)
        return replace(self, members=tuple(members))

    def refuse_others(self, manifest: Manifest, where: Path) -> None:
        """Stop where a store's outputs are not of the kind that the pipeline was fitted on.

        What was fitted out of fold is taken for any number of networks, with a warning for more than one.
        """
        networks = manifest.num_members if self.out_of_fold else len(self.members)
        ours = (self.class_names, self.spatial_dims, self.representation, networks)
        theirs = (manifest.class_names, manifest.spatial_dims, manifest.representation, manifest.num_members)
        names = ("class_names", "spatial_dims", "representation", "num_members")
        differing = [
            f"{name}: {there} there, {here} deployed"
            for name, here, there in zip(names, ours, theirs, strict=True)
            if here != there
        ]
        if differing:
            raise DeploymentError(f"{where} does not fit the deployed pipeline ({'; '.join(differing)})")
        if self.out_of_fold and manifest.num_members > 1:
            warnings.warn(f"{where} has {manifest.num_members} members. {SENTENCE}", stacklevel=2)
