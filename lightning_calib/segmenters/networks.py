"""Segmentation networks by name, as typed options that build them."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from difflib import get_close_matches
from math import prod
from typing import Any

import torch
from torch import nn

from lightning_calib.segmenters.extras import quiet_import, require
from lightning_calib.segmenters.segmenter import Segmenter

_CONVOLUTIONS = {2: nn.Conv2d, 3: nn.Conv3d}
_NORMS = {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}


class Network(ABC):
    """What a network looks like; the data decide its inputs and outputs."""

    @abstractmethod
    def build(self, in_channels: int, num_classes: int, spatial_dims: int) -> Segmenter:
        """Make the network with fresh weights from the global random state."""


class SmpNetwork(Network):
    """A network of segmentation_models.pytorch, 2D.

    Args:
        arch: architecture, such as ``unet``, ``fpn``, ``deeplabv3plus`` or ``segformer``.
        encoder_name: encoder, such as ``resnet18`` or ``mobilenet_v2``.
        encoder_weights: name of pretrained weights, such as ``imagenet``; None for random ones.
        options: what else the architecture takes, such as ``decoder_channels``.
        channels_last: keep channels next to each other in memory. Depthwise encoders such as ``mobilenet_v2`` train
            faster so on CPUs, most on GPUs with reduced precision; the weights are the same but for rounding.
        classes: output channels; None for one a class, 1 for two classes told apart by one sigmoid.

    Example:
        >>> network = SmpNetwork("unet", "resnet18").build(in_channels=1, num_classes=4, spatial_dims=2)
        >>> network.divisor
        (32, 32)
    """

    def __init__(
        self,
        arch: str = "unet",
        encoder_name: str = "resnet34",
        encoder_weights: str | None = None,
        options: dict[str, Any] | None = None,
        channels_last: bool = False,
        classes: int | None = None,
    ) -> None:
        self.arch, self.encoder_name = arch, encoder_name
        self.encoder_weights, self.options = encoder_weights, dict(options or {})
        self.channels_last, self.classes = channels_last, classes

    def build(self, in_channels: int, num_classes: int, spatial_dims: int) -> Segmenter:
        """Make the network (see :class:`Network`)."""
        if spatial_dims != 2:
            raise ValueError(
                f"segmentation_models.pytorch is 2D, the data are {spatial_dims}D: choose ResidualEncoderUNet"
            )
        channels = num_classes if self.classes is None else self.classes
        if channels != num_classes and (channels, num_classes) != (1, 2):
            raise ValueError(
                f"classes = {channels} for data of {num_classes} classes: leave it out, or give 1 for two classes"
            )
        smp = quiet_import("segmentation_models_pytorch")  # costs seconds: only where it is used
        try:
            body = smp.create_model(
                arch=self.arch,
                encoder_name=self.encoder_name,
                encoder_weights=self.encoder_weights,
                in_channels=in_channels,
                classes=channels,
                **self.options,
            )
        except KeyError as problem:  # lists all right names
            raise ValueError(_nearest(str(problem.args[0]))) from problem
        if self.channels_last:  # convolutions hand the layout of their weights on
            body = body.to(memory_format=torch.channels_last)
        return Segmenter(body, (body.encoder.output_stride,) * 2)


def _nearest(told: str) -> str:
    """A message that lists hundreds of names in brackets, with those alone that are near to what was written.

    Example:
        >>> _nearest("Wrong encoder name `resnet1`, supported encoders: ['resnet18', 'vgg11', 'dpn68']")
        'Wrong encoder name `resnet1`, supported encoders: resnet18, ...'
    """
    before, _, listed = told.partition("[")
    written, names = before.partition("`")[2].partition("`")[0], re.findall(r"'([^']+)'", listed)
    return f"{before}{', '.join(get_close_matches(written, names, n=5) or names[:10])}, ..."


class ResidualEncoderUNet(Network):
    """nnU-Net's residual-encoder U-Net (Isensee et al. 2024, arXiv 2404.09556) in 2D or 3D.

    Instance normalisation, leaky ReLU, one residual stage a resolution; convolution by a stride in place of
    pooling.

    Args:
        features: channels of each stage; their number is the number of stages.
        blocks: residual blocks of each encoder stage.
        strides: stride with which each stage begins, a number or one a spatial axis (anisotropic volumes);
            None for 1, 2, 2, ...
        decoder_convs: convolutions of each decoder stage.
        deep_supervision: train on the lower resolutions too.

    Example:
        >>> options = ResidualEncoderUNet(features=[4, 8, 16], blocks=[1, 1, 1])
        >>> network = options.build(in_channels=1, num_classes=3, spatial_dims=3)
        >>> network.divisor
        (4, 4, 4)
    """

    def __init__(
        self,
        features: Sequence[int] = (32, 64, 128, 256, 320, 320),
        blocks: Sequence[int] = (1, 3, 4, 6, 6, 6),
        strides: Sequence[int | Sequence[int]] | None = None,
        decoder_convs: int = 1,
        deep_supervision: bool = True,
    ) -> None:
        self.features, self.blocks = list(features), list(blocks)
        self.strides = [1, *[2] * (len(self.features) - 1)] if strides is None else list(strides)
        self.decoder_convs, self.deep_supervision = decoder_convs, deep_supervision
        if not len(self.features) == len(self.blocks) == len(self.strides) >= 2:
            raise ValueError(
                "features, blocks and strides need one entry a stage, and two stages or more; "
                f"got {len(self.features)}, {len(self.blocks)} and {len(self.strides)}"
            )

    def build(self, in_channels: int, num_classes: int, spatial_dims: int) -> Segmenter:
        """Make the network (see :class:`Network`)."""
        unet = require("dynamic_network_architectures.architectures.unet", "residual-encoder U-Nets")
        strides = [self._per_axis(stride, spatial_dims) for stride in self.strides]
        stages = len(self.features)
        body = unet.ResidualEncoderUNet(
            input_channels=in_channels,
            n_stages=stages,
            features_per_stage=self.features,
            conv_op=_CONVOLUTIONS[spatial_dims],
            kernel_sizes=3,
            strides=strides,
            n_blocks_per_stage=self.blocks,
            num_classes=num_classes,
            n_conv_per_stage_decoder=self.decoder_convs,
            conv_bias=True,
            norm_op=_NORMS[spatial_dims],
            norm_op_kwargs={"eps": 1e-5, "affine": True},
            nonlin=nn.LeakyReLU,
            nonlin_kwargs={"inplace": True},
            deep_supervision=self.deep_supervision,
        )
        body.apply(unet.ResidualEncoderUNet.initialize)
        if not self.deep_supervision:
            # Heads that no loss reaches would stop a distributed run.
            for level in range(len(body.decoder.seg_layers) - 1):
                body.decoder.seg_layers[level] = nn.Identity()
        divisor = [prod(stride[axis] for stride in strides) for axis in range(spatial_dims)]
        return Segmenter(body, divisor, self.deep_supervision)

    @staticmethod
    def _per_axis(stride: int | Sequence[int], spatial_dims: int) -> list[int]:
        if isinstance(stride, int):
            return [stride] * spatial_dims
        if len(stride) != spatial_dims:
            raise ValueError(f"stride {list(stride)} has {len(stride)} axes, the data have {spatial_dims}")
        return list(stride)
