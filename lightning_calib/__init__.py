"""Trustworthy confidences for segmentation ensembles."""

__version__ = "0.1.0"
