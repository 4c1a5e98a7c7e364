"""Files that survive a kill: written whole or line by line, and refused by any other run.

```python
from jaxeff.store import Kept, save_pytree

save_pytree("run.safetensors", {"w": 1.0}, {"epoch": 3})  # whole or not at all, with a checksum
kept = Kept("rows.jsonl", {"seed": 0})                    # a line per finished task
```

The ground floor: it imports no other room. Chains, sweeps, posteriors, built data sets and tuning
databases are kept by their own rooms with what is here.
"""

from jaxeff.store.cache import cache_folder
from jaxeff.store.checkpoint import load_metadata, load_pytree, save_pytree
from jaxeff.store.errors import CheckpointError
from jaxeff.store.identity import require_same_run, run_difference, run_identity
from jaxeff.store.kept import Kept
from jaxeff.store.lines import add_line, mend_lines, read_lines
from jaxeff.store.writing import new_file, new_folder, require_free, write_whole

__all__ = [
    "CheckpointError",
    "Kept",
    "add_line",
    "cache_folder",
    "load_metadata",
    "load_pytree",
    "mend_lines",
    "new_file",
    "new_folder",
    "read_lines",
    "require_free",
    "require_same_run",
    "run_difference",
    "run_identity",
    "save_pytree",
    "write_whole",
]
