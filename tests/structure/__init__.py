"""Counts that the library's structure is held to: `python -m tests.structure` prints them."""
