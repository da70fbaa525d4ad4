"""Experiments: pipelines x repeats on one store, searched, fitted, evaluated, compared."""
