"""Sparse methods, each a mask of an array's entries as a method of `quantized`.

A sparse weight is a quantized one whose grid has a zero that many values go to. So a method here is
a quantizer with one method more, `mask`; specs, `init`, `update_statistics`, `memory` and
`jaxeff.cost` take it like any other, and `values` quantizes what is kept.

By `Magnitude` the smallest weights of an array go, by `NofM` those of every few inputs; masks are
given (`FixedMask`), random (`RandomMask`), or follow the weights (`Surgery`). Shares are of an
array each; weights of equal magnitude stay together. `cubic_schedule` says how many go when.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from jaxeff import core
from jaxeff.compression import BaseQuantizer, LayerQuantization, Quantizer, Tensor, straight_through

_POINTER = 32


@dataclass(frozen=True, kw_only=True)
class Sparse(BaseQuantizer):
    """A method that keeps some weights and sets the others to zero.

    Attributes:
        values: Quantizer of the weights that are kept; None leaves them as they are.
        gradient: "all" weights have the gradient of the masked ones (straight-through), so that
            what has been removed may come back; or those that are "kept" alone.
        stored: Format in which `storage`, and with it `memory` and `jaxeff.cost`, counts an array:
            "bitmask", a bit for every entry and the values that are kept; "csr", for every value
            kept its column in 8, 16 or 32 bits, and 32 bits per row and one more, rows being output
            channels; "dense", every entry.
    """

    values: Quantizer | None = None
    gradient: Annotated[str, core.Choice("all", "kept")] = core.static("all")
    stored: Annotated[str, core.Choice("bitmask", "csr", "dense")] = core.static("bitmask")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.values is not None and not isinstance(self.values, Quantizer):
            raise TypeError(
                f"{type(self).__name__}.values must be a method for one array, such as Uniform(8), "
                f"not {self.values!r}."
            )

    def mask(self, x: Float[Array, "*shape"], tensor: Tensor) -> Bool[Array, "*shape"]:
        """Returns which entries of a weight are kept."""
        raise NotImplementedError

    def kept(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Returns how many entries that are."""
        raise NotImplementedError

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the values that are kept, and zeros."""
        self._check_role(tensor)
        # A mask is piecewise constant: all of the gradient is that of the values.
        mask = jax.lax.stop_gradient(self.mask(jax.lax.stop_gradient(x), tensor))
        value = x if self.values is None else self.values.quantize(x, tensor)
        sparse = jnp.where(mask, value, jnp.zeros_like(value))
        return straight_through(value, sparse) if self.gradient == "all" else sparse

    def parts(self) -> LayerQuantization:
        """Returns the method for weights alone: an activation has no weights to remove."""
        return LayerQuantization(weights=self)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> Quantizer:
        """Returns the method of the values started from all of an array."""
        self._check_role(tensor)
        start = getattr(self.values, "start", None)
        return self if start is None else replace(self, values=start(x, tensor))

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the bits of an array, in the format that `stored` says."""
        size, kept, bits = math.prod(shape), self.kept(shape, tensor), self.width
        if self.stored == "dense":
            return size * bits + self._decoding(shape, tensor)
        if self.stored == "bitmask":
            return size + kept * bits + self._decoding(shape, tensor)
        rows = max(tensor.count(shape, "channel"), 1)
        # The narrowest integer that numbers a row's entries.
        column = next(b for b in (8, 16, 32) if size // rows <= 2**b or b == 32)
        columns = kept * (bits + column) + (rows + 1) * _POINTER
        return columns + self._decoding(shape, tensor)

    @property
    def width(self) -> Any:
        """Bits of a value that is kept."""
        return 32 if self.values is None else getattr(self.values, "width", 32)

    def _decoding(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the bits of scales and codebooks of the values."""
        storage = getattr(self.values, "storage", None)
        # What the method of values stores beyond its codes: that stays, however few codes are kept.
        return 0 if storage is None else storage(shape, tensor) - math.prod(shape) * self.width

    def _check_role(self, tensor: Tensor) -> None:
        if tensor.role == "activation":
            name = type(self).__name__
            raise ValueError(
                f"{name} removes weights, and {tensor.site}/{tensor.name} is an activation: write "
                f"{{pattern: {name}(...)}} or LayerQuantization(weights={name}(...), "
                "activations=Int(8))."
            )


@core.register_setting
class Magnitude(Sparse):
    """The largest weights of an array: `Magnitude(0.9)` removes nine of ten.

    Attributes:
        fraction: The share that goes, a leaf: a schedule needs no second trace.

    Raises:
        TypeError, ValueError: `fraction` isn't between 0 and 1.

    References:
        Han et al., "Learning both Weights and Connections", arXiv:1506.02626.
    """

    fraction: Annotated[Float[Array, ""] | float, core.Number(0, 1)]

    def mask(self, x: Float[Array, "*shape"], tensor: Tensor) -> Bool[Array, "*shape"]:
        """Returns the largest magnitudes."""
        del tensor
        return largest_mask(jnp.abs(x), 1 - jnp.asarray(self.fraction, jnp.float32))

    def kept(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Returns the share that stays, rounded to a whole number of weights."""
        del tensor
        # A learnt or scheduled share may be traced; a number stays a number for reports.
        xp: Any = np if isinstance(self.fraction, float | int) else jnp
        return xp.round((1 - self.fraction) * int(np.prod(shape)))


def cubic_schedule(final: float, *, begin: int, end: int, initial: float = 0.0) -> optax.Schedule:
    """Returns the share that is removed after so many updates: fast first, when much can go.

    ```text
    s_f + (s_i - s_f) (1 - (t - begin) / (end - begin))^3
    ```

    ```python
    import jax
    import optax
    from jaxeff.compression import quantized
    from jaxeff.nn import small_classifier
    from jaxeff.pruning.sparsity import Magnitude, cubic_schedule
    from jaxeff.training import cross_entropy, fit

    f, params, data = small_classifier()
    share = cubic_schedule(0.9, begin=4, end=12)

    def loss(key, params, state, batch, step):
        sparse = quantized(f, {"*:linear": Magnitude(share(step))})
        return cross_entropy(sparse)(key, params, state, batch, step)

    run = fit(jax.random.key(0), loss, params, data,
              optimizer=optax.adam(1e-3), epochs=2, batch_size=32)
    g = quantized(f, {"*:linear": Magnitude(0.9)})
    ```

    Args:
        final: s_f, from `end` on.
        begin: The first update of the schedule.
        end: The last update.
        initial: s_i, until `begin`.

    Raises:
        ValueError: A share isn't between 0 and 1, or `end` isn't after `begin`.

    Source: Zhu and Gupta, "To prune, or not to prune", arXiv:1710.01878, eq. 1.
    """
    core.check_number("cubic_schedule: final", final, 0, 1)
    core.check_number("cubic_schedule: initial", initial, 0, 1)
    core.check_count("cubic_schedule: begin", begin, 0)
    core.check_count("cubic_schedule: end", end, begin + 1)
    return optax.polynomial_schedule(initial, final, 3, end - begin, begin)


@core.register_setting
class FixedMask(Sparse):
    """A mask that is given.

    Attributes:
        where: Mask of the entries that are kept, booleans of the weight's shape; a leaf.
    """

    where: Bool[Array, "*shape"]

    def mask(self, x: Float[Array, "*shape"], tensor: Tensor) -> Bool[Array, "*shape"]:
        """Returns `where`, broadcast."""
        core.check_broadcasts(f"FixedMask.where at {tensor.site!r}", self.where, x.shape)
        return jnp.broadcast_to(jnp.asarray(self.where, bool), x.shape)

    def kept(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Returns how many weights stay."""
        del tensor
        return self.where.sum() * (int(np.prod(shape)) // max(self.where.size, 1))


@core.register_setting
class RandomMask(Sparse):
    """Any weights: what every other method has to be better than.

    Attributes:
        fraction: The share that goes; a leaf.
        seed: Number that the mask is drawn from; a layer's depends on it and on its site alone.
    """

    fraction: Annotated[Float[Array, ""] | float, core.Number(0, 1)]
    seed: Annotated[int, core.Count(0)] = core.static(0)

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


@core.register_setting
class Surgery(Sparse):
    """Dynamic network surgery: weights go below one threshold and come back above another.

    With t = mean |w| + spread * std |w| of the weights it starts from, a weight is removed where
    |w| < .9 t, comes back where |w| >= 1.1 t, and stays what it is in between. Removed weights go
    on being trained, so that they may come back. `update_statistics` moves the masks; how
    often, less and less as training goes on, is the caller's.

    ```python
    from jaxeff.compression import init, quantized, update_statistics
    from jaxeff.nn import small_classifier
    from jaxeff.pruning.sparsity import Surgery

    f, params, (x, y) = small_classifier()
    spec = init(f, params, x, {"*:linear": Surgery(0.5)})
    logits = quantized(f, spec)(params, x)                  # all weights have a gradient
    spec = update_statistics(f, params, x, spec)            # every so often: masks after some steps
    ```

    Attributes:
        spread: Distance of the thresholds above the mean, in standard deviations.
        threshold: t. Open: that of the array.
        where: Mask of the entries that are kept. Open: those above t.

    References:
        Guo et al., "Dynamic Network Surgery for Efficient DNNs", arXiv:1608.04493, eq. 3 and
        section 3.3.
    """

    spread: Annotated[Float[Array, ""] | float, core.Number()] = 0.0
    threshold: Annotated[Float[Array, ""] | float | None, core.Number(0)] = None
    where: Bool[Array, "*shape"] | None = None

    def mask(self, x: Float[Array, "*shape"], tensor: Tensor) -> Bool[Array, "*shape"]:
        """Returns what is kept now."""
        started = self.start(x, tensor)
        assert started.where is not None
        core.check_broadcasts(f"Surgery.where at {tensor.site!r}", started.where, x.shape)
        return jnp.asarray(started.where)

    def kept(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Returns how many that are; all before it has started."""
        del tensor
        return int(np.prod(shape)) if self.where is None else self.where.sum()

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> Surgery:
        """Finds threshold and mask of an array, where they are open."""
        opened: Any = super().start(x, tensor)
        size = jnp.abs(x)
        t = opened.threshold
        if t is None:
            spread = jnp.asarray(self.spread, x.dtype)
            t = jnp.maximum(size.mean() + spread * size.std(), 0)
        where = size >= jnp.asarray(t, x.dtype) if opened.where is None else opened.where
        started: Surgery = replace(opened, threshold=t, where=where)
        return started

    def update_statistics(self, x: Float[Array, "*shape"], tensor: Tensor) -> Surgery:
        """Returns the mask after one look at the weights."""
        started = self.start(x, tensor)
        before = jnp.asarray(started.where)
        # Two thresholds, for a weight near one would come and go with every step (Guo et al., eq.
        # 3).
        size, t = jnp.abs(x), jnp.asarray(started.threshold, x.dtype)
        where = jnp.where(size < 0.9 * t, False, jnp.where(size >= 1.1 * t, True, before))
        return replace(started, where=where)


@core.register_setting
class NofM(Sparse):
    """The n largest of every m inputs: `NofM(2, 4)`.

    Stored are the values that are kept, each with its place in its block, ceil(log2 m) bits, unless
    `stored` is "dense".

    Of every M inputs of an output N are kept, the pattern that hardware multiplies faster. Inputs
    are those that a product sums, in the order of the weight's axes; a block is M of them beside
    each other. Sparse tensor cores take 2 of 4.

    Attributes:
        n: Number of weights of a block that are kept.
        m: The size of a block.

    Raises:
        TypeError, ValueError: They are no positive integers, or n is above m; when called, the
            inputs of a layer can't be divided into blocks.

    References:
        Mishra et al., "Accelerating Sparse Deep Neural Networks", arXiv:2104.08378.
    """

    n: Annotated[int, core.Count()] = core.static(2)
    m: Annotated[int, core.Count()] = core.static(4)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n > self.m:
            raise ValueError(f"NofM keeps n of m, but n = {self.n} is above m = {self.m}.")

    @property
    def pattern(self) -> tuple[int, int]:
        """How many of how many neighbours are kept, by which `integer` stores 2 of 4 packed."""
        return self.n, self.m

    def mask(self, x: Float[Array, "*shape"], tensor: Tensor) -> Bool[Array, "*shape"]:
        """Returns the largest magnitudes of every block; of equals the first."""
        order = self._order(x.shape, tensor)
        moved = jnp.abs(x).transpose(order)
        blocks = moved.reshape(-1, self.m, self._outputs(x.shape, tensor))
        # The argsort of an argsort is the rank; stable, so that of equal weights exactly n stay.
        rank = jnp.argsort(jnp.argsort(-blocks, axis=1, stable=True), axis=1)
        back = np.argsort(order)
        return (rank < self.n).reshape(moved.shape).transpose(back)

    def blocks(self, shape: tuple[int, ...], tensor: Tensor) -> np.ndarray:
        """Returns the number of the block that each entry is in, of the weight's shape."""
        order = self._order(shape, tensor)
        moved = tuple(shape[axis] for axis in order)
        outputs = self._outputs(shape, tensor)
        inputs = np.arange(math.prod(shape) // outputs) // self.m
        number = inputs[:, None] * outputs + np.arange(outputs)
        return number.reshape(moved).transpose(np.argsort(order))

    def kept(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Returns how many weights stay."""
        del tensor
        return math.prod(shape) * self.n // self.m

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the bits of the values, and of their places."""
        if self.stored == "dense":
            return super().storage(shape, tensor)
        # An index inside its block is all that has to be stored beside a value.
        place = math.ceil(math.log2(self.m))
        return self.kept(shape, tensor) * (self.width + place) + self._decoding(shape, tensor)

    def _outputs(self, shape: tuple[int, ...], tensor: Tensor) -> int:
        return math.prod(shape[axis] for axis in tensor.axes("channel"))

    def _order(self, shape: tuple[int, ...], tensor: Tensor) -> tuple[int, ...]:
        """Returns the weight's axes, inputs before outputs."""
        outputs = tensor.axes("channel")
        # A block is what the hardware reads for one output: inputs beside each other, which is why
        # they come first.
        inputs = [axis for axis in range(len(shape)) if axis not in outputs]
        count = math.prod(shape[axis] for axis in inputs)
        if count % self.m:
            raise ValueError(
                f"NofM({self.n}, {self.m}): {tensor.site!r} sums {count} inputs, which are no "
                f"blocks of {self.m}; choose another m there, or None."
            )
        return (*inputs, *outputs)


def largest_mask(x: Float[Array, "*shape"], fraction: Any) -> Bool[Array, "*shape"]:
    """Marks the largest values, a share of all, rounded to a whole number of them."""
    count = jnp.round(jnp.asarray(fraction, jnp.float32) * x.size).astype(jnp.int32)
    # A threshold instead of indices: the fraction may be traced, a shape may not.
    ordered = jnp.sort(x.ravel())
    least = ordered[jnp.clip(x.size - count, 0, x.size - 1)]
    return (x >= least) & (count > 0)
