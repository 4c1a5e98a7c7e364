"""`untied`: a layer's own copy of a weight that it shares with another, such as a decoder's head.

```python
import jax
import jax.numpy as jnp

import jaxeff
from jaxeff.adapters import untied
from jaxeff.bayes import laplace
from jaxeff.ensembles import Members


def f(params, tokens):
    return jnp.tanh(params["embed"][tokens]) @ params["embed"].T


params = {"embed": jax.random.normal(jax.random.key(0), (7, 4))}
tokens = jnp.arange(12).reshape(3, 4) % 7
g, own = untied(f, params, tokens, "embed#1")                 # sites: jaxeff.summary
posterior = laplace(jax.random.key(0), g, own, (tokens, tokens), "embed#1", "diag")
h, heads = jaxeff.ensemble(jax.random.key(1), g, own, {"own": Members(3)})
```
"""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array

from jaxeff.core import as_arguments, parameter_tree, read_once, string, validate
from jaxeff.program import Layer, Program, evaluate, interpret_sites, plain_rule, trace
from jaxeff.program.ir import Contraction, Node, Value, making, run_nodes
from jaxeff.program.reading import argument_leaves


@validate(batch=parameter_tree, site=string)
def untied(
    f: Callable[..., Any], params: Any, batch: Any, site: str
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Gives a linear layer its own copy of its weight.

    A table that is looked up and multiplied by can't be random, or have members, in one of both
    uses alone; what stands between them would be computed for each draw. Adapters need none of
    this: they are beside a product, and leave the look-up as it is.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: Inputs, `args` as a tuple or the only one of them.
        site: The layer.

    Returns:
        A pure function `g(params, *args)`, and its parameters: `{"shared": params, "own":
        {"kernel": the weight, as the product reads it}}`.

    Raises:
        ValueError: There is no linear layer of this name outside loops whose weight comes from a
            parameter.
    """
    args = as_arguments(batch)
    f = read_once(f)
    program = trace(f, params, *args)
    layer = _layer(program, site)
    before, weight, _ = _parts(layer)
    weights: list[Array] = []

    def reading(each: Layer, key: Any, *values: Any) -> Any:
        if each.site == site:
            weights.extend(run_nodes(before, layer.inputs, values, (weight,)))
        return plain_rule(each, key, *values)

    evaluate(program, reading, None, argument_leaves((params, *args), {}))

    def g(params_and_own: Any, *args: Any, **kwargs: Any) -> Any:
        def settings_of(program: Program) -> dict[str, Any]:
            _layer(program, site)
            return {site: params_and_own["own"]["kernel"]}

        arguments = (params_and_own["shared"], *args)
        return interpret_sites(f, settings_of, _replaced, None, arguments, kwargs, "untied")

    return g, {"shared": params, "own": {"kernel": weights[0]}}


def _layer(program: Program, site: str) -> Layer:
    for layer in program.layers:
        if layer.site == site and layer.kind == "linear":
            _, weight, _ = _parts(layer)
            if getattr(weight, "path", "") and weight.is_weight:
                return layer
    there = [layer.site for layer in program.layers if layer.kind == "linear"]
    raise ValueError(
        f"untied: site {site!r} is no linear layer outside loops with a parameter for its weight; "
        f"linear here: {', '.join(there) or 'none'}"
    )


def _parts(layer: Layer) -> tuple[list[Node], Value, list[Node]]:
    """Returns what makes a layer's weight of its inputs, the weight, and the nodes without that."""
    product = layer.op
    assert product is not None
    weight = product.inputs[Contraction.of(product).side]
    before = making(layer.nodes, [weight])
    return before, weight, [node for node in layer.nodes if node not in before]


def _replaced(kernel: Any, layer: Layer, key: Any, *values: Any) -> Any:
    """Computes a layer with another weight: the rule of `untied`."""
    del key
    _, weight, after = _parts(layer)
    # What made the shared weight is left out, so that this layer doesn't read it any more.
    known = [(v, x) for v, x in zip(layer.inputs, values, strict=True) if v is not weight]
    names, arrays = zip(*known, (weight, jax.numpy.asarray(kernel)), strict=True)
    return run_nodes(after, names, arrays, layer.outputs)
