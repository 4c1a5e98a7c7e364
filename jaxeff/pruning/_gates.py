"""What is added to training so that channels can be removed after it: gates, and penalties.

`HardConcrete` and `DropoutGates` multiply channels by gates that are learnt with the parameters:
they draw a `Plan` of numbers (`_plan`) for each step, and end as a plan of booleans. `group_lasso`
and `slimming` are terms of a loss that make channels small, by all their weights or by the scales
of normalizations; a gradient step never makes them zero, so `prune_plan` with a score (`l2`,
`batch_norm_scale`) removes the smallest.

Sharp edges:
    One gate is drawn for a whole batch, as the papers do; per weight, and per example by local
    reparametrization, it is `jaxeff.pruning.sparsity.variational_dropout`.
    A parameter that two groups share counts for both: the expectation is an upper bound.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff import core
from jaxeff.pruning._plan import Plan
from jaxeff.pruning.dependencies import Channels, Group, PlanError, leaf_path, membership
from jaxeff.pruning.scores import scales

TAU, GAMMA, ZETA = 2 / 3, -0.1, 1.1
"""Temperature, and the ends of the interval that a gate is stretched to before it is clipped."""
_SHIFT = TAU * math.log(-GAMMA / ZETA)


@core.register_setting
@dataclass(frozen=True, eq=False)
class HardConcrete(core.Setting):
    """Gates in [0, 1] on groups of channels, often exactly 0 or 1, learnt by gradients.

    For a location phi and uniform u, a gate is

    ```text
    z = clip((ZETA - GAMMA) sigmoid((log(u / (1 - u)) + phi) / TAU) + GAMMA, 0, 1)
    ```

    which isn't zero with probability sigmoid(phi - TAU log(-GAMMA / ZETA)), where TAU = 2/3, GAMMA
    = -0.1 and ZETA = 1.1. So the expected number of what is left, `expected`, is differentiable,
    and a term of the loss; n_g is how many parameters a channel of group g takes along:

    ```text
    E |.|_0 = sum_g n_g sum_c P(z_gc > 0)
    ```

    ```python
    import jax
    import optax

    from jaxeff.nn import small_classifier
    from jaxeff.pruning import channels, masked, pruned
    from jaxeff.pruning.gates import HardConcrete
    from jaxeff.training import fit, stateless

    f, params, (x, y) = small_classifier()
    gates = HardConcrete.start(channels(f, params, x), open=0.9)

    def loss(key, learnt, batch):
        params, gates = learnt
        x, y = batch
        logits = masked(f, gates.draw(key))(params, x)
        fit = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return fit + 1e-4 * gates.expected()

    run = fit(jax.random.key(0), stateless(loss), (params, gates), (x, y),
              optimizer=optax.adam(1e-2), epochs=1, batch_size=64)
    params, gates = run.params
    soft = gates.deterministic()                        # numbers,
    plan = soft.above(0)                                # and the channels that they keep
    g, small = pruned(masked(f, soft), plan), plan.shrink(params)
    ```

    The last line has the smaller model with its gates in it; `pruned(f, plan)` is the one without,
    to be trained on.

    References:
        Louizos et al., "Learning Sparse Neural Networks through L0 Regularization",
        arXiv:1712.01312, section 2, eqs. 10 to 13.

    Attributes:
        location: phi by group, `[channels]`: what is learnt.
        channels: The groups that it is about.
    """

    location: dict[str, Any]
    channels: Channels = core.static()

    @classmethod
    def start(
        cls, channels: Channels, *, open: float = 0.9, groups: Collection[str] | None = None
    ) -> HardConcrete:
        """Makes gates that are open with a probability.

        Args:
            channels: The model's groups.
            open: The probability, above 0 and below 1.
            groups: The names of the groups with gates; all free ones without them.

        Raises:
            PlanError: A group can't lose channels.
            KeyError: There is no such group.
        """
        core.check_number("HardConcrete.start: open", open, above=0, below=1)
        phi = gate_location(open)
        chosen = gated_groups(channels, groups)
        return cls({g.name: jnp.full(g.size, phi, jnp.float32) for g in chosen}, channels)

    def draw(self, key: PRNGKeyArray) -> Plan:
        """Draws the gates of a step; a group's depend on the key and its name alone."""
        drawn = {
            name: hard_concrete(group_key(key, name), phi) for name, phi in self.location.items()
        }
        return Plan(drawn, self.channels)

    def deterministic(self) -> Plan:
        """Returns the gates that are used after training, with nothing drawn."""
        return Plan(
            {n: deterministic_gates(phi) for n, phi in self.location.items()}, self.channels
        )

    @property
    def openness(self) -> dict[str, Float[Array, " channels"]]:
        """The probability of every channel that its gate isn't closed."""
        return {name: open_probability(phi) for name, phi in self.location.items()}

    def expected(self, of: str = "parameters") -> Float[Array, ""]:
        """Returns how much is expected to be left, which a loss adds times a price.

        Args:
            of: "parameters", or "channels" that count one each.
        """
        core.check_choice("HardConcrete.expected: of", of, ("parameters", "channels"))
        total = jnp.zeros((), jnp.float32)
        for name, probability in self.openness.items():
            # The probability is a closed form of the location: its gradient needs no draw.
            size = self.channels[name].parameters if of == "parameters" else 1
            total = total + size * probability.sum().astype(jnp.float32)
        return total


