"""Values of layers under noise: activations, bins for their histograms, and growth of weights.

```python
import jax
import numpy as np

from jaxeff.nn import small_classifier
from jaxeff.noise import Additive, noisy
from jaxeff.robustness import activations, bin_edges

f, params, (x, y) = small_classifier()
g = noisy(f, {"relu": Additive(0.1)})
clean = activations(f, ["relu", "fc2"])(params, x)["relu"]                  # {site: array}
perturbed = activations(g, ["relu"])(jax.random.key(0), params, x)["relu"]  # noise included

edges = bin_edges([clean, perturbed], scale="log")
density, _ = np.histogram(clean, edges, density=True)
```
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.program import Layer, evaluate, matching, plain_rule, trace
from jaxeff.program.reading import argument_leaves


@core.validate()
def activations(f: Callable[..., Any], sites: Sequence[str]) -> Callable[..., dict[str, Array]]:
    """Reads the outputs of chosen layers.

    Args:
        f: A pure function `f(params, *args)`, also the result of a transform, such as `noisy`: then
            what is read is what leaves a layer, its noise included.
        sites: Patterns of sites, as in a spec.

    Returns:
        A function of the arguments of `f` with one array per matching site, in the program's order.

    Raises:
        TypeError: On a call: `sites` is a single string.
        SpecError: On a call: a pattern matches no site.
        ValueError: On a call: a site lies inside a loop or branch, or is never reached.
    """

    def read(*args: Any, **kwargs: Any) -> dict[str, Array]:
        program = trace(f, *args, **kwargs)
        chosen = set(matching(sites, program))
        inside = sorted(chosen - {layer.site for layer in program.layers})
        if inside:
            raise ValueError(
                f"{', '.join(inside)} lies inside a loop or branch, where a layer has no single "
                "value; read the loop's result instead."
            )
        values_at: dict[str, Array] = {}

        def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
            outputs = plain_rule(layer, key, *values)
            if layer.site in chosen:
                values_at[layer.site] = outputs[0]
            return outputs

        evaluate(program, rule, None, argument_leaves(args, kwargs))
        return values_at

    return read


@core.validate(
    bins=core.static_integer(),
    floor=core.positive,
    arrays=core.sequence_of(core.real_array(nan=True, empty=True)),
)
def bin_edges(
    arrays: Sequence[Float[Array | np.ndarray, "..."]],
    *,
    bins: int = 80,
    scale: str = "linear",
    floor: float = 1e-12,
) -> Float[np.ndarray, " edges"]:
    """Computes the common edges for histograms of several arrays.

    Args:
        arrays: Arrays that are shown together.
        bins: Number of bins.
        scale: "linear", or "log" for bins of equal ratio over the positive values.
        floor: On the log scale, no bin begins below this times the largest value.

    Returns:
        `bins + 1` rising edges.

    Raises:
        ValueError: An unknown scale, no finite value, or no positive one on the log scale.
    """
    core.check_choice("scale", scale, ("linear", "log"))
    values = np.concatenate([np.ravel(jax.device_get(a)).astype(float) for a in arrays])
    values = values[np.isfinite(values)]
    if scale == "log":
        values = values[values > 0]
    if not values.size:
        kind = "finite" if scale == "linear" else "positive"
        raise ValueError(f"a histogram on a {scale} scale needs {kind} values, found none.")
    low, high = float(values.min()), float(values.max())
    if scale == "log":
        # A few values near zero would otherwise spread the bins over decades that hold nothing.
        low = max(low, floor * high)
        # The upper edge is widened, for rounding in the logarithm may leave the largest value out.
        return np.geomspace(low, high * (1 + 1e-6), bins + 1)
    return np.linspace(low, high if high > low else low + 1, bins + 1)


@core.validate()
def weight_rms(params: Any) -> dict[str, Float[Array, ""]]:
    """Computes the root mean square of every layer's weights.

    ```python
    >>> from jaxeff.nn import small_classifier
    >>> from jaxeff.robustness import weight_rms
    >>> f, params, data = small_classifier()
    >>> {layer: round(float(rms), 2) for layer, rms in weight_rms(params).items()}
    {'conv1': 0.23, 'fc1': 0.17, 'fc2': 0.17}

    ```

    Args:
        params: Pytree of parameters. Weights are arrays of at least two axes: biases and the
            scales of a normalization, which have one, are left out.

    Returns:
        By the path of the layer that holds them, `conv1`, `blocks/0/fc`; a layer with several has
        the weight's own name too.
    """
    weights: dict[str, dict[str, Array]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if jnp.ndim(leaf) >= 2:
            *parents, name = (jax.tree_util.keystr((entry,), simple=True) for entry in path)
            weights.setdefault("/".join(parents), {})[name] = leaf
    rms = {}
    for layer, leaves in weights.items():
        for name, leaf in leaves.items():
            alone = len(leaves) == 1 and layer
            rms[layer if alone else f"{layer}/{name}".lstrip("/")] = _rms(leaf)
    return rms


@core.validate(start=core.parameter_tree)
def weight_growth(params: Any, start: Any) -> dict[str, Float[Array, ""]]:
    """Computes the root mean square of every layer's weights relative to a start.

    Networks answer additive noise with larger weights:

    ```python
    >>> import jax
    >>> from jaxeff.nn import small_classifier
    >>> from jaxeff.robustness import weight_growth
    >>> f, params, data = small_classifier()
    >>> grown = jax.tree.map(lambda w: 2 * w, params)
    >>> {k: float(v) for k, v in weight_growth(grown, params).items()}
    {'conv1': 2.0, 'fc1': 2.0, 'fc2': 2.0}

    ```

    Args:
        params: Pytree of parameters.
        start: Parameters to compare with, such as the initial parameters, or those of a network
            trained without noise.

    Returns:
        By layer, as `weight_rms`.

    Raises:
        ValueError: The two don't have the same layers.
    """
    now, before = weight_rms(params), weight_rms(start)
    if now.keys() != before.keys():
        raise ValueError(
            f"the parameters have layers {sorted(now)}, those to compare with {sorted(before)}."
        )
    return {layer: now[layer] / before[layer] for layer in now}


def _rms(leaf: Any) -> Float[Array, ""]:
    return jnp.sqrt(jnp.mean(jnp.square(core.widened(leaf))))
