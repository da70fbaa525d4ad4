"""The processes of a Trainer, as solvers talk to them."""

from pytorch_lightning.strategies import Strategy
from torch import Tensor

from lightning_calib.solvers.collective import gather_rows


class StrategyCollective:
    """Sums and rows over the processes of a Trainer's strategy.

    Args:
        strategy: the strategy, once its environment is set up.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    @property
    def size(self) -> int:
        """Number of processes."""
        return int(getattr(self.strategy, "world_size", 1))

    def sum(self, values: Tensor) -> Tensor:
        """Sum over processes; what is given stays as it is."""
        if self.size == 1:
            return values
        summed: Tensor = self.strategy.reduce(values.clone().to(self.strategy.root_device), reduce_op="sum")
        return summed.to(values.device)

    def gather(self, rows: Tensor) -> Tensor:
        """Rows in order of the ranks."""
        if self.size == 1:
            return rows
        together = gather_rows(
            rows.to(self.strategy.root_device), lambda values: list(self.strategy.all_gather(values))
        )
        return together.to(rows.device)
