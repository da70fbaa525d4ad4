"""What calibrators that look at features share: a second input that goes with the logits through all chunks."""

import torch
from torch import Tensor

from lightning_calib.calibrators.base import Calibrator


class FeaturedCalibrator(Calibrator):
    """Calibrator of logits and, where it names some, features; a subclass writes :meth:`calibrate` for both."""

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Calibrated log-probabilities ``(B, C, *S)`` of pooled logits ``(B, C, *S)`` and features ``(B, F, *S)``."""
        self.check_input(logits)
        seen = logits.to(self.compute_dtype(logits))
        if self.feature_names:
            seen = torch.cat([seen, self.checked(features, logits).to(seen)], dim=1)
        with torch.autocast(logits.device.type, enabled=False):
            return self.apply_to(seen)

    def apply_to(self, logits: Tensor) -> Tensor:
        """Calibrate chunks of voxels; features follow the logits on the class axis ``(B, C + F, *S)``."""
        flat = logits.T.unsqueeze(0) if logits.ndim == 2 else logits.flatten(2)  # (B, C + F, n)
        log_probs = torch.cat([self._part(part) for part in self.chunks(flat)], dim=-1)
        if logits.ndim == 2:
            return log_probs[0].T
        return log_probs.view(logits.shape[0], self.num_classes, *logits.shape[2:])

    def calibrate(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Log-probabilities of logits ``(B, C, n)`` and features ``(B, F, n)``."""
        raise NotImplementedError

    def split(self, seen: Tensor) -> tuple[Tensor, Tensor | None]:
        """The first ``C`` rows of ``(B, C + F, n)``, and the features below them."""
        first, features = seen[:, : self.num_classes], seen[:, self.num_classes :]
        return first, features if self.feature_names else None

    def checked(self, features: Tensor | None, logits: Tensor) -> Tensor:
        """The features that it looks at; refuses calls without them."""
        wanted = f"{self.name} looks at the features {', '.join(self.feature_names)}"
        if features is None:
            raise ValueError(f"{wanted}: call it with logits and features (B, {len(self.feature_names)}, *S)")
        expected = (logits.shape[0], len(self.feature_names), *logits.shape[2:])
        if tuple(features.shape) != expected:
            raise ValueError(f"{wanted}: expected the shape {expected}, got {tuple(features.shape)}")
        return features

    def _part(self, part: Tensor) -> Tensor:
        """Log-probabilities of a chunk ``(B, C + F, n)``."""
        logits, features = self.split(part)
        return self.finish(self.calibrate(self.start(logits), features), logits)
