"""Full-batch fitting of calibrators in plain torch."""
