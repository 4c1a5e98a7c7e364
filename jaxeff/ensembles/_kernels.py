"""Kernels between members, and the field that pushes members apart.

With points `x_i`, one for each member, a distance `D(x, y) = |x - y|_norm ** power` and the kernel
`k = exp(-D / bandwidth)`, the fields are

```text
"wgd"    phi_i = -sum_j grad_i k(x_i, x_j) / sum_j k(x_i, x_j)
"svgd"   phi_i = -sum_j grad_i k(x_i, x_j) / members
```

The first is that of repulsive ensembles (a kernel estimate of a Wasserstein gradient flow), the
second Stein's. Without a bandwidth it is the median distance between different members divided by
the logarithm of their number: the kernels of a member with the others then sum to about one,
whatever the scale of the points.

```python
import jax.numpy as jnp

from jaxeff.ensembles import RBF, repulsion

points = jnp.array([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]])       # a point for each member
field, potential, kernel = repulsion(points, RBF(bandwidth=2.0))
assert field[0, 0] < 0 < field[1, 0]                           # neighbours are pushed apart,
assert jnp.abs(field[2, 0]) < jnp.abs(field[1, 0])             # the distant one hardly
assert jnp.allclose(kernel[0, 1], jnp.exp(-0.5))
```

Sharp edges:
    Members that are the same feel nothing, so they stay the same: start them apart.
    No gradient passes through a bandwidth.

References:
    D'Angelo and Fortuin, "Repulsive Deep Ensembles are Bayesian", arXiv:2106.11642, section 3. Liu
    and Wang, "Stein Variational Gradient Descent", arXiv:1608.04471, the median in section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.core import (
    Choice,
    Number,
    Setting,
    instance_of,
    one_of,
    real_array,
    register_setting,
    static,
    validate,
    widened,
)

METHODS = ("wgd", "svgd")


@register_setting
@dataclass(frozen=True)
class RBF(Setting):
    """The kernel `exp(-|x - y|_norm ** power / bandwidth)`.

    Attributes:
        bandwidth: In units of the distance; None for the median rule.
        norm: 1 or 2.
        power: 2, the usual, or 1: the form of the source, `exp(-|x - y|_p / nu)`.

    Raises:
        ValueError: The bandwidth isn't positive, or a choice is unknown.
    """

    bandwidth: Annotated[Float[Array, ""] | float | None, Number(above=0)] = None
    norm: Annotated[int, Choice(1, 2)] = static(2)
    power: Annotated[int, Choice(1, 2)] = static(2)


class Repulsion(NamedTuple):
    """Repulsion between members.

    Attributes:
        field: The direction in which each is pushed, `[members, dimensions]`.
        potential: Potential of the field; its gradient by one member's point, with the others
            held, is the negative field.
        kernel: The kernel between members, `[members, members]`.
    """

    field: Float[Array, "members dimensions"]
    potential: Float[Array, ""]
    kernel: Float[Array, "members members"]


@validate(points=real_array(2), kernel=instance_of(RBF), method=one_of(*METHODS))
def repulsion(
    points: Float[Array, "members dimensions"], kernel: RBF, method: str = "wgd"
) -> Repulsion:
    """Computes the repulsive field between members.

    Args:
        points: One for each member; no gradient passes through what is returned.
        kernel: The kernel.
        method: "wgd" or "svgd".

    Returns:
        Field, potential and kernel, finite also where members are the same.
    """
    # The field is a direction, not a loss: differentiating it would add second-order terms.
    dtype = points.dtype
    points = widened(jax.lax.stop_gradient(points))
    points = points - points.mean(0, keepdims=True)  # what all have in common would only round
    lengths = _lengths(points, kernel.norm)
    distance = lengths**kernel.power
    width = bandwidth(distance, kernel)
    k = jnp.exp(-distance / width)
    # -grad_i k = (k / width) grad_i D, which points away from the others.
    push = _push(points, k / width, lengths, kernel)
    count = jnp.asarray(len(points), points.dtype)
    # WGD: grad log sum_j k(x_i, x_j), the repulsion scaled by a kernel density estimate at
    # x_i (D'Angelo and Fortuin, section 3); SVGD: the plain mean over members.
    sums = k.sum(1)
    if method == "wgd":
        push, potential = push / sums[:, None], jnp.log(sums).sum()
    else:
        push, potential = push / count, k.sum() / count
    return Repulsion(*(part.astype(dtype) for part in (push, potential, k)))


def bandwidth(distance: Float[Array, "members members"], kernel: RBF) -> Float[Array, ""]:
    """Returns the kernel's bandwidth, or the median rule's without the diagonal's zeros."""
    if kernel.bandwidth is not None:
        return jnp.asarray(kernel.bandwidth, distance.dtype)
    count = len(distance)
    # med / log n: then sum_j k(x_i, x_j) over the other members is about one (Liu and Wang,
    # section 5).
    median = jnp.median(distance[np.triu_indices(count, 1)])
    width = median / jnp.asarray(np.log(count), distance.dtype)
    return jnp.where(width > 0, width, 1)  # identical members


def _lengths(points: Array, norm: int) -> Array:
    """Computes the norms of differences between points."""
    difference = points[:, None] - points[None]
    if norm == 1:
        return jnp.abs(difference).sum(-1)
    # Points carry no gradient, so that the root has none to make NaN on the diagonal.
    return jnp.sqrt((difference**2).sum(-1))


def _push(points: Array, weight: Array, lengths: Array, kernel: RBF) -> Array:
    """Computes `sum_j weight_ij grad_i |x_i - x_j| ** power`."""
    if kernel.norm == 1:
        slope = weight if kernel.power == 1 else 2 * lengths * weight
        # Signs don't factor, so row by row: no array of [members, members, dimensions].
        return jax.lax.map(
            lambda row: (row[1][:, None] * jnp.sign(row[0][None] - points)).sum(0), (points, slope)
        )
    if kernel.power == 2:
        slope = 2 * weight
    else:
        # The gradient of |d| is d / |d|; members that coincide feel nothing instead of NaN.
        slope = jnp.where(lengths > 0, weight / jnp.where(lengths > 0, lengths, 1), 0)
    # sum_j s_ij (x_i - x_j) in two products: no array of [members, members, dimensions].
    return slope.sum(1)[:, None] * points - slope @ points
