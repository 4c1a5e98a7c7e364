"""Folder of what is made once and used again: built data sets, an emulated board.

```python
from jaxeff.store import cache_folder

kept = cache_folder() / "dirty-mnist"                # such as ~/.cache/jaxeff/dirty-mnist
print(sorted(path.name for path in kept.glob("*")))  # the data sets that were built, if any
```
"""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Chooses ``$JAXEFF_CACHE``, else ``jaxeff`` in the user's cache folder; it may not exist."""
    if chosen := os.environ.get("JAXEFF_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxeff"
