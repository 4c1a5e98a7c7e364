"""Structured pruning: what it removes, what that saves, and how others compare."""
