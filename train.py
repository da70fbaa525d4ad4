"""Train segmentation ensembles and store their outputs: ``python train.py --help``."""

import sys

from lightning_calib.cli.train import main

if __name__ == "__main__":  # worker processes import this file too
    sys.exit(main())
