"""Folder of what is made once and used again: built data sets, an emulated board.

```python
from jaxeff.store import cache_folder

built = cache_folder() / "primes" / "first.json"     # ~/.cache/jaxeff/primes/first.json
if not built.exists():
    pass                                             # make it: write_atomically(built, ...)
```
"""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Chooses ``$JAXEFF_CACHE``, else ``jaxeff`` in the user's cache folder; it may not exist."""
    if chosen := os.environ.get("JAXEFF_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxeff"
