"""`repulsive`: a loss whose members push each other apart; it goes around any loss.

```python
import jax
import optax

import jaxeff
from jaxeff.ensembles import Members, Patches, member_loss, repulsive
from jaxeff.nn import small_classifier
from jaxeff.training import fit

key = jax.random.key(0)
f, params, data = small_classifier()
g, heads = jaxeff.ensemble(key, f, params, {"fc2": Members(5)})
loss = repulsive(member_loss(g), g, Patches(7), strength=0.1)
result = fit(key, loss, heads, data, optimizer=optax.adam(1e-2), epochs=1, batch_size=64)
```
"""

import zlib
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.ensembles._ensemble import Ensemble
from jaxeff.ensembles._losses import MemberLoss
from jaxeff.ensembles._samples import Samples, check_samples, check_unlike, chosen
from jaxeff.training import CheckedLoss, Loss, normalized_call

METHODS = ("wgd", "svgd")


@core.register_setting
class RBF(core.Setting):
    """The kernel `exp(-|x - y|_norm ** power / bandwidth)`.

    Attributes:
        bandwidth: In units of the distance; None for the median rule.
        norm: 1 or 2.
        power: 2, the usual, or 1: the form of the thesis, `exp(-|x - y|_p / nu)`.

    Raises:
        ValueError: The bandwidth isn't positive, or a choice is unknown.
    """

    bandwidth: Annotated[Float[Array, ""] | float | None, core.Number(above=0)] = None
    norm: Annotated[int, core.Choice(1, 2)] = core.static(2)
    power: Annotated[int, core.Choice(1, 2)] = core.static(2)


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


@core.validate(
    points=core.real_array(2), kernel=core.instance_of(RBF), method=core.one_of(*METHODS)
)
def repulsion(
    points: Float[Array, "members dimensions"], kernel: RBF, method: str = "wgd"
) -> Repulsion:
    """Computes the repulsive field between members.

    `repulsion` is the field alone. With points `x_i`, one for each member, a distance `D(x, y) = |x
    - y|_norm ** power` and the kernel `k = exp(-D / bandwidth)`, the fields are

    ```text
    "wgd"    phi_i = -sum_j grad_i k(x_i, x_j) / sum_j k(x_i, x_j)
    "svgd"   phi_i = -sum_j grad_i k(x_i, x_j) / members
    ```

    The first is that of repulsive ensembles (a kernel estimate of a Wasserstein gradient flow), the
    second Stein's. Without a bandwidth it is the median distance between different members divided
    by the logarithm of their number: the kernels of a member with the others then sum to about one,
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

    Args:
        points: One for each member; no gradient passes through what is returned.
        kernel: The kernel.
        method: "wgd" or "svgd".

    Returns:
        Field, potential and kernel, finite also where members are the same.
    """
    # The field is a direction, not a loss: differentiating it would add second-order terms.
    dtype = points.dtype
    points = core.widened(jax.lax.stop_gradient(points))
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


class RepulsionOptions(TypedDict, total=False):
    """How `repulsive` pushes; `RepulsiveLoss` has the defaults of its options."""

    kernel: RBF | None
    keyed: bool
    method: str
    moves: str
    mutable: bool
    on: str


