"""Files of calibrated maps, a format a file; which one is chosen by what the image was read from."""

from lightning_calib.deployment.writers.base import WRITERS, MapWriter, register_writer, writer_for

__all__ = ["WRITERS", "MapWriter", "register_writer", "writer_for"]
