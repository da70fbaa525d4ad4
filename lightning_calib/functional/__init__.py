"""Pure tensor functions: the arithmetic that metrics and calibrators share."""
