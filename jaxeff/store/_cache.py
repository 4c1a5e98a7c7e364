"""Where jaxeff keeps what is made once and used again: built data sets, an emulated board."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$JAXEFF_CACHE``, else ``jaxeff`` in the user's cache folder; it need not exist yet."""
    if chosen := os.environ.get("JAXEFF_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxeff"
