"""Actions: numbers from 0 to 1 per layer, and the policies that they stand for.

An action says how much of a layer goes, whatever the layer: 0 leaves it alone. What it comes to is
Galen's mapping (Klein's thesis, section 4.2.3; Krieger et al., arXiv 2212.07818):

```text
channels    R * clip(floor((1 - p) C / R) + 1, 1, C / R)
datatype    of the larger q of both:  q <= t_fp: FP32,  q <= t_int: INT8,  else MIX
bits (MIX)  clip(floor((1 - r) B) + 1, 1, B),  r = (q - t_int) / (1 - t_int)
```

A layer that no kernel of few bits takes, with the channels that are left of it, has eight bits in
the place of MIX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxeff.compression.allocation import FLOAT
from jaxeff.core import Choice, Count, Number, Setting, register_setting, static
from jaxeff.search.space._policy import FP32, INT8, MIX, Policy
from jaxeff.search.space._space import SearchSpace


@register_setting
@dataclass(frozen=True)
class Actions(Setting):
    """Mapping of actions to policies.

    Attributes:
        methods: "pruning" (one action a layer), "quantization" (weights, activations) or "both"
            (all three, pruning first).
        round_to: Divisor of the channels that stay; None takes the source's, 32 if `methods` is
            "both" and 1 otherwise. A group with fewer keeps all.
        bits: The most bits of MIX. The source's text has 8, its released searches 6.
        float_below: An action up to this leaves a layer in float32.
        eight_below: One up to this gives it eight bits.

    Raises:
        ValueError: A number is out of bounds, or the thresholds aren't in order.
    """

    methods: Annotated[str, Choice("pruning", "quantization", "both")] = static("both")
    round_to: Annotated[int | None, Count(1)] = static(None)
    bits: Annotated[int, Count(1, 8)] = static(8)
    float_below: Annotated[float, Number(0, below=1)] = static(0.2)
    eight_below: Annotated[float, Number(0, below=1)] = static(0.5)

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if self.float_below > self.eight_below:
            raise ValueError(
                f"Actions.float_below={self.float_below} lies above "
                f"eight_below={self.eight_below}: no action would mean eight bits."
            )

    @property
    def count(self) -> int:
        """Actions of a layer."""
        return {"pruning": 1, "quantization": 2, "both": 3}[self.methods]

    @property
    def prunes(self) -> bool:
        """Whether channels go."""
        return self.methods != "quantization"

    @property
    def quantizes(self) -> bool:
        """Whether bits go."""
        return self.methods != "pruning"

    def policy(self, space: SearchSpace, actions: Float[Array, "sites count"]) -> Policy:
        """Converts actions to a policy; they may be traced."""
        actions = jnp.asarray(actions)
        kept = self.kept(space, actions[:, 0]) if self.prunes else jnp.asarray(space.sizes)
        whole = space.whole
        if not self.quantizes:
            return Policy(
                kept, *map(jnp.asarray, (whole.datatypes, whole.weights, whole.activations))
            )
        weights, activations = actions[:, -2], actions[:, -1]
        # One kernel multiplies both, so the stronger action decides its datatype.
        larger = jnp.maximum(weights, activations)
        few = jnp.where(space.few_bits(kept), MIX, INT8)
        eight = jnp.where(larger <= self.eight_below, INT8, few)
        datatypes = jnp.where(larger <= self.float_below, FP32, eight)

        def width(q: Array) -> Array:
            of_datatype = jnp.where(datatypes == MIX, self.width(q), 8)
            return jnp.where(datatypes == FP32, FLOAT, of_datatype)

        return Policy(kept, datatypes, width(weights), width(activations))

    def width(self, q: Float[Array | np.ndarray, " sites"]) -> Int[Array, " sites"]:
        """Computes bits of MIX."""
        r = (q - self.eight_below) / (1 - self.eight_below)
        found = jnp.floor((1 - r) * self.bits) + 1
        return jnp.clip(found, 1, self.bits).astype(jnp.int32)

    def kept(self, space: SearchSpace, p: Float[Array, " sites"]) -> Int[Array, " groups"]:
        """Counts the channels that stay of every group, by the layer that decides about it."""
        deciding = {site.group: i for i, site in enumerate(space.sites) if site.group >= 0}
        # Blocks of 32 keep the kernels of few bits possible (`FewBitLayers`).
        step = self.round_to or (32 if self.methods == "both" else 1)
        sizes = jnp.asarray(space.sizes)
        if not space.groups:
            return sizes
        chosen = p[jnp.asarray([deciding[i] for i in range(len(space.groups))])]
        blocks = sizes // step
        left = jnp.floor((1 - chosen) * sizes.astype(chosen.dtype) / step).astype(jnp.int32) + 1
        found = jnp.clip(left, 1, blocks)
        # What is no multiple stays whole at the upper end, as does a group of less than a block.
        return jnp.where((found >= blocks) | (blocks < 1), sizes, found * step)
