"""What every room uses: files, progress, registries."""
