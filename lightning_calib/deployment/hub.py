"""Deployed folders on the Hugging Face hub."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_calib.deployment.card import shared_card
from lightning_calib.deployment.folder import (
    AUDIT,
    CALIBRATOR,
    CARD,
    DECISIONS,
    DEPLOYMENT,
    DIAGRAM,
    NETWORKS,
    REFERENCE,
    Deployment,
    DeploymentError,
)
from lightning_calib.kit.checksums import CHECKSUMS
from lightning_calib.kit.files import write_text

SCHEME = "hf://"
_FILES = (CALIBRATOR, REFERENCE, AUDIT, DIAGRAM, DECISIONS)
_PLACE = re.compile(rf"{SCHEME}([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def push(folder: Path, repo: str, private: bool = True, networks: bool = False) -> str:
    """Upload a deployed folder as one commit; the repository is made where there is none.

    Args:
        folder: what ``calibrate.py deploy`` wrote.
        repo: ``owner/name``.
        private: whether a new repository is private.
        networks: also upload the checkpoints of the networks, so that images can be taken; otherwise what is uploaded
            takes scores of the members only.

    Returns:
        Where it is, as :func:`load_model` takes it, with the commit.
    """
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as aside, _told(repo):
        stage(folder, Path(aside), repo, networks)
        api = HfApi()
        api.create_repo(repo, private=private, exist_ok=True)
        message = f"{Deployment.load(folder).pipeline}, by lightning_calib"
        commit = api.upload_folder(
            repo_id=repo, folder_path=aside, commit_message=message, delete_patterns=[f"{NETWORKS}/*"]
        )
    return f"{SCHEME}{repo}@{commit.oid}"


def stage(folder: Path, aside: Path, repo: str, networks: bool) -> None:
    """Copy what belongs on the hub: no paths of this machine, and networks only where they are asked for."""
    deployment = Deployment.load(folder)
    deployment.read_calibrator(folder)
    for name in (name for name in _FILES if (folder / name).is_file()):
        shutil.copyfile(folder / name, aside / name)
    members = [replace(member, checkpoint="") for member in deployment.members]
    shared = replace(deployment, members=tuple(members), network=None, preprocessing=None)
    if networks:
        shared = deployment.with_networks(folder, aside)
    card = (folder / CARD).read_text(encoding="utf-8")
    write_text(aside / CARD, shared_card(card, shared, f"{SCHEME}{repo}"))
    shared.save(aside)


def pull(repo: str, destination: Path | None = None, revision: str | None = None) -> Path:
    """Download a deployed folder.

    Only the files of a deployed folder are taken, and the calibrator's hash is checked. Nothing of it runs code.

    Args:
        repo: ``owner/name``.
        destination: where to; by default the hub's cache.
        revision: branch, tag or commit; the newest by default.

    Raises:
        DeploymentError: where the repository holds something else, or cannot be reached.
    """
    from huggingface_hub import snapshot_download

    wanted = [DEPLOYMENT, CARD, CHECKSUMS, *_FILES, f"{NETWORKS}/*.ckpt"]
    with _told(repo):
        folder = Path(snapshot_download(repo, revision=revision, local_dir=destination, allow_patterns=wanted))
    Deployment.load(folder).read_calibrator(folder)
    return folder


def local(place: str | Path) -> Path:
    """A folder as it is, or the download of ``hf://owner/name`` or ``hf://owner/name@revision``."""
    if not str(place).startswith(SCHEME):
        return Path(place)
    found = _PLACE.fullmatch(str(place))
    if found is None:
        raise DeploymentError(
            f"{place} is no place on the hub: write {SCHEME}owner/name or {SCHEME}owner/name@revision"
        )
    return pull(found[1], revision=found[2])


@contextmanager
def _told(repo: str) -> Iterator[None]:
    """Say in one line why the hub did not do what was asked."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    unreachable: Any = HfHubHTTPError.__bases__[
        0
    ]  # of the library that the hub's client speaks by, httpx or its successor
    try:
        yield
    except DeploymentError:
        raise
    except (OSError, unreachable, HFValidationError) as problem:
        reason = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
        raise DeploymentError(
            f"the hub did not give or take {repo} ({reason}): is the name right, are you logged in (`hf auth login`), "
            "is there a network?"
        ) from problem
