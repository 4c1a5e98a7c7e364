"""`HardConcrete`: gates on channels that training opens or closes, at a price for open ones.

Every channel has a gate z in [0, 1] that is exactly zero with a probability that is learnt, and the
loss has the expected number of what is left added, which is differentiable:

```text
E |.|_0 = sum_g n_g sum_c P(z_gc > 0)
```

with n_g the parameters that a channel of group g takes along (or one).

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
soft, plan = gates.deterministic(), gates.deterministic().above(0)  # numbers, and what they keep
g, small = pruned(masked(f, soft), plan), plan.shrink(params)
```

The last line has the smaller model with its gates in it; `pruned(f, plan)` is the one without, to
be trained on.

Sharp edges:
    One gate is drawn for a whole batch, as the paper does.
    A parameter that two groups share counts for both: the expectation is an upper bound.

Source: Louizos et al., "Learning Sparse Neural Networks through L0 Regularization",
arXiv:1712.01312, section 2.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.compression.quantizers import (
    deterministic_gates,
    gate_location,
    hard_concrete,
    open_probability,
)
from jaxeff.core import Setting, check_choice, check_number, register_setting, static
from jaxeff.pruning.dependencies import Channels, Group, PlanError
from jaxeff.pruning.shrinking import Plan


@register_setting
@dataclass(frozen=True, eq=False)
class HardConcrete(Setting):
    """Gates on groups of channels.

    Attributes:
        location: phi by group, `[channels]`: what is learnt.
        channels: The groups that it is about.
    """

    location: dict[str, Any]
    channels: Channels = static()

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
        check_number("HardConcrete.start: open", open, above=0, below=1)
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
        """Returns what a loss adds: how much is expected to be left.

        Args:
            of: "parameters", or "channels" that count one each.
        """
        check_choice("HardConcrete.expected: of", of, ("parameters", "channels"))
        total = jnp.zeros((), jnp.float32)
        for name, probability in self.openness.items():
            # The probability is a closed form of the location: its gradient needs no draw.
            price = self.channels[name].parameters if of == "parameters" else 1
            total = total + price * probability.sum().astype(jnp.float32)
        return total


def gated_groups(channels: Channels, groups: Collection[str] | None) -> list[Group]:
    """Returns the groups of some names, or all that can lose channels.

    Raises:
        PlanError: One can't.
        KeyError: There is none of a name.
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


__all__ = ["HardConcrete", "gated_groups", "group_key"]
