"""Repulsive samples: inputs for which members should disagree.

A function `samples(key, x)` of a batch's inputs makes them from the batch: its patches, pixels or
statistics in another order, so that no label is left in them. `Patches`, `ShuffledPixels`,
`NoiseImages` and `Interval` are such functions; an array of out-of-domain or ambiguous inputs is
the other kind, which every step draws from.

Where the samples may be the batch itself, as for repulsion of a hidden layer, they are
`batch_inputs`:

```python
import jax
import jax.numpy as jnp

from jaxeff.ensembles import Patches, batch_inputs

x = jnp.arange(64.0).reshape(1, 8, 8, 1)
shuffled = Patches(4)(jax.random.key(0), x)                    # four squares in another order
assert jnp.array_equal(jnp.sort(shuffled.ravel()), x.ravel())
assert batch_inputs(jax.random.key(0), x) is x
```
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import Count, check_count, check_number, check_params, input_batch, validate

Samples: TypeAlias = Callable[[Any, Any], Any] | Any
"""A set of inputs, or a function of a key and a batch's inputs."""

_MOST_ALIKE = 0.1


@dataclass(frozen=True)
class Patches:
    """The images of the batch, cut into squares that are put together in another order.

    Sharp edges:
        28 pixels are no multiple of 16 or 8: images are then continued by their border up to the
        next multiple, cut, and cropped to their middle again.
        Of four patches one image in 24 comes out as it was.

    Attributes:
        size: Pixels of a square's side.
    """

    size: Annotated[int, Count()]

    def __post_init__(self) -> None:
        check_count("Patches.size", self.size)

    def __call__(
        self, key: PRNGKeyArray, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch height width channels"]:
        """Shuffles the patches of images.

        Raises:
            ValueError: They are no images, or a single patch.
        """
        _check_images("Patches", x)
        sides = x.shape[1:3]
        missing = [-side % self.size for side in sides]
        if all(side <= self.size for side in sides):
            raise ValueError(
                f"Patches({self.size}) of images {sides[0]}×{sides[1]} is one patch, the image "
                "itself: give a smaller size"
            )
        before = [n // 2 for n in missing]
        pads = [(b, n - b) for b, n in zip(before, missing, strict=True)]
        # By the border's values: zeros would mark the patches that come from there.
        padded = jnp.pad(x, ((0, 0), *pads, (0, 0)), mode="edge")
        n, h, w, c = padded.shape
        rows, columns = h // self.size, w // self.size
        cut = padded.reshape(n, rows, self.size, columns, self.size, c).transpose(0, 1, 3, 2, 4, 5)
        cut = cut.reshape(n, rows * columns, self.size, self.size, c)
        cut = jax.vmap(jax.random.permutation)(jax.random.split(key, n), cut)
        cut = cut.reshape(n, rows, columns, self.size, self.size, c).transpose(0, 1, 3, 2, 4, 5)
        joined = cut.reshape(padded.shape)
        top, left = before
        return joined[:, top : top + sides[0], left : left + sides[1]]


@dataclass(frozen=True)
class ShuffledPixels:
    """The images of the batch with all pixels in another order; channels stay together."""

    def __call__(
        self, key: PRNGKeyArray, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch height width channels"]:
        """Shuffles the pixels of images."""
        _check_images("ShuffledPixels", x)
        pixels = x.reshape(len(x), -1, x.shape[-1])
        return jax.vmap(jax.random.permutation)(jax.random.split(key, len(x)), pixels).reshape(
            x.shape
        )


@dataclass(frozen=True)
class NoiseImages:
    """Normal noise with the batch's mean and standard deviation."""

    def __call__(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Draws inputs of the batch's shape."""
        return x.mean() + x.std() * jax.random.normal(key, x.shape, x.dtype)


@dataclass(frozen=True)
class Interval:
    """Inputs spread evenly between bounds: where a regression should say that it doesn't know.

    Attributes:
        low: Lower bound of every feature.
        high: Upper bound.
        count: Number of inputs; as many as the batch has if None.
    """

    low: float
    high: float
    count: int | None = None

    def __post_init__(self) -> None:
        check_number("Interval.low", self.low)
        check_number("Interval.high", self.high, above=self.low)
        if self.count is not None:
            check_count("Interval.count", self.count)

    def __call__(self, key: PRNGKeyArray, x: Float[Array, "..."]) -> Array:
        """Draws inputs like those of the batch."""
        shape = x.shape if self.count is None else (self.count, *x.shape[1:])
        return jax.random.uniform(key, shape, x.dtype, self.low, self.high)


@validate(x=input_batch)
def batch_inputs(key: PRNGKeyArray, x: Any) -> Any:
    """Returns the batch itself, for repulsion of features; predictions for it should agree."""
    del key
    return x


def chosen(key: PRNGKeyArray, samples: Any, x: Any) -> Any:
    """Chooses the repulsive samples of one step: drawn from a set, or made from the batch."""
    if callable(samples):
        return samples(key, x)
    size, count = len(jax.tree.leaves(samples)[0]), len(jax.tree.leaves(x)[0])
    rows = jax.random.permutation(key, size)[: min(size, count)]
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], samples)


def check_samples(samples: Any, *, wanted: bool) -> None:
    """Checks repulsive samples as far as possible without a batch."""
    if samples is None:
        if wanted:
            raise ValueError(
                "repulsive: in function space members are pushed apart on samples: give inputs "
                'that are no training data, or a function such as Patches(8); space="weights" '
                "needs none"
            )
        return
    if not wanted:
        raise ValueError(
            'repulsive: space="weights" pushes parameters apart and has no use for samples; leave '
            'them out, or choose space="function"'
        )
    if callable(samples):
        if isinstance(samples, type):
            raise TypeError(f"repulsive: samples is a class, write {samples.__name__}(...)")
        return
    check_params("repulsive: samples", samples)
    leaves = jax.tree.leaves(samples)
    if not leaves or not all(np.ndim(leaf) and len(leaf) for leaf in leaves):
        raise ValueError(
            "repulsive: the samples are empty; give inputs [n, ...] that are no training data, or "
            "a function of the batch such as Patches(8)"
        )


def check_unlike(samples: Samples, inputs: Any, batch_size: int) -> None:
    """Checks that repulsive samples are no training inputs."""
    where = np.asarray(jax.tree.leaves(inputs)[0])
    if callable(samples):
        with jax.ensure_compile_time_eval():
            batch = jax.tree.map(lambda leaf: jnp.asarray(leaf[:batch_size]), inputs)
            unlike = samples(jax.random.key(0), batch)
        where = where[:batch_size]
    else:
        unlike = samples
    rows = np.asarray(jax.tree.leaves(unlike)[0], where.dtype)
    if rows.shape[1:] != where.shape[1:]:
        raise ValueError(
            f"repulsive: the samples have shape {rows.shape}, inputs of the training data "
            f"{where.shape}: they must agree but for the number of examples"
        )
    # By bytes: a look-up per sample instead of a comparison with all of the data.
    seen = {row.tobytes() for row in where}
    alike = sum(row.tobytes() in seen for row in rows)
    if alike > _MOST_ALIKE * len(rows):
        raise ValueError(
            f"repulsive: {alike} of {len(rows)} repulsive samples are training inputs, for which "
            "members are to agree; give out-of-domain inputs or ones without a label in them, such "
            "as Patches(8)"
        )


def _check_images(name: str, x: Any) -> None:
    if x.ndim != 4:
        raise ValueError(
            f"{name} takes images [batch, height, width, channels], not {list(x.shape)}"
        )
