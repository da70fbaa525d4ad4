"""Image DataModules: from files to batches."""
