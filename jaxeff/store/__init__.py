"""Files that survive a kill: written whole or line by line, and refused by any other run.

```python
from jaxeff.store import Journal, save_pytree

save_pytree("run.safetensors", {"w": 1.0}, {"epoch": 3})  # whole or not at all, with a checksum
kept = Journal("rows.jsonl", {"seed": 0})                    # a line per finished task
```

Other packages store chains, sweeps, posteriors, built data sets and tuning databases with these
functions.
"""

from jaxeff.store._archives import InflationError as InflationError
from jaxeff.store._archives import max_inflated_size as max_inflated_size
from jaxeff.store._archives import read_member as read_member
from jaxeff.store._archives import read_npz as read_npz
from jaxeff.store._archives import require_inflatable as require_inflatable
from jaxeff.store._archives import require_member as require_member
from jaxeff.store._checkpoint import load_metadata as load_metadata
from jaxeff.store._checkpoint import load_pytree as load_pytree
from jaxeff.store._checkpoint import save_pytree as save_pytree
from jaxeff.store._identity import Resume as Resume
from jaxeff.store._identity import describe_arrays as describe_arrays
from jaxeff.store._identity import describe_computation as describe_computation
from jaxeff.store._identity import require_same_run as require_same_run
from jaxeff.store._identity import run_identity as run_identity
from jaxeff.store._journal import Journal as Journal
from jaxeff.store._journal import add_line as add_line
from jaxeff.store._journal import read_lines as read_lines
from jaxeff.store._journal import repair_lines as repair_lines
from jaxeff.store._writing import CheckpointError as CheckpointError
from jaxeff.store._writing import atomic_file as atomic_file
from jaxeff.store._writing import atomic_folder as atomic_folder
from jaxeff.store._writing import cache_folder as cache_folder
from jaxeff.store._writing import open_regular as open_regular
from jaxeff.store._writing import reading_errors as reading_errors
from jaxeff.store._writing import require_absent as require_absent
from jaxeff.store._writing import write_atomically as write_atomically
