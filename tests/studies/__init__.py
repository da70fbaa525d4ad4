"""Studies on a small made-up run."""
