"""Calibration and segmentation metrics as torchmetrics classes."""
