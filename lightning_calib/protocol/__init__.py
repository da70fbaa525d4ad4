"""Search, repeats, statistics and studies over many pipelines."""
