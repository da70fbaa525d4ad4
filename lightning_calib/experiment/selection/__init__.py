"""Selection by groups: candidates cross-fitted, the ladder, stacks, what it leaves on disk."""
