"""The trained networks of an ensemble: read from checkpoints, applied to images."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from lightning_calib.kit.registry import refuse_strange
from lightning_calib.segmenters.checkpoints import read_weights
from lightning_calib.segmenters.inference import Inference
from lightning_calib.segmenters.networks import Network
from lightning_calib.segmenters.segmenter import Segmenter

_PREFIX = "network."  # of a member's weights in the checkpoint of its training


class Members(nn.Module):
    """Networks of one architecture.

    Args:
        networks: the trained networks.
        inference: how they are applied to whole images; in one piece by default.
    """

    def __init__(self, networks: Sequence[Segmenter] = (), inference: Inference | None = None) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.inference = inference or Inference()

    @classmethod
    def load(cls, network: Segmenter, checkpoints: Mapping[str, Path], inference: Inference | None = None) -> Self:
        """Read the members' weights.

        Args:
            network: a network of their architecture.
            checkpoints: checkpoint file of each member's training, by its name.
            inference: how they are applied.
        """
        networks = []
        for name, path in checkpoints.items():
            member = copy.deepcopy(network)
            weights = read_weights(path, "bring it back, or train the member again")
            own = {key.removeprefix(_PREFIX): value for key, value in weights.items() if key.startswith(_PREFIX)}
            try:
                member.load_state_dict(own)
            except RuntimeError as problem:
                raise ValueError(
                    f"member {name}: {path} was trained with another network than the config names: {problem}"
                ) from problem
            networks.append(member.eval().requires_grad_(False))
        return cls(networks, inference)

    def alone(self, number: int) -> "Members":
        """One of the members, with the same weights."""
        network = self.networks[number]
        assert isinstance(network, Segmenter)
        return Members([network], self.inference)

    def __len__(self) -> int:
        """Number of members."""
        return len(self.networks)

    @torch.no_grad()
    def scores(self, images: Tensor) -> Iterator[Tensor]:
        """Logits ``(B, C, *S)`` of images ``(B, channels, *S)``, one member after the other."""
        for network in self.networks:
            assert isinstance(network, Segmenter)
            yield self.inference(network.logits, images)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(B, M, C, *S)`` of all members."""
        return torch.stack(list(self.scores(images)), dim=1)

    def restored(self, image: Tensor, restore: Callable[[Tensor], Tensor]) -> Tensor:
        """Logits ``(M, C, *S)`` of one image on another grid, on the CPU.

        Args:
            image: ``(1, channels, *S_in)``.
            restore: brings ``(C, *S_in)`` to ``(C, *S)``.
        """
        return torch.stack([restore(scores[0].cpu()) for scores in self.scores(image)])


def build_network(
    config: Mapping[str, Any], in_channels: int, num_classes: int, spatial_dims: int, trust: bool = False
) -> Segmenter:
    """A network from the class and options that a file names, with fresh weights.

    Args:
        config: ``class_path`` and ``init_args``.
        in_channels: channels of an image.
        num_classes: number of classes.
        spatial_dims: 2 or 3.
        trust: import a class that is neither ours nor imported already.
    """
    from jsonargparse import ArgumentError, ArgumentParser  # of the command line: only where a file names a network

    path = str(config["class_path"])
    refuse_strange(path, "the description of the networks", trust)
    options = dict(config.get("init_args") or {})
    if "encoder_weights" in options:
        options["encoder_weights"] = None  # the checkpoint has them: nothing to download
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Network, "network")
    try:
        parsed = parser.parse_object({"network": {"class_path": path, "init_args": options}})
    except ArgumentError as problem:
        raise ValueError(f"{path} with the options {options} is no network of the ensemble: {problem}") from problem
    network: Network = parser.instantiate_classes(parsed).network
    return network.build(in_channels, num_classes, spatial_dims)
