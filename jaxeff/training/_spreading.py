"""Distribution of a chunk's replicates over the devices of all processes.

```python
import jax

from jaxeff.training import spread_replicates

spread = spread_replicates(seeds=3, settings=5, devices=jax.devices())
data = spread.whole({"x": jax.numpy.ones((4, 2))})           # on each of the devices
assert spread.seeds * spread.settings >= 15                  # filled up to fit the devices
if jax.device_count() == 1:
    assert spread == (3, 5, None)                            # nothing to spread over
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxeff.core import to_devices


class Spread(NamedTuple):
    """Placement of a chunk's replicates.

    Attributes:
        seeds: Rows of the chunk as it is trained.
        settings: The number of columns, one for each setting.
        sharding: Sharding of arrays whose leading axes are seeds and settings; None for one device.
    """

    seeds: int
    settings: int
    sharding: NamedSharding | None

    def whole(self, tree: Any) -> Any:
        """Copies arrays to every device."""
        if self.sharding is None:
            return tree
        return to_devices(tree, NamedSharding(self.sharding.mesh, PartitionSpec()))


def spread_replicates(seeds: int, settings: int, devices: Sequence[Any] | None = None) -> Spread:
    """Spreads a chunk along its settings or its seeds, whichever fills the devices better.

    Where neither is a multiple of the devices, one of them is filled up to it; each device still
    has fewer replicates than the chunk. What fills up is to be cut away from the results.

    Args:
        seeds: Rows of the chunk.
        settings: The number of columns, one for each setting.
        devices: To spread it over; all that there are if None.
    """
    devices = jax.devices() if devices is None else devices
    count = len(devices)
    if count == 1:
        return Spread(seeds, settings, None)
    mesh = Mesh(np.array(devices), ("replicates",))
    if seeds * settings == 1:  # nothing to spread, but other processes have to know the result
        whole = NamedSharding(mesh, PartitionSpec())
        return Spread(seeds, settings, whole if mesh.is_multi_process else None)
    # The axis whose padding wastes fewer replicates is spread.
    wide, long = (seeds, _filled(settings, count)), (_filled(seeds, count), settings)
    if math.prod(wide) <= math.prod(long):
        return Spread(*wide, NamedSharding(mesh, PartitionSpec(None, "replicates")))
    return Spread(*long, NamedSharding(mesh, PartitionSpec("replicates")))


def _filled(size: int, count: int) -> int:
    return math.ceil(size / count) * count
