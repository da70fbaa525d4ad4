"""Post-hoc calibrators: modules from pooled logits to log-probabilities."""
