"""`channel_multiple(target)`: the number of channels that a processor's kernels divide by.

```python
from jaxeff_export import channel_multiple

from jaxeff.pruning import Prune

spec = {"*:linear": Prune(0.5, round_to=channel_multiple("cortex-m7"))}
assert channel_multiple("cortex-a72") == 4
```

What a layer keeps are the results of its kernel and the inputs of the next one: results lie side by
side in a vector, inputs are multiplied a group at a time. Channels that fill neither cost what full
ones do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvm.target import Target

from jaxeff_export.compiler.schedules import Machine
from jaxeff_export.operators.integer import dot_of
from jaxeff_export.targets import resolve_target


def channel_multiple(target: str | Mapping[str, Any]) -> int:
    """Computes the multiple of channels that fills a processor's vectors, of codes and of floats.

    Args:
        target: A name (`target_names`) or a TVM target's attributes.

    Returns:
        The least common multiple of the results in a vector of integers, of the inputs that one
        step of an integer product takes, and of the floats in a vector.

    Raises:
        TargetError: There is no such target.
    """
    known = Target(resolve_target(target))
    dot = dot_of(known)
    return math.lcm(dot.lanes, dot.group, Machine.of(known).lanes)
