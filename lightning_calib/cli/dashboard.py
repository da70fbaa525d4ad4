"""``calibrate.py dashboard``: the suggested W&B workspace for experiments."""

import json
from typing import Any

from lightning_calib.experiment.tracking.dashboard import workspace


def dashboard(
    entity: str, project: str = "lightning_calib", name: str = "lightning_calib", dry_run: bool = False
) -> None:
    """Make a W&B workspace with panels for experiments and trainings; needs a server and the extra dashboard.

    Args:
        entity: W&B user or team.
        project: W&B project that the runs are in.
        name: heading of the workspace.
        dry_run: print the workspace as JSON, and send nothing.
    """
    try:
        import wandb_workspaces  # noqa: F401
    except ImportError as problem:
        raise ValueError("dashboards need another package: pip install 'lightning-calib[dashboard]'") from problem
    built = workspace(entity, project, name)
    if dry_run:
        print(json.dumps(described(built), indent=1))
        return
    import wandb

    try:
        built.save()
    except (wandb.Error, wandb.errors.UsageError, OSError) as problem:
        raise ValueError(f"W&B took no workspace {entity}/{project}: {problem}") from problem


def described(built: Any) -> dict[str, Any]:  # noqa: ANN401
    """What W&B would get, as plain types."""
    found: dict[str, Any] = built._to_model().model_dump(by_alias=True, exclude_none=True, mode="json")
    return found
