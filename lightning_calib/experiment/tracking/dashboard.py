"""The W&B workspace that shows experiments best, as an object of wandb-workspaces."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Section, Workspace

STEP = "trainer/global_step"
SCORES = ("nll", "ece", "ace", "ba_ece", "dice")


def workspace(entity: str, project: str, name: str = "lightning_calib") -> "Workspace":
    """Sections for the questions in the order in which people ask them; nothing is sent.

    Args:
        entity: W&B user or team.
        project: W&B project.
        name: heading of the workspace.
    """
    from wandb_workspaces import workspaces as ws

    sections = [_answers(), _experiment(), _progress(), _training()]
    order = [ws.Ordering(ws.Summary("recommended/nll"), ascending=True)]
    runs = ws.RunsetSettings(order=order, pinned_columns=["summary:recommended/nll", "summary:uncalibrated/nll"])
    return ws.Workspace(entity=entity, project=project, name=name, sections=sections, runset_settings=runs)


def _answers() -> "Section":
    """Which experiment is best, and did calibration help at all."""
    from wandb_workspaces.reports import v2 as panels
    from wandb_workspaces.workspaces import Section

    pairs = [(f"uncalibrated/{key}", f"recommended/{key}") for key in SCORES]
    bars = [panels.BarPlot(title=after.partition("/")[2], metrics=[before, after]) for before, after in pairs]
    trade = panels.ScatterPlot(title="calibration against segmentation", x="recommended/dice", y="recommended/ba_ece")
    return Section(name="Before and after calibration", panels=[*bars, trade], is_open=True, pinned=True)


def _experiment() -> "Section":
    """Tables and pictures of single experiments."""
    from wandb_workspaces.reports import v2 as panels
    from wandb_workspaces.workspaces import Section

    tables = [panels.WeavePanelSummaryTable(table_name=name) for name in ("main", "comparisons", "trials", "cases")]
    pictures = panels.MediaBrowser(
        title="figures", media_keys=["figures/reliability", "figures/bands", "figures/flips"]
    )
    return Section(name="Tables and figures", panels=[*tables, pictures], is_open=True)


def _progress() -> "Section":
    """What runs now."""
    from wandb_workspaces.reports import v2 as panels
    from wandb_workspaces.workspaces import Section

    lines = {
        "share of the jobs done": "progress/(pool|fit|evaluate|select)",
        "val NLL of each trial": "search/.*val_nll",
        "objective of each fit": "fit/.*objective",
        "gradient norm of each fit": "fit/.*gradient_norm",
    }
    plots = [panels.LinePlot(title=title, x=STEP, metric_regex=keys) for title, keys in lines.items()]
    return Section(name="Progress, searches and fits", panels=plots)


def _training() -> "Section":
    """Members of ensembles."""
    from wandb_workspaces.reports import v2 as panels
    from wandb_workspaces.workspaces import Section

    keys = ("train/loss", "val/loss", "val/dice", "val/ece")
    plots = [panels.LinePlot(title=key, x=STEP, y=[key]) for key in keys]
    return Section(
        "Training of the members", [*plots, panels.MediaBrowser(title="samples", media_keys=["val/overlays"])]
    )
