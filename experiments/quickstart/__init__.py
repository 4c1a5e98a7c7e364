"""The main job, end to end; run it with `python -m experiments.quickstart`."""
