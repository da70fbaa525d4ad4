"""A metric whose state is one row of sums an image, known by its case."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat
from torchmetrics.utilities.distributed import gather_all_tensors

from lightning_calib.functional.averages import Average, check_average, mean_over_images

ROWS = {"names": torch.uint8, "counts": torch.int64, "sums": torch.float64}


class Images(NamedTuple):
    """Rows of the images seen so far, each case once.

    Attributes:
        names: case ids, empty where none was given.
        counts: int64 ``(n, L)``.
        sums: float64 ``(n, M)``.
    """

    names: list[str]
    counts: Tensor
    sums: Tensor

    def labels(self) -> list[str]:
        """Case ids; unnamed images are called ``#0``, ``#1``, ..."""
        return [name or f"#{i}" for i, name in enumerate(self.names)]


class PerImageMetric(Metric):
    """Keeps int64 counts and float64 sums of every image, on the CPU, and scores them when asked.

    Memory does not depend on the number of voxels. Over processes the rows are gathered, and a case that
    several processes saw (a distributed sampler pads its last batch with repeats) counts once. Named cases are
    put in order of their names before they are averaged, so that batch split, order and number of processes do
    not change a bit of the result. Metrics with the same settings hold the same rows: in a
    ``MetricCollection`` they form one compute group and are updated once.

    Args:
        settings: everything that the rows depend on; metrics share rows only where it is equal.
        average: ``"image"`` for the mean over images, ``"pool"`` for all voxels together.
        **kwargs: options of :class:`torchmetrics.Metric`.
    """

    is_differentiable = False
    higher_is_better: bool | None = False
    full_state_update = False
    plot_lower_bound: float | None = 0.0

    names: list[Tensor]
    counts: list[Tensor]
    sums: list[Tensor]

    def __init__(self, settings: tuple[object, ...], average: Average = "image", **kwargs: Any) -> None:
        kwargs.setdefault("dist_sync_fn", gather_rows)
        super().__init__(**kwargs)
        check_average(average)
        self.average = average
        for name in ROWS:
            self.add_state(name, [], dist_reduce_fx="cat")
        # torchmetrics groups metrics whose states agree after one batch; this state makes them differ
        # where a later batch would, for instance under another ignore_index.
        described = torch.frombuffer(bytearray(repr(settings).encode()), dtype=torch.uint8)
        self.add_state("settings", described.clone(), dist_reduce_fx="max")

    @abstractmethod
    def _scores(self, counts: Tensor, sums: Tensor) -> Tensor:
        """Score of each row: ``(n, L)`` and ``(n, M)`` to float64 ``(n,)``."""

    def compute(self) -> Tensor:
        """The figure over all images of all processes; NaN, with a warning, where nothing counted."""
        images = self._images()
        if self.average == "pool" and images.names:
            images = Images([""], images.counts.sum(dim=0, keepdim=True), images.sums.sum(dim=0, keepdim=True))
        value = mean_over_images(self._image_scores(images), images.names)
        # On the metric's device, in float64 where it has that.
        return (value.float() if self.device.type == "mps" else value).to(self.device)

    def per_image(self) -> dict[str, float]:
        """Score of every case, gathered over processes; unnamed images are called ``#0``, ``#1``, ..."""
        images = self._gathered()
        return dict(zip(images.labels(), self._image_scores(images).tolist(), strict=True))

    def num_undefined(self) -> int:
        """Images that have no score (NaN) and are left out of the mean, over all processes."""
        return int(self._image_scores(self._gathered()).isnan().sum())

    def plot(self, val: Any = None, ax: Any = None) -> Any:  # noqa: ANN401
        """Plot the current or the given values, as every torchmetrics class does."""
        return self._plot(val, ax)

    def _image_scores(self, images: Images) -> Tensor:
        if not images.names:
            return torch.empty(0, dtype=torch.float64)
        return self._scores(images.counts, images.sums)

    def _append(self, case_ids: Sequence[str] | None, counts: Tensor, sums: Tensor) -> None:
        """Add rows ``(B, L)`` and ``(B, M)`` for a batch of images."""
        names = [""] * len(counts) if case_ids is None else [str(name) for name in case_ids]
        if len(names) != len(counts):
            raise ValueError(f"{len(names)} case ids for {len(counts)} images: {names[:5]}")
        if any("\0" in name for name in names):
            raise ValueError(f"a case id must not hold a NUL character: {names}")
        if self.counts and self.counts[0].shape[1:] != counts.shape[1:]:
            raise ValueError("the number of classes differs from the one of earlier batches: reset() in between")
        joined = "".join(f"{name}\0" for name in names).encode()
        self.names.append(torch.frombuffer(bytearray(joined), dtype=torch.uint8).clone())
        self.counts.append(counts)
        self.sums.append(sums)

    def _images(self) -> Images:
        """The rows as they stand: local, or of all processes inside a sync."""
        if not len(self.names):
            return Images([], torch.empty(0, 0, dtype=torch.int64), torch.empty(0, 0, dtype=torch.float64))
        names = bytes(dim_zero_cat(self.names).tolist()).decode().split("\0")[:-1]
        return unique_cases(Images(names, dim_zero_cat(self.counts), dim_zero_cat(self.sums)))

    def _gathered(self) -> Images:
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            return self._images()

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: object = None) -> None:
        """A process that saw no image takes part with empty rows of the right type."""
        for name, dtype in ROWS.items():
            if not len(getattr(self, name)):
                setattr(self, name, [torch.empty((0,) if name == "names" else (0, 0), dtype=dtype)])
        super()._sync_dist(dist_sync_fn, process_group)

    def _apply(self, fn: Callable[..., Any], exclude_state: Sequence[str] = ()) -> "PerImageMetric":
        """Rows stay on the CPU: not every device has float64, and none needs them."""
        super()._apply(fn, exclude_state=(*exclude_state, *ROWS))
        return self


def gather_rows(rows: Tensor, group: object = None) -> list[Tensor]:
    """Rows of all processes, also of those that have none; through the GPU where the backend needs it."""
    nccl = torch.distributed.get_backend(group) == "nccl"  # type: ignore[arg-type]
    parts = gather_all_tensors(rows.cuda() if nccl else rows, group)
    width = max(part.shape[-1] for part in parts)
    parts = [part.new_empty(0, width) if part.ndim == 2 and not len(part) else part for part in parts]
    return [part.to(rows.device) for part in parts]


def unique_cases(images: Images) -> Images:
    """Each named case once, in order of the names; unnamed images follow as they came."""
    first: dict[str, int] = {}
    unnamed = []
    for i, name in enumerate(images.names):
        if not name:
            unnamed.append(i)
        elif name not in first:
            first[name] = i
        elif not _same_row(images, first[name], i):
            raise ValueError(
                f"case {name!r} was given twice with different results: give every image its own case id, "
                "and reset() the metric between runs"
            )
    order = [first[name] for name in sorted(first)] + unnamed
    return Images([images.names[i] for i in order], images.counts[order], images.sums[order])


def _same_row(images: Images, i: int, j: int) -> bool:
    equal = torch.equal(images.counts[i], images.counts[j])
    return equal and torch.allclose(images.sums[i], images.sums[j], rtol=1e-9, equal_nan=True)
