"""Fit calibrators on stored outputs, measure them, report: ``python calibrate.py --help``."""

import sys

from lightning_calib.cli.calibrate import main

if __name__ == "__main__":  # worker processes import this file too
    sys.exit(main())
