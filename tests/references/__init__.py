"""Slow oracles in plain numpy that share no code with what they check."""
