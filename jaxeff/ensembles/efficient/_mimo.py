"""`mimo`: several members inside one network, by several inputs and outputs at once.

```python
import jax
import optax
from flax import nnx

import jaxeff
from jaxeff.ensembles import mimo, mimo_loss
from jaxeff.nn import MLP
from jaxeff.training import fit

key = jax.random.key(0)
x, y = jax.random.normal(key, (64, 4)), jax.random.randint(key, (64,), 0, 3)
f, params = jaxeff.functional(MLP((2 * 4, 32, 2 * 3), rngs=nnx.Rngs(0)))   # twice 4 in, 3 out
g = mimo(f, 2)
result = fit(key, mimo_loss(g), params, (x, y), optimizer=optax.adam(1e-2), epochs=2,
             batch_size=32)
logits = g(result.params, x)                            # [members, batch, classes], one run of f
```

The network reads the inputs of all members beside each other, along the last axis, and its outputs
are those of all members beside each other. In training the inputs are different examples, so that
members learn to predict their own; in use they are the same one, and one run gives all predictions
(Havasi et al. 2021, arXiv:2010.06610).

Sharp edge: the network has to be wide enough for several members; a small one gets worse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxeff.core import (
    check_function,
    instance_of,
    probability,
    static_integer,
    validate,
)
from jaxeff.training import LabelledLoss, Loss, valid_labels


@dataclass(frozen=True, eq=False)
class MIMO:
    """A network of several inputs and outputs, as an ensemble.

    Attributes:
        f: `f(params, x)` of the inputs and outputs of all members.
        count: Number of members.
    """

    f: Callable[..., Any]
    count: int

    def __call__(self, params: Any, x: Array) -> Float[Array, "members batch classes"]:
        """Computes all members' predictions of the same inputs."""
        return self.joint(params, jnp.broadcast_to(x[None], (self.count, *jnp.shape(x))))

    def joint(
        self, params: Any, xs: Float[Array, "members batch *inputs"]
    ) -> Float[Array, "members batch classes"]:
        """Computes each member's predictions of its own inputs.

        Raises:
            ValueError: The outputs aren't those of so many members.
        """
        # Members beside each other along the last axis: channels, or features.
        beside = jnp.moveaxis(xs, 0, -2)
        outputs = self.f(params, beside.reshape(*beside.shape[:-2], -1))
        if outputs.shape[-1] % self.count:
            raise ValueError(
                f"mimo: f has {outputs.shape[-1]} outputs, which {self.count} members don't share "
                "evenly: give it as many times the classes as there are members"
            )
        apart = outputs.reshape(*outputs.shape[:-1], self.count, -1)
        return jnp.moveaxis(apart, -2, 0)


@validate(count=static_integer())
def mimo(f: Callable[..., Any], count: int) -> MIMO:
    """Makes an ensemble of a network with several inputs and outputs.

    Args:
        f: `f(params, x)`; the last axis of `x` and of the result is `count` times that of a member.
        count: Number of members.

    Returns:
        The function `g(params, x) -> [members, batch, classes]`.
    """
    check_function("mimo: f", f)
    return MIMO(f, count)


@validate(g=instance_of(MIMO), repetition=probability)
def mimo_loss(g: MIMO, *, repetition: float = 0.0) -> Loss:
    """Makes the cross entropy of members that see different examples, summed over members.

    Args:
        g: Result of `mimo`.
        repetition: Share of examples that all members see alike; more helps where the network is
            narrow.

    Returns:
        The loss; its batches are pairs of inputs and integer labels.
    """

    def loss(key: Any, params: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        del step
        x, labels = batch
        order_key, alike_key = jax.random.split(key)
        examples = len(labels)
        orders = jax.vmap(lambda k: jax.random.permutation(k, examples))(
            jax.random.split(order_key, g.count)
        )
        alike = jax.random.uniform(alike_key, (examples,)) < repetition
        orders = jnp.where(alike[None], jnp.arange(examples)[None], orders)
        logits, own = g.joint(params, x[orders]), labels[orders]
        each = optax.softmax_cross_entropy_with_integer_labels(logits, own)
        each = each * valid_labels(own, logits).astype(each.dtype)
        accuracy = jnp.mean(logits.argmax(-1) == own)
        return each.mean(1).sum(), ({"accuracy": accuracy}, state)

    return LabelledLoss(loss, lambda key, params, state, x: g(params, x)[0])
