"""Folder of what is made once and used again: built data sets, an emulated board."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Chooses ``$JAXEFF_CACHE``, else ``jaxeff`` in the user's cache folder; it may not exist."""
    if chosen := os.environ.get("JAXEFF_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxeff"
