"""Masks: given (`FixedMask`), random (`RandomMask`), or following the weights (`Surgery`).

```python
import jax
from jaxeff.compression import init, quantized, update_statistics
from jaxeff.nn import small_classifier
from jaxeff.pruning.sparsity import Surgery

f, params, (x, y) = small_classifier()
spec = init(f, params, x, {"*:linear": Surgery(0.5)})
logits = quantized(f, spec)(params, x)                  # all weights have a gradient
spec = update_statistics(f, params, x, spec)            # every so often: masks after some steps
```
"""

import zlib
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxeff.compression import Tensor
from jaxeff.compression.quantizers import largest_mask
from jaxeff.core import Count, Number, check_broadcasts, register_setting, static
from jaxeff.pruning.sparsity._protocol import Sparse


@register_setting
@dataclass(frozen=True)
class FixedMask(Sparse):
    """A mask that is given.

    Attributes:
        where: Mask of the entries that are kept, booleans of the weight's shape; a leaf.
    """

    where: Bool[Array, "*shape"]

    def mask(self, x: Float[Array, "*shape"], tensor: Tensor) -> Bool[Array, "*shape"]:
        """Returns `where`, broadcast."""
        check_broadcasts(f"FixedMask.where at {tensor.site!r}", self.where, x.shape)
        return jnp.broadcast_to(jnp.asarray(self.where, bool), x.shape)

    def kept(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Returns how many weights stay."""
        del tensor
        return self.where.sum() * (int(np.prod(shape)) // max(self.where.size, 1))


@register_setting
@dataclass(frozen=True)
class RandomMask(Sparse):
    """Any weights: what every other method has to be better than.

    Attributes:
        fraction: The share that goes; a leaf.
        seed: Number that the mask is drawn from; a layer's depends on it and on its site alone.
    """

    fraction: Annotated[Float[Array, ""] | float, Number(0, 1)]
    seed: Annotated[int, Count(0)] = static(0)

    def mask(self, x: Float[Array, "*shape"], tensor: Tensor) -> Bool[Array, "*shape"]:
        """Draws a mask that depends on seed, site and name only."""
        name = zlib.crc32(f"{tensor.site}/{tensor.name}".encode())
        key = jax.random.fold_in(jax.random.key(self.seed), name)
        draws = jax.random.uniform(key, x.shape)
        return largest_mask(draws, 1 - jnp.asarray(self.fraction, jnp.float32))

    def kept(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Returns the share that stays, rounded to a whole number of weights."""
        del tensor
        xp: Any = np if isinstance(self.fraction, float | int) else jnp
        return xp.round((1 - self.fraction) * int(np.prod(shape)))


@register_setting
@dataclass(frozen=True)
class Surgery(Sparse):
    """Dynamic network surgery: weights go below one threshold and come back above another.

    With t = mean |w| + spread * std |w| of the weights it starts from, a weight is removed where
    |w| < .9 t, comes back where |w| >= 1.1 t, and stays what it is in between. Removed weights go
    on being trained, so that they may come back. `update_statistics` moves the masks; how
    often, less and less as training goes on, is the caller's.

    Attributes:
        spread: Distance of the thresholds above the mean, in standard deviations.
        threshold: t. Open: that of the array.
        where: Mask of the entries that are kept. Open: those above t.

    References:
        Guo et al., "Dynamic Network Surgery for Efficient DNNs", arXiv:1608.04493, eq. 3 and
        section 3.3.
    """

    spread: Annotated[Float[Array, ""] | float, Number()] = 0.0
    threshold: Annotated[Float[Array, ""] | float | None, Number(0)] = None
    where: Bool[Array, "*shape"] | None = None

    def mask(self, x: Float[Array, "*shape"], tensor: Tensor) -> Bool[Array, "*shape"]:
        """Returns what is kept now."""
        own = self.start(x, tensor)
        assert own.where is not None
        check_broadcasts(f"Surgery.where at {tensor.site!r}", own.where, x.shape)
        return jnp.asarray(own.where)

    def kept(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Returns how many that are; all before it has started."""
        del tensor
        return int(np.prod(shape)) if self.where is None else self.where.sum()

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "Surgery":
        """Finds threshold and mask of an array, where they are open."""
        own: Any = super().start(x, tensor)
        size = jnp.abs(x)
        t = own.threshold
        if t is None:
            spread = jnp.asarray(self.spread, x.dtype)
            t = jnp.maximum(size.mean() + spread * size.std(), 0)
        where = size >= jnp.asarray(t, x.dtype) if own.where is None else own.where
        started: Surgery = replace(own, threshold=t, where=where)
        return started

    def update_statistics(self, x: Float[Array, "*shape"], tensor: Tensor) -> "Surgery":
        """Returns the mask after one look at the weights."""
        own = self.start(x, tensor)
        before = jnp.asarray(own.where)
        # Two thresholds, for a weight near one would come and go with every step (Guo et al., eq.
        # 3).
        size, t = jnp.abs(x), jnp.asarray(own.threshold, x.dtype)
        where = jnp.where(size < 0.9 * t, False, jnp.where(size >= 1.1 * t, True, before))
        return replace(own, where=where)


__all__ = ["FixedMask", "RandomMask", "Surgery"]
