"""A layer's values, and bins for their histograms.

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
import numpy as np
from jaxtyping import Array, Float

from jaxeff.core import check_choice, positive, real_array, sequence_of, static_integer, validate
from jaxeff.program import Layer, evaluate, matching, plain_rule, trace
from jaxeff.program.reading import argument_leaves


@validate()
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
        found: dict[str, Array] = {}

        def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
            outputs = plain_rule(layer, key, *values)
            if layer.site in chosen:
                found[layer.site] = outputs[0]
            return outputs

        evaluate(program, rule, None, argument_leaves(args, kwargs))
        return found

    return read


@validate(
    bins=static_integer(), floor=positive, arrays=sequence_of(real_array(nan=True, empty=True))
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
    check_choice("scale", scale, ("linear", "log"))
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
