"""Outputs that other programs wrote, brought into an output store."""
