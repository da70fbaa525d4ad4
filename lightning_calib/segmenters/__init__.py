"""Segmentation networks, their losses, schedules and inference."""
