"""What integer arithmetic is worth; run it with `python -m experiments.beyond.integer`."""
