"""What the transforms cost; run it with `python -m experiments.beyond.transforms`."""