def open_probability(phi: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes the probability that a gate isn't zero (Louizos et al., eq. 12)."""
    return jax.nn.sigmoid(phi - _SHIFT)


def gate_location(probability: float) -> float:
    """Computes the location of gates that are nonzero with a probability, in (0, 1)."""
    return math.log(probability / (1 - probability)) + _SHIFT


def hard_concrete(key: PRNGKeyArray, phi: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Draws a gate in [0, 1] for each location (eqs. 10 and 11)."""
    # Never zero, and by log1p: the logit is finite, and precise for small u.
    u = jax.random.uniform(key, phi.shape, phi.dtype, jnp.finfo(phi.dtype).tiny)
    s = jax.nn.sigmoid((jnp.log(u) - jnp.log1p(-u) + phi) / TAU)
    return jnp.clip(s * (ZETA - GAMMA) + GAMMA, 0, 1)


def deterministic_gates(phi: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes the gate at test time, without a draw (eq. 13)."""
    return jnp.clip(jax.nn.sigmoid(phi) * (ZETA - GAMMA) + GAMMA, 0, 1)


def gated_groups(channels: Channels, groups: Collection[str] | None) -> list[Group]:
    """Returns the groups of some names, or all that can lose channels.

    Raises:
        KeyError: There is none of a name.
        PlanError: A group can't lose channels.
    """
    if groups is None:
        return list(channels.free)
    chosen = [channels[name] for name in groups]
    for group in chosen:
        if group.held:
            raise PlanError(f"{group.name!r} can't lose channels: {group.held[0]}")
    return chosen


def group_key(key: PRNGKeyArray, name: str) -> PRNGKeyArray:
    """Returns a group's own key."""
    # By name, not by position: other groups may come and go.
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


THRESHOLD = 3.0
"""Beyond this log alpha a channel or weight is removed (Molchanov et al., section 5)."""

_K1, _K2, _K3 = 0.63576, 1.87320, 1.48695


@core.register_setting
@dataclass(frozen=True, eq=False)
class DropoutGates(core.Setting):
    """Gaussian dropout on groups of channels, at rates that are learnt.

    A channel is multiplied by z ~ N(mu, alpha mu^2). With the improper prior p(|z|) ~ 1 / |z| the
    divergence from it depends on alpha alone, up to a constant; a channel whose log alpha grows
    beyond 3 (a dropout rate above .95) carries noise, and is removed.

    ```python
    import jax
    import optax

    from jaxeff.nn import small_classifier
    from jaxeff.pruning import channels, masked
    from jaxeff.pruning.gates import DropoutGates
    from jaxeff.training import fit, stateless

    f, params, data = small_classifier()
    gates = DropoutGates.start(channels(f, params, data[0]))

    def loss(key, learnt, batch):
        params, gates = learnt
        x, y = batch
        logits = masked(f, gates.draw(key))(params, x)
        fit = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return fit + gates.penalty() / len(data[1])

    run = fit(jax.random.key(0), stateless(loss), (params, gates), data,
              optimizer=optax.adam(1e-2), epochs=1, batch_size=64)
    params, gates = run.params
    plan = gates.plan()
    ```

    References:
        Molchanov et al., "Variational Dropout Sparsifies Deep Neural Networks", arXiv:1701.05369;
        of groups Louizos et al., "Bayesian Compression for Deep Learning", arXiv:1705.08665,
        section 3.1.

    Attributes:
        mean: mu by group, `[channels]`.
        log_variance: The logarithm of alpha mu^2, learnt in the place of alpha: its gradient has
            less variance (section 4.1).
        channels: The groups that it is about.
    """

    mean: dict[str, Any]
    log_variance: dict[str, Any]
    channels: Channels = core.static()

    @classmethod
    def start(
        cls, channels: Channels, *, log_alpha: float = -5.0, groups: Collection[str] | None = None
    ) -> DropoutGates:
        """Makes gates around one.

        Args:
            channels: The model's groups.
            log_alpha: The rate that all channels start with, as log alpha.
            groups: The names of the groups with gates; all free ones without them.

        Raises:
            PlanError: A group can't lose channels.
            KeyError: There is no such group.
        """
        core.check_number("DropoutGates.start: log_alpha", log_alpha)
        sizes = {g.name: g.size for g in gated_groups(channels, groups)}
        return cls(
            {name: jnp.ones(n, jnp.float32) for name, n in sizes.items()},
            {name: jnp.full(n, log_alpha, jnp.float32) for name, n in sizes.items()},
            channels,
        )

    @property
    def log_alpha(self) -> dict[str, Float[Array, " channels"]]:
        """The logarithm of every channel's rate alpha."""
        return {name: log_rate(self.mean[name], v) for name, v in self.log_variance.items()}

    def draw(self, key: PRNGKeyArray) -> Plan:
        """Draws the gates of a step; a group's depend on the key and its name alone."""
        drawn = {}
        for name, mean in self.mean.items():
            noise = jax.random.normal(group_key(key, name), mean.shape, mean.dtype)
            # z = mu + sqrt(alpha mu^2) n: reparametrized, so mean and rate have gradients.
            drawn[name] = mean + jnp.exp(0.5 * self.log_variance[name]) * noise
        return Plan(drawn, self.channels)

    def deterministic(self, threshold: float = THRESHOLD) -> Plan:
        """Returns the means as gates, zero where log alpha is beyond the threshold."""
        gates = {n: jnp.where(a < threshold, self.mean[n], 0.0) for n, a in self.log_alpha.items()}
        return Plan(gates, self.channels)

    def plan(self, threshold: float = THRESHOLD) -> Plan:
        """Returns the plan that keeps the channels whose log alpha is below the threshold."""
        keep = {name: alpha < threshold for name, alpha in self.log_alpha.items()}
        return Plan(keep, self.channels)

    def penalty(self) -> Float[Array, ""]:
        """Returns the divergence of all gates, to be divided by the number of training examples."""
        total = jnp.zeros((), jnp.float32)
        for alpha in self.log_alpha.values():
            total = total + dropout_divergence(alpha).sum()
        return total


def dropout_divergence(log_alpha: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes the divergence from the log-uniform prior by log alpha; zero as alpha grows.

    ```text
    k1 - k1 sigmoid(k2 + k3 log alpha) + log(1 + 1 / alpha) / 2
    ```

    This is Molchanov et al.'s approximation (eq. 14), within a hundredth of the integral.
    """
    # k1 - k1 sigmoid(z) = k1 sigmoid(-z), and log(1 + 1/alpha) = softplus(-log alpha): neither
    # cancels where the divergence is small.
    return _K1 * jax.nn.sigmoid(-_K2 - _K3 * log_alpha) + 0.5 * jax.nn.softplus(-log_alpha)


def log_rate(
    mean: Float[Array, "*shape"], log_variance: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """Computes log alpha of a mean and a variance; finite with finite gradient at zero."""
    # A mean of zero has an infinite rate: the term added keeps its gradient finite.
    epsilon = jnp.asarray(1e-8, mean.dtype)
    return log_variance - jnp.log(epsilon + jnp.square(mean))


@core.validate(channels=core.instance_of(Channels))
def group_lasso(params: Any, channels: Channels) -> Float[Array, ""]:
    """Returns the l2 norms of what every channel takes along, weighed by the roots of their sizes.

    ```text
    sum_g sqrt(n_g) sum_c |w_gc|_2
    ```

    ```python
    import jax

    from jaxeff.nn import small_classifier
    from jaxeff.pruning import channels, group_lasso
    from jaxeff.training import cross_entropy

    f, params, (x, y) = small_classifier()
    groups, unpenalized = channels(f, params, x), cross_entropy(f)

    def loss(key, params, state, batch, step):
        value, state = unpenalized(key, params, state, batch, step)
        return value + 1e-3 * group_lasso(params, groups), state

    graded = jax.value_and_grad(loss, 1, has_aux=True)
    (value, _), gradient = graded(jax.random.key(0), params, None, (x, y), 0)
    ```

    Args:
        params: Parameters; held groups don't count.
        channels: The model's groups.

    Returns:
        A scalar; its gradient is zero where a norm is.

    Source: Yuan and Lin, J. R. Stat. Soc. B 68 (2006), eq. 2.1; for networks Wen et al., "Learning
    Structured Sparsity in Deep Neural Networks", arXiv:1608.03665, eq. 3.
    """
    leaves = _by_path(params, channels)
    total = jnp.zeros((), jnp.float32)
    for group, dimension in zip(channels, channels.dimensions, strict=True):
        if group.held:
            continue
        squares = jnp.zeros(group.size, jnp.float32)
        for member in group.members:
            if member.path not in leaves:
                continue
            index = membership(channels.leaves[member.path][member.axis], dimension)
            values = jnp.square(leaves[member.path].astype(jnp.float32))
            earlier_axes = _earlier_axes(group.members, member)
            if group.size > 1 and earlier_axes:
                # An entry that two axes of a kernel put into one channel counts once.
                values = jnp.where(_counted(channels, member, earlier_axes, dimension), 0.0, values)
            along_axis = values.sum([i for i in range(values.ndim) if i != member.axis])
            # Another part of a concatenation is in no channel of the group: -1.
            inside = np.flatnonzero(index >= 0)
            squares = squares.at[index[inside]].add(along_axis[inside])
        # The root of zero has an infinite slope: a removed channel gets a gradient of zero instead.
        nonzero = squares > 0
        norms = jnp.where(nonzero, jnp.sqrt(jnp.where(nonzero, squares, 1.0)), 0.0)
        # sqrt(n_g) makes large and small channels comparable (Yuan and Lin, eq. 2.1).
        total = total + np.float32(np.sqrt(group.parameters)) * norms.sum()
    return total


@core.validate(channels=core.instance_of(Channels))
def slimming(params: Any, channels: Channels) -> Float[Array, ""]:
    """Returns the magnitudes of all scales of normalizations: the l1 penalty of network slimming.

    ```python
    import jax
    from flax import nnx

    from jaxeff import functional
    from jaxeff.pruning import channels, slimming

    rngs = nnx.Rngs(0)
    layers = nnx.Linear(3, 5, rngs=rngs), nnx.LayerNorm(5, rngs=rngs), nnx.relu
    normalized, params = functional(nnx.Sequential(*layers, nnx.Linear(5, 2, rngs=rngs)))
    groups = channels(normalized, params, jax.numpy.ones((4, 3)))
    assert slimming(params, groups) == 5                     # five scales, which start at one
    ```

    Source: Liu et al., "Learning Efficient Convolutional Networks through Network Slimming",
    arXiv:1708.06519, eq. 1.

    Raises:
        ValueError: There are none.
    """
    leaves = _by_path(params, channels)
    paths = sorted(scales(channels.program) & leaves.keys())
    if not paths:
        raise ValueError(
            "slimming needs the scales of normalizations, and the model has none; group_lasso "
            "takes any model."
        )
    total = jnp.zeros((), jnp.float32)
    for path in paths:
        total = total + jnp.abs(leaves[path].astype(jnp.float32)).sum()
    return total


def _by_path(params: Any, channels: Channels) -> Mapping[str, Any]:
    named = jax.tree_util.tree_leaves_with_path(params)
    by_path = {channels.find(leaf_path(path)): leaf for path, leaf in named}
    return {path: leaf for path, leaf in by_path.items() if path is not None}


def _earlier_axes(members: Any, member: Any) -> list[int]:
    """Lists the axes before a member's, of the same parameter, that have the group's channels."""
    return [m.axis for m in members if m.path == member.path and m.axis < member.axis]


def _counted(
    channels: Channels, member: Any, earlier_axes: Sequence[int], dimension: Any
) -> np.ndarray:
    """Marks entries of a parameter that an earlier axis has put into the same channel already."""
    axes = channels.leaves[member.path]

    def channel_along(axis: int) -> np.ndarray:
        shape = [-1 if i == axis else 1 for i in range(len(axes))]
        return membership(axes[axis], dimension).reshape(shape)

    channel = channel_along(member.axis)
    counted = np.zeros(tuple(axis.size for axis in axes), bool)
    for axis in earlier_axes:
        counted |= (channel_along(axis) == channel) & (channel >= 0)
    return counted
