"""Images, stored outputs and how they are split."""
