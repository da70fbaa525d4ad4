"""Fit calibrators on stored outputs, measure them, report: ``python calibrate.py --help``."""

import sys

from lightning_calib.cli.calibrate import main

sys.exit(main())
