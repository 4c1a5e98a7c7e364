"""Bundles: the folder that a deployed model is, how it is built, and how it runs on a board."""
