"""Bits as arguments: what a policy and a training step cost; `python -m experiments.policies`."""
