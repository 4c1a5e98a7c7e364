"""`DropoutGates`: Gaussian dropout on channels whose rates are learnt; the noisy ones go.

Every channel is multiplied by z ~ N(mu, alpha mu^2). With the improper prior p(|z|) ~ 1 / |z| the
divergence from it depends on alpha alone, up to a constant; a channel whose log alpha grows beyond
3 (a dropout rate above .95) carries noise, and is removed.

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

The divergence is Molchanov et al.'s approximation (eq. 14), within a hundredth of the integral.

Sharp edge: a gate is drawn once for a batch; per weight, and per example by local
reparametrization, it is `jaxeff.pruning.sparsity.variational_dropout`.

Sources: Molchanov et al., "Variational Dropout Sparsifies Deep Neural Networks", arXiv:1701.05369;
of groups, Louizos et al., "Bayesian Compression for Deep Learning", arXiv:1705.08665, section 3.1.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import Setting, check_number, register_setting, static
from jaxeff.pruning.dependencies import Channels
from jaxeff.pruning.gates._hard_concrete import gated_groups, group_key
from jaxeff.pruning.shrinking import Plan

THRESHOLD = 3.0
"""Beyond this log alpha a channel or weight is removed (section 5)."""

_K1, _K2, _K3 = 0.63576, 1.87320, 1.48695


def dropout_divergence(log_alpha: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns the divergence from the log-uniform prior, of every log alpha; zero as alpha grows.

    ```text
    k1 - k1 sigmoid(k2 + k3 log alpha) + log(1 + 1 / alpha) / 2
    ```
    """
    # k1 - k1 sigmoid(z) = k1 sigmoid(-z), and log(1 + 1/alpha) = softplus(-log alpha): neither
    # cancels where the divergence is small.
    return _K1 * jax.nn.sigmoid(-_K2 - _K3 * log_alpha) + 0.5 * jax.nn.softplus(-log_alpha)


@register_setting
@dataclass(frozen=True, eq=False)
class DropoutGates(Setting):
    """Gaussian gates on groups of channels.

    Attributes:
        mean: mu by group, `[channels]`.
        log_variance: The logarithm of alpha mu^2, learnt in the place of alpha: its gradient has
            less variance (section 4.1).
        channels: The groups that it is about.
    """

    mean: dict[str, Any]
    log_variance: dict[str, Any]
    channels: Channels = static()

    @classmethod
    def start(
        cls, channels: Channels, *, log_alpha: float = -5.0, groups: Collection[str] | None = None
    ) -> DropoutGates:
        """Makes gates around one.

        Args:
            channels: The model's groups.
            log_alpha: The first rates.
            groups: The names of the groups with gates; all free ones without them.

        Raises:
            PlanError: A group can't lose channels.
            KeyError: There is no such group.
        """
        check_number("DropoutGates.start: log_alpha", log_alpha)
        sizes = {g.name: g.size for g in gated_groups(channels, groups)}
        return cls(
            {name: jnp.ones(n, jnp.float32) for name, n in sizes.items()},
            {name: jnp.full(n, log_alpha, jnp.float32) for name, n in sizes.items()},
            channels,
        )

    @property
    def log_alpha(self) -> dict[str, Float[Array, " channels"]]:
        """The rates."""
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
        """Returns the means, zero where a rate is beyond the threshold."""
        keep = {n: jnp.where(a < threshold, self.mean[n], 0.0) for n, a in self.log_alpha.items()}
        return Plan(keep, self.channels)

    def plan(self, threshold: float = THRESHOLD) -> Plan:
        """Returns the channels whose rates are below the threshold."""
        keep = {name: alpha < threshold for name, alpha in self.log_alpha.items()}
        return Plan(keep, self.channels)

    def penalty(self) -> Float[Array, ""]:
        """Returns the loss's penalty, divided by the number of training examples."""
        total = jnp.zeros((), jnp.float32)
        for alpha in self.log_alpha.values():
            total = total + dropout_divergence(alpha).sum()
        return total


def log_rate(
    mean: Float[Array, "*shape"], log_variance: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """Computes log alpha of a mean and a variance; finite with finite gradient at zero."""
    # A mean of zero has an infinite rate: the term added keeps its gradient finite.
    least = jnp.asarray(1e-8, mean.dtype)
    return log_variance - jnp.log(least + jnp.square(mean))


__all__ = ["THRESHOLD", "DropoutGates", "dropout_divergence", "log_rate"]
