"""The paper's further questions, each answered from the files of a calibration run."""
