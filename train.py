"""Train segmentation ensembles and store their outputs: ``python train.py --help``."""

from lightning_calib.cli.train import main

if __name__ == "__main__":
    main()
