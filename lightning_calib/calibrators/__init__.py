"""Post-hoc calibrators: modules from pooled logits to log-probabilities."""

from lightning_calib.calibrators.affine import (
    AffineCalibrator,
    ConstrainedMatrixScaling,
    DirichletCalibration,
    MatrixScaling,
    VectorScaling,
)
from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.basis import BasisCalibrator
from lightning_calib.calibrators.conditional import (
    ArgmaxPreservingScaling,
    ConditionalDirichletCalibration,
    ConeScaling,
    OrderPreservingScaling,
)
from lightning_calib.calibrators.feature_net import FeatureNetworkScaling
from lightning_calib.calibrators.features import CaseTemperatureScaling, FeatureTemperatureScaling
from lightning_calib.calibrators.linear import LinearCalibrator, LinearInput
from lightning_calib.calibrators.local import CanonicalLocalTemperatureScaling, LocalTemperatureScaling
from lightning_calib.calibrators.pipeline import (
    PAPER_BLOCKS,
    PAPER_PIPELINES,
    Pipeline,
    PipelineName,
    expand_pipelines,
)
from lightning_calib.calibrators.regions import RegionCalibrator
from lightning_calib.calibrators.registry import CALIBRATORS, build, register_calibrator
from lightning_calib.calibrators.splines import GapSplines
from lightning_calib.calibrators.stack import Stack
from lightning_calib.calibrators.storage import load_calibrator, read_header, save_calibrator
from lightning_calib.calibrators.temperature import EnsembleTemperatureScaling, Identity, TemperatureScaling
from lightning_calib.functional.penalty import dirichlet_penalty

__all__ = [
    "CALIBRATORS",
    "PAPER_BLOCKS",
    "PAPER_PIPELINES",
    "AffineCalibrator",
    "ArgmaxPreservingScaling",
    "BasisCalibrator",
    "Calibrator",
    "CanonicalLocalTemperatureScaling",
    "CaseTemperatureScaling",
    "ConditionalDirichletCalibration",
    "ConeScaling",
    "ConstrainedMatrixScaling",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "FeatureNetworkScaling",
    "FeatureTemperatureScaling",
    "GapSplines",
    "Identity",
    "LinearCalibrator",
    "LinearInput",
    "LocalTemperatureScaling",
    "MatrixScaling",
    "OrderPreservingScaling",
    "Pipeline",
    "PipelineName",
    "RegionCalibrator",
    "Stack",
    "TemperatureScaling",
    "VectorScaling",
    "build",
    "dirichlet_penalty",
    "expand_pipelines",
    "load_calibrator",
    "read_header",
    "register_calibrator",
    "save_calibrator",
]
