"""Experiments in trackers: journals of the jobs, tables and figures, the trackers themselves."""