@dataclass(frozen=True, eq=False)
class RepulsiveLoss:
    """A loss with repulsion; `jaxeff.training.fit` calls it. The arguments are `repulsive`'s.

    What is pushed apart is a choice:

    - `space="function"`: what members predict for repulsive samples, where they should disagree.
      Logits as they are, or probabilities (`on="probabilities"`). Out-of-domain sets, ambiguous
      images or label-destroying changes of the batch (`jaxeff.ensembles`); never the training data.
    - `space="weights"`: the parameters that have members; no samples.
    - `space=features`: any function `features(params, x) -> [members, batch, ...]`, such as the
      values of a hidden layer; then the batch itself may be the samples (`batch_inputs`), and no
      other data are needed.

    ```text
    LL-POVI     ensemble of last layers, member_loss
    RLL-POVI    the same, repulsive(..., space="weights")
    fLL-POVI    the same, repulsive(..., samples, moves="members", kernel=RBF(power=1))
    ```

    By default the field passes through all layers, so that those which members share learn to tell
    them apart as well; with `moves="members"` it acts on the members' own parameters, as in Klein's
    thesis, and `RBF(power=1)` is its kernel.

    The gradient of the loss by a member's point f_i is that of the wrapped loss minus `strength`
    times the field phi_i, pulled back to the parameters. With `method="svgd"` the gradients of the
    wrapped loss are averaged by the kernel as well, as Stein's method has it.

    Sharp edges:
        The strength is in units of the wrapped loss. The thesis' gamma goes with a log-posterior,
        summed over the data: with a mean over examples, strength = gamma / examples.
        The field grows with the number of samples in a batch, whose kernel is one for all of them.
        The first element of a batch is taken for its inputs.
        Members that are the same feel nothing, so they stay the same: start them apart.
        No gradient passes through a bandwidth.

    References:
        Steger et al., arXiv:2412.15758, equation 4. Wang et al., "Function Space Particle
        Optimization for Bayesian Neural Networks", arXiv:1902.09754. D'Angelo and Fortuin,
        "Repulsive Deep Ensembles are Bayesian", arXiv:2106.11642, section 3. Liu
        and Wang, "Stein Variational Gradient Descent", arXiv:1608.04471, the median in section 5.
    """

    loss: Loss
    g: Ensemble
    samples: Any
    strength: Any
    space: str | Callable[..., Any]
    _: KW_ONLY
    on: str = "outputs"
    kernel: RBF | None = None
    method: str = "wgd"
    moves: str = "all"
    keyed: bool = False
    mutable: bool = False

    def __call__(self, key: Any, params: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        """Computes the loss as `jaxeff.training.make_epoch` calls it; the potential is a metric."""
        # A key of its own, so that the wrapped loss draws what it would draw alone.
        at = jax.random.fold_in(key, zlib.crc32(b"repulsion"))
        points = self.points(at, params, state, batch[0])
        kernel = RBF() if self.kernel is None else self.kernel
        repelled = repulsion(points, kernel, self.method)
        if self.method == "svgd":
            value, (metrics, state) = self._averaged(repelled, key, params, state, batch, step)
        else:
            value, (metrics, state) = self.loss(key, params, state, batch, step)
        strength = jnp.asarray(self.strength, points.dtype)
        # The optimizer descends: the gradient by a member's point is minus the field that
        # pushes it. The points' own derivative carries it on to the parameters.
        pushed = _with_gradient(repelled.potential, -repelled.field, points)
        return value + strength * pushed, ({**metrics, "repulsion": repelled.potential}, state)

    def points(self, key: Any, params: Any, state: Any, x: Any) -> Array:
        """Computes the points that are pushed apart, one row for each member."""
        if self.space == "weights":
            leaves = self.g.member_leaves(params)
            return jnp.concatenate([leaf.reshape(self.g.count, -1) for leaf in leaves], axis=1)
        if self.moves == "members":
            params = self._held(params)
        sample_key, call_key = jax.random.split(key)
        samples = chosen(sample_key, self.samples, x)
        if callable(self.space):
            values = self.space(params, samples)
        else:
            call = normalized_call(self.g, keyed=self.keyed, mutable=self.mutable)
            values, _ = call(call_key, params, state, samples)
            values = jax.nn.softmax(values) if self.on == "probabilities" else values
        return values.reshape(self.g.count, -1)

    def _held(self, params: Any) -> Any:
        """Stops the gradient by what members share."""
        leaves, structure = jax.tree.flatten(params)
        held = [
            jax.lax.stop_gradient(leaf) if axis is None else leaf
            for leaf, axis in zip(leaves, self.g.leaf_axes(params), strict=True)
        ]
        return jax.tree.unflatten(structure, held)

    def check(self, key: Any, params: Any, state: Any, data: Any, batch_size: int) -> None:
        """Checks that data fit the loss.

        Raises:
            ValueError: Repulsive samples are training inputs.
        """
        if isinstance(self.loss, CheckedLoss):
            self.loss.check(key, params, state, data, batch_size)
        if self.space == "function":
            check_unlike(self.samples, data[0], batch_size)

    def _averaged(
        self, repelled: Repulsion, key: Any, params: Any, state: Any, batch: Any, step: Any
    ) -> tuple[Any, Any]:
        """Computes the loss with Stein's average of the members' gradients."""
        # SVGD: each member follows the kernel-weighted mean of all members' gradients, sum_j k_ij
        # grad_j / n. Only the gradient changes: the value stays that of the loss.
        mean = repelled.kernel / self.g.count
        # The gradient is computed here and averaged: no other may pass to the parameters.
        held = jax.lax.stop_gradient((params, state))

        def averaged(gradient: Array) -> Array:
            return jnp.tensordot(mean.astype(gradient.dtype), gradient, 1)

        if self.space == "weights":

            def objective(of_params: Any) -> tuple[Any, Any]:
                return self.loss(key, of_params, held[1], batch, step)

            (value, aux), gradients = jax.value_and_grad(objective, has_aux=True)(held[0])
            axes = self.g.leaf_axes(params)
            leaves, structure = jax.tree.flatten(gradients)
            leaves = [
                leaf if axis is None else averaged(leaf)
                for leaf, axis in zip(leaves, axes, strict=True)
            ]
            return _with_gradient(value, jax.tree.unflatten(structure, leaves), params), aux
        assert isinstance(self.loss, MemberLoss)
        outputs, state = self.loss.outputs(key, params, state, batch[0])
        value, gradient = jax.value_and_grad(self.loss.of_outputs)(
            jax.lax.stop_gradient(outputs), batch
        )
        metrics = self.loss.metrics(outputs, batch)
        return _with_gradient(value, averaged(gradient), outputs), (metrics, state)


@core.validate(
    loss=core.function_of_form("loss(key, params, state, batch, step)"),
    strength=core.any_of(core.function_of_form("strength(step)"), core.non_negative),
    kernel=core.instance_of(RBF),
    samples=None,
)
@core.forwards(RepulsiveLoss, RepulsionOptions)
def repulsive(
    loss: Loss,
    g: Ensemble,
    samples: Samples | None = None,
    *,
    strength: Any,
    space: str | Callable[..., Any] = "function",
    **options: Unpack[RepulsionOptions],
) -> RepulsiveLoss:
    """Adds repulsion between members to a loss.

    Args:
        loss: Any loss of the form that `jaxeff.training.fit` takes, such as `member_loss(g)`.
        g: Result of `ensemble`.
        samples: Repulsive samples: a set of inputs `[n, ...]`, of which every step draws as many as
            its batch has, or a function `samples(key, x)` of a batch's inputs.
        strength: Factor of the repulsion, at least 0; it may be traced.
        space: Space in which members are pushed apart: "function", "weights", or a function
            `features(params, x) -> [members, batch, ...]`.
        **options: `on`, in function space, is "outputs" as they are (logits), the default, or
            "probabilities". `kernel`, that between members; an RBF kernel with the median rule if
            None. `method`: "wgd", the default, or "svgd". `moves`, the parameters that the
            repulsion moves: "all", the default, or those of "members" alone. `keyed`: whether `g`
            takes a random key first. `mutable`: whether `g` takes a state after its parameters;
            repulsion doesn't change it.

    Returns:
        The loss, with the repulsive potential as its metric `repulsion`.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: There is one member, samples are missing, empty or superfluous, a choice is
            unknown, or the strength negative; in `fit`: samples are training inputs.
    """
    _check_members(g)
    repelling = RepulsiveLoss(loss, g, samples, strength, space, **options)
    if not callable(space):
        core.check_choice("repulsive: space", space, ("function", "weights"))
    core.check_choice("repulsive: on", repelling.on, ("outputs", "probabilities"))
    core.check_choice("repulsive: method", repelling.method, METHODS)
    core.check_choice("repulsive: moves", repelling.moves, ("all", "members"))
    core.check_number("repulsive: strength", strength, 0)
    if repelling.method == "svgd":
        _check_for_svgd(loss, space)
    check_samples(samples, wanted=space != "weights")
    return repelling


def _check_members(g: Any) -> None:
    if not isinstance(g, Ensemble):
        raise TypeError(
            f"repulsive: g must be what jaxeff.ensemble returned, not a {type(g).__name__}"
        )
    if g.count < 2:
        named = sorted({name.rpartition("/")[0] or name for name in g.chosen})
        raise ValueError(
            f"repulsive: {', '.join(named)} has one member, which nothing can repel: give it "
            "Members(2) or more, or train it with the loss alone"
        )


def _check_for_svgd(loss: Any, space: Any) -> None:
    if callable(space):
        raise ValueError(
            'repulsive: method="svgd" averages gradients in the space that members are pushed '
            'apart in, "function" or "weights"; of features choose "wgd"'
        )
    if space == "function" and not isinstance(loss, MemberLoss):
        raise TypeError(
            'repulsive: method="svgd" in function space has to know the loss of outputs: give '
            f"member_loss(g), not a {type(loss).__name__}"
        )


def _with_gradient(value: Any, gradient: Any, at: Any) -> Any:
    """Makes a value with a given gradient at `at`."""
    products = jax.tree.map(
        lambda slope, x: jnp.vdot(jax.lax.stop_gradient(slope), x), gradient, at
    )
    # The dot product with a fixed slope has that slope as its gradient; its own value is
    # taken out again.
    total = sum(jax.tree.leaves(products))
    return jax.lax.stop_gradient(value - total) + total
