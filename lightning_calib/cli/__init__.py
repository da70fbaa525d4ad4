"""The commands behind train.py and calibrate.py."""
