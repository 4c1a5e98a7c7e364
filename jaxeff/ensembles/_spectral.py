"""`spectral`: layers that can't stretch distances by more than a bound.

```python
import jaxeff
from jaxeff.ensembles import Spectral, spectral
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
g = spectral(f, {"conv*": Spectral(3.0), "fc1": Spectral(3.0)})
logits = g(params, x)
```

A feature extractor that maps far inputs onto the features of near ones (feature collapse) can't
tell that it doesn't know them. A bound on every layer's spectral norm, with residual connections,
keeps distances; DDU, SNGP and last-layer ensembles build on it. Weights are divided by what their
layer's norm exceeds the bound by, in every call, so the bound holds in training and after it alike.

The norm is that of the layer as it runs: of a dense layer its matrix's, of a convolution that of
the whole map from image to image, with its padding and strides (Gouk et al. 2018), rather than that
of the reshaped kernel. It is found by power iteration from a fixed start, without state.

Sharp edges:
    Power iteration approaches the norm from below: with few iterations the bound is exceeded by
    some per cent. Each costs two passes of the layer for one example.
    Batch norm may undo the bound; its scale isn't looked at.
    Of members, bound the network first and give it members then, not the other way round.

References:
    Miyato et al., "Spectral Normalization for Generative Adversarial Networks", arXiv:1802.05957.
    Gouk et al., "Regularisation of Neural Networks by Enforcing Lipschitz Continuity",
    arXiv:1804.04368. Mukhoti et al., "Deep Deterministic Uncertainty", arXiv:2102.11582.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import (
    Count,
    Positive,
    Setting,
    check_function,
    register_setting,
    static,
    validate,
    widened,
)
from jaxeff.core import jax_internals as _compat
from jaxeff.program import Layer, Program, check_settings, interpret, plain_rule, resolve
from jaxeff.program.ir import Contraction, run_nodes
from jaxeff.program.ir import primitives as prim


@register_setting
@dataclass(frozen=True)
class Spectral(Setting):
    """A bound on a layer's spectral norm.

    Attributes:
        bound: The largest norm allowed; DDU takes 3.
        iterations: Number of power iterations.

    Raises:
        ValueError: The bound isn't positive, or there are no iterations.
    """

    bound: Positive = 3.0
    iterations: Annotated[int, Count()] = static(8)


@validate()
def spectral(f: Callable[..., Any], spec: Mapping[str, Spectral | None]) -> Callable[..., Any]:
    """Bounds the spectral norms of dense and convolution layers.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Maps patterns of sites to bounds; None leaves a layer alone.

    Returns:
        A pure function of the arguments of `f`.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: When called: a pattern matches or decides no site, two are equally specific at
            one, or none of its layers has weights.
    """
    check_function("spectral: f", f)
    check_settings(spec, Spectral, "a bound such as Spectral(3.0)")

    def g(*args: Any, **kwargs: Any) -> Any:
        def make_rule(program: Program) -> Any:
            bounds = resolve(spec, program, lambda layer, _: bool(_weights(layer)), "a norm")

            def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
                bound = bounds.get(layer.site)
                if bound is None or not _weights(layer):
                    return plain_rule(layer, key, *values)
                norm = layer_norm(layer, values, bound.iterations)
                limit = jnp.asarray(bound.bound, norm.dtype)
                # A bound, not a normalization: smaller norms stay (Gouk et al.).
                scale = jnp.where(norm > limit, limit / jnp.where(norm > 0, norm, 1), 1)
                (at,) = layer.weights
                inputs = [x * scale.astype(x.dtype) if i == at else x for i, x in enumerate(values)]
                return plain_rule(layer, key, *inputs)

            return rule if bounds else None

        return interpret(f, make_rule, None, args, kwargs)

    return g


def _weights(layer: Layer) -> tuple[int, ...]:
    """Returns the one weight of a layer that has a norm."""
    known = layer.op is not None and layer.op.primitive in prim.LINEAR
    usable = layer.kind == "linear" and known and len(layer.weights) == 1
    return layer.weights if usable else ()


def layer_norm(layer: Layer, values: Sequence[Any], iterations: int) -> Float[Array, ""]:
    """Computes the spectral norm of a layer's linear map, with a gradient to its weights.

    Args:
        layer: A dense or convolution layer.
        values: The inputs.
        iterations: Number of power iterations.
    """
    op = layer.op
    assert op is not None
    side = next(i for i, v in enumerate(op.inputs) if v in op.values and v.is_weight)
    operand = op.inputs[side]
    before = layer.nodes[: layer.nodes.index(op)]
    (weight,) = run_nodes(before, layer.inputs, values, [operand])
    contraction = Contraction.of(op)
    if not contraction.is_convolution:
        summed = contraction.summed(side)
        rows = math.prod(weight.shape[axis] for axis in summed)
        # Batch axes count as outputs: the norm is that of all their matrices beside each other.
        matrix = jnp.moveaxis(weight, summed, range(len(summed))).reshape(rows, -1)

        def apply(u: Array, w: Array) -> Array:
            return u @ w

        return _norm(apply, matrix, (rows,), iterations)
    shape = list(op.inputs[1 - side].aval.shape)
    # The norm of the convolution as a map of images, with its padding and strides:
    # reshaping the kernel to a matrix would only bound it.
    (examples,) = contraction.free(0)
    shape[examples] = 1

    def convolve(u: Array, w: Array) -> Array:
        return _compat.bind(op.eqn, u, w)[0]

    return _norm(convolve, weight, tuple(shape), iterations)


def _norm(
    apply: Callable[[Array, Array], Array], weight: Array, shape: tuple[int, ...], iterations: int
) -> Float[Array, ""]:
    # A norm is linear in the weight: of the largest entry's size nothing overflows in 16 bits.
    size = jax.lax.stop_gradient(jnp.abs(weight).max())
    size = jnp.where(size > 0, size, 1)
    weight = weight / size
    held = jax.lax.stop_gradient(weight)
    # Always the same start: no state between calls, and compiled functions stay pure.
    start = jax.random.normal(jax.random.key(0), shape, weight.dtype)
    like = jax.ShapeDtypeStruct(shape, weight.dtype)
    # Power iteration on A^T A; the transpose comes from JAX, for any dimension numbers.
    transpose = jax.linear_transpose(lambda u: apply(u, held), like)

    def unit(x: Array) -> Array:
        length = jnp.sqrt((widened(x) ** 2).sum())
        return (widened(x) / jnp.where(length > 0, length, 1)).astype(x.dtype)

    def iterate(_: int, u: Array) -> Array:
        return unit(transpose(apply(u, held))[0])

    u = jax.lax.fori_loop(0, iterations, iterate, unit(start))
    v = unit(apply(u, held))
    # v^T A u with u and v held is the norm, and its gradient v u^T is the exact one at
    # convergence: no derivative through the iteration.
    return (v * apply(u, weight)).sum() * size
