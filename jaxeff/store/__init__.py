"""Files that survive a kill: written whole or line by line, and refused by any other run.

```python
from jaxeff.store import Journal, save_pytree

save_pytree("run.safetensors", {"w": 1.0}, {"epoch": 3})  # whole or not at all, with a checksum
kept = Journal("rows.jsonl", {"seed": 0})                    # a line per finished task
```

Other packages store chains, sweeps, posteriors, built data sets and tuning databases with these
functions.
"""

from jaxeff.store._checkpoint import load_metadata, load_pytree, save_pytree
from jaxeff.store._identity import (
    Resume,
    describe_arrays,
    describe_computation,
    require_same_run,
    run_identity,
)
from jaxeff.store._journal import Journal, add_line, read_lines, repair_lines
from jaxeff.store._writing import (
    CheckpointError,
    atomic_file,
    atomic_folder,
    cache_folder,
    open_regular,
    require_absent,
    write_atomically,
)

__all__ = [
    "CheckpointError",
    "Journal",
    "Resume",
    "add_line",
    "atomic_file",
    "atomic_folder",
    "cache_folder",
    "describe_arrays",
    "describe_computation",
    "load_metadata",
    "load_pytree",
    "open_regular",
    "read_lines",
    "repair_lines",
    "require_absent",
    "require_same_run",
    "run_identity",
    "save_pytree",
    "write_atomically",
]
