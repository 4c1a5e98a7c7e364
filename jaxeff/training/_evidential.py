"""`evidential`: a loss that teaches a classifier how much it has seen, as a Dirichlet distribution.

```python
import jax
import optax

from jaxeff.nn import small_classifier
from jaxeff.training import evidential, fit
from jaxeff.uncertainty import dirichlet_decomposition, dirichlet_probs, evidence

f, params, (x, y) = small_classifier()
result = fit(jax.random.key(0), evidential(f, ramp=40), params, (x, y),
             optimizer=optax.adam(1e-2), epochs=10, batch_size=32)
concentration = evidence(f(result.params, x)) + 1
probs, parts = dirichlet_probs(concentration), dirichlet_decomposition(concentration)
```

`softplus` of the outputs is evidence for each class; with one more it is the concentration of a
Dirichlet distribution over class probabilities. The loss is the squared error expected under it,
plus the divergence of what it says of wrong classes from knowing nothing (Sensoy et al. 2018,
equations (5) to (7), arXiv:1806.01768).

Sharp edges:
    What is called epistemic is learnt by this loss and no posterior's: it depends on the weight of
    the divergence (Bengs et al. 2022, arXiv:2203.06102).
    By `softplus` evidence grows as slowly as outputs do: a short training ends with little of it
    everywhere, far too unsure in domain and no surer there than out of it. Train until its sum has
    settled, or take an activation that reaches large evidence sooner, such as
    ``lambda z: jnp.exp(jnp.minimum(z, 10))``, here and in `jaxeff.uncertainty.evidence`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln

from jaxeff.core import function_of_form, non_negative, static_integer, validate
from jaxeff.training._epoch import Loss
from jaxeff.training._losses import LabelledLoss, normalized_call, valid_labels


@validate(
    ramp=static_integer(),
    weight=non_negative,
    activation=function_of_form("f(outputs) -> evidence"),
)
def evidential(
    f: Callable[..., Any],
    *,
    ramp: int = 1000,
    weight: float = 1.0,
    activation: Callable[[jax.Array], jax.Array] = jax.nn.softplus,
    keyed: bool = False,
    mutable: bool = False,
) -> Loss:
    """Makes the loss of a classifier whose outputs are evidence.

    Args:
        f: ``f(params, x) -> outputs`` of shape ``[batch, classes]``, or
            ``[batch, tokens, classes]``.
        ramp: Updates over which the weight of the divergence grows to its own, as those of ten
            epochs.
        weight: Weight of the divergence.
        activation: What makes evidence of outputs, never below zero; `jaxeff.uncertainty.evidence`
            takes the same.
        keyed: Whether ``f`` takes a random key first.
        mutable: Whether ``f`` takes a state after its parameters and returns (outputs, new state).

    Returns:
        The loss; its batches are pairs of inputs and integer labels.
    """
    call = normalized_call(f, keyed=keyed, mutable=mutable)

    def loss(key: Any, params: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        x, labels = batch
        outputs, state = call(key, params, state, x)
        concentration = activation(outputs) + 1
        target = jax.nn.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
        total = concentration.sum(-1, keepdims=True)
        probs = concentration / total
        error = ((target - probs) ** 2 + probs * (1 - probs) / (total + 1)).sum(-1)
        # Evidence for the right class is taken away: the divergence is of the others' alone.
        divergence = _from_uniform(target + (1 - target) * concentration)
        share = weight * jnp.minimum(1.0, (step / ramp).astype(outputs.dtype))
        each = (error + share * divergence) * valid_labels(labels, outputs).astype(error.dtype)
        accuracy = jnp.mean(outputs.argmax(-1) == labels)
        return each.mean(), ({"accuracy": accuracy}, state)

    return LabelledLoss(loss, lambda *args: call(*args)[0])


def _from_uniform(concentration: jax.Array) -> jax.Array:
    """Computes the divergence of a Dirichlet distribution from that of all ones, in nats."""
    total = concentration.sum(-1, keepdims=True)
    classes = jnp.asarray(concentration.shape[-1], concentration.dtype)
    normalizer = gammaln(total[..., 0]) - gammaln(classes) - gammaln(concentration).sum(-1)
    return normalizer + ((concentration - 1) * (digamma(concentration) - digamma(total))).sum(-1)
