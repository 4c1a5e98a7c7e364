"""What a prediction costs; run it with `python -m experiments.latency`."""
