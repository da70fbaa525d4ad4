"""The search of hyperparameters: what varies, which points, the trials and their files."""
