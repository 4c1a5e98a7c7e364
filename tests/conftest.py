"""Hypothesis draws the same examples in every run, unless JAXEFF_RANDOM_TESTS is set.

A landing must not depend on luck; searching for new examples is a run of its own:
`JAXEFF_RANDOM_TESTS=1 pytest tests/export`.
"""

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True)
if not os.environ.get("JAXEFF_RANDOM_TESTS"):
    settings.load_profile("same")
