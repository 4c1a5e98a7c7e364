"""`variational_dropout`: Gaussian dropout on every weight, with a rate that is learnt.

A weight is N(theta, alpha theta^2). Theta is the parameter, and the logarithm of the variance is
learnt beside it. Not weights are drawn but what they sum to, for every example anew (local
reparametrization): a layer's result has the mean x theta and the variance x^2 sigma^2.

```python
import jax
import optax
from jaxeff.compression import quantized
from jaxeff.nn import small_classifier
from jaxeff.pruning.sparsity import kept_weights, log_variances, variational_dropout
from jaxeff.training import fit, stateless

f, params, data = small_classifier()
g = variational_dropout(f)

def loss(key, learnt, batch):
    logits, divergence = g(key, *learnt, batch[0])
    fit = optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()
    return fit + divergence / len(data[1])

learnt = params, log_variances(f, params, data[0], ["*:linear"])
run = fit(jax.random.key(0), stateless(loss), learnt, data,
          optimizer=optax.adam(1e-3), epochs=1, batch_size=64)
spec = kept_weights(f, *run.params, data[0])            # masks, where log alpha < 3
logits = quantized(f, spec)(run.params[0], data[0])
```

Source: Molchanov et al., "Variational Dropout Sparsifies Deep Neural Networks", arXiv:1701.05369.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.compression import LayerQuantization
from jaxeff.core import check_number
from jaxeff.core import jax_internals as _compat
from jaxeff.program import Layer, Program, Rule, evaluate, matching, plain_rule, trace
from jaxeff.program.ir import run_nodes
from jaxeff.program.reading import argument_leaves
from jaxeff.pruning.gates import THRESHOLD, dropout_divergence, log_rate
from jaxeff.pruning.sparsity._masked import FixedMask

LogVariances = Mapping[str, Float[Array, "..."]]


def log_variances(
    f: Callable[..., Any], params: Any, batch: Any, patterns: Sequence[str], *, start: float = -8.0
) -> dict[str, Float[Array, "..."]]:
    """Initializes the learned log variances, log sigma^2, of the weights of some layers.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them.
        patterns: Sites; a layer that is used again has the numbers of its first use.
        start: The first log sigma^2.

    Returns:
        By site, an array of the weight's shape as the layer reads it.

    Raises:
        ValueError: A pattern matches no site, or none has one weight and lies outside loops.
    """
    check_number("log_variances: start", start)
    args = batch if isinstance(batch, tuple) else (batch,)
    program = trace(f, params, *args)
    chosen = set(matching(patterns, program))
    found = {
        layer.base: jnp.full(
            layer.inputs[layer.weights[0]].aval.shape,
            start,
            layer.inputs[layer.weights[0]].aval.dtype,
        )
        for layer in program.layers
        if layer.site in chosen and _takes(layer)
    }
    if not found:
        raise ValueError(
            f"{list(patterns)} match no layer outside loops that multiplies by one weight."
        )
    return found


def variational_dropout(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the model with learnt Gaussian dropout on weights.

    Args:
        f: A pure function `f(params, *args)`.

    Returns:
        A pure function `g(key, params, log_variance, *args) -> (result, divergence)`; the
        divergence is to be added to a loss that is a sum over examples, or divided by their number.

    Raises:
        ValueError: When called: there are numbers for a layer that there isn't, or that has no
            weight; they are listed.
    """

    def g(
        key: PRNGKeyArray, params: Any, log_variance: LogVariances, *args: Any, **kwargs: Any
    ) -> tuple[Any, Float[Array, ""]]:
        program = trace(f, params, *args, **kwargs)
        rule, divergences = _rule(program, log_variance)
        outputs = evaluate(program, rule, key, argument_leaves((params, *args), kwargs))
        total = jnp.zeros((), jnp.float32)
        for divergence in divergences:
            total = total + divergence.astype(jnp.float32)
        return jax.tree.unflatten(program.out_tree, outputs), total

    return g


def kept_weights(
    f: Callable[..., Any],
    params: Any,
    log_variance: LogVariances,
    batch: Any,
    *,
    threshold: float = THRESHOLD,
) -> dict[str, LayerQuantization | None]:
    """Returns a spec of masks that keep the weights with rates below a threshold.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        log_variance: Result of training.
        batch: `args` as a tuple, or the only one of them.
        threshold: Largest log alpha of a kept weight; alpha is its variance over its square.
    """
    args = batch if isinstance(batch, tuple) else (batch,)
    program = trace(f, params, *args)

    @jax.jit
    def masks(leaves: list[Any], log_variance: LogVariances) -> dict[str, Array]:
        found: dict[str, Array] = {}

        def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
            if layer.base in log_variance and _takes(layer) and layer.base not in found:
                rate = log_rate(values[layer.weights[0]], log_variance[layer.base])
                found[layer.base] = rate < threshold
            return plain_rule(layer, key, *values)

        evaluate(program, rule, None, leaves)
        return found

    found = masks(argument_leaves((params, *args), {}), log_variance)
    return {site: LayerQuantization(weights=FixedMask(where)) for site, where in found.items()}


def _rule(program: Program, log_variance: LogVariances) -> tuple[Rule, list[Array]]:
    known = {layer.base for layer in program.layers if layer.site and _takes(layer)}
    unknown = sorted(set(log_variance) - known)
    if unknown:
        raise ValueError(
            f"there are variances for {unknown}, which are no layers outside loops that multiply "
            f"by one weight; those are {sorted(known)}."
        )
    divergences: list[Array] = []
    outside = set(program.layers)

    def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        spread = log_variance.get(layer.base) if layer in outside and _takes(layer) else None
        if spread is None:
            return plain_rule(layer, key, *values)
        index = layer.weights[0]
        if layer.occurrence == 0:
            # A layer that is used again has the same weights: their divergence counts once.
            divergences.append(dropout_divergence(log_rate(values[index], spread)).sum())
        # Local reparametrization (Kingma et al., arXiv:1506.02557, section 2.3): the layer's own
        # product of squared inputs and variances is the variance of its result.
        squares = [jnp.square(v) if i in layer.data else v for i, v in enumerate(values)]
        squares[index] = jnp.exp(spread)

        assert layer.op is not None
        result = layer.op.outputs[0]
        before = layer.nodes[: layer.nodes.index(layer.op) + 1]
        (variance,) = run_nodes(before, layer.inputs, squares, (result,))
        # The root has no gradient at zero, where every input of an entry is zero.
        least = jnp.asarray(jnp.finfo(variance.dtype).tiny, variance.dtype)
        noise = jax.random.normal(key, variance.shape, variance.dtype)
        noise = jnp.sqrt(jnp.maximum(variance, least)) * noise

        # The noise belongs to the product: a bias is added after it.
        def noisy(eqn: Any, *operands: Any) -> list[Any]:
            outputs = _compat.bind(eqn, *operands)
            is_op = layer.op is not None and eqn is layer.op.eqn
            return [outputs[0] + noise, *outputs[1:]] if is_op else outputs

        return run_nodes(layer.nodes, layer.inputs, values, layer.outputs, noisy)

    return rule, divergences


def _takes(layer: Layer) -> bool:
    return layer.kind == "linear" and len(layer.weights) == 1 and len(layer.data) == 1


__all__ = ["kept_weights", "log_variances", "variational_dropout"]
