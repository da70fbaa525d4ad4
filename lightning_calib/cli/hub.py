"""``calibrate.py push`` and ``pull``: deployed folders on the Hugging Face hub."""

from pathlib import Path

from lightning_calib.deployment import hub


def push(deployed: Path, repo: str, private: bool = True, networks: bool = False) -> None:
    """Upload a deployed folder to the Hugging Face hub, with its model card.

    Args:
        deployed: folder that calibrate.py deploy wrote.
        repo: where to, as owner/name; made where there is none.
        private: whether a new repository is private.
        networks: also upload the networks' checkpoints, so that images can be taken.
    """
    print(hub.push(deployed, repo, private, networks))


def pull(repo: str, destination: Path, revision: str | None = None) -> None:
    """Download a deployed folder from the Hugging Face hub; nothing of it runs code.

    Args:
        repo: where from, as owner/name.
        destination: folder to write.
        revision: branch, tag or commit; the newest by default.
    """
    print(hub.pull(repo, destination, revision))
