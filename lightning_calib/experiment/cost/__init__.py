"""What an experiment costs: its work, the rates of this machine, the schedule."""
