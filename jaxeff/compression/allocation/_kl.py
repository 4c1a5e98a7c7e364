"""Sensitivity of layers to fewer bits, without labels or training: KL of the predictions.

S(l, b) = mean over inputs of KL(f || f with layer l in b bits), as Galen measures it after ZeroQ.
Weights and activations are measured apart. All layers and widths are policies of one compiled
program, in which widths are numbers.

```python
import jaxeff
from jaxeff.compression import allocate_bits, kl_sensitivity, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
found = kl_sensitivity(f, params, x[:64], ("conv1", "fc1", "fc2"), widths=(2, 4, 8))
cost = jaxeff.cost(f, params, x[:1])
spec = allocate_bits(found, cost, 4 * 4 * cost.macs, unit="bops")  # what 4 x 4 bits would cost
quantized(f, spec)(params, x)
```

Sharp edge: damages of several layers are taken to add up; KL is of second order in small changes.

References:
    Krieger et al., "Galen: Hardware-specific Automatic Compression of Neural Networks",
    arXiv:2212.07818. Cai et al., "ZeroQ", arXiv:2001.00281.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.compression.allocation._policy import FLOAT, InWidths, Method, under_policies
from jaxeff.compression.allocation._table import BitSensitivity, check_widths
from jaxeff.compression.quantizers import Uniform
from jaxeff.core import function_of_form, input_batch, static_integer, validate
from jaxeff.training import divergences


@validate(x=input_batch, method=function_of_form("method(bits)"), at_once=static_integer())
def kl_sensitivity(
    f: Callable[..., Any],
    params: Any,
    x: Any,
    sites: Sequence[str],
    widths: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8),
    *,
    method: Method = Uniform,
    state: Any = None,
    at_once: int = 1,
) -> BitSensitivity:
    """Measures every layer in every width.

    Args:
        f: A classifier `f(params, x) -> logits`; with a state `f(params, state, x) -> (logits, new
            state)`.
        params: The parameters of `f`.
        x: Inputs, a few hundred of them; they are evaluated at once.
        sites: The layers.
        widths: Bit widths, rising, 1 to 16.
        method: Function from a bit width to a quantizer.
        state: The model's state, which stays as it is.
        at_once: Number of policies evaluated side by side, by `vmap`.

    Returns:
        Divergences in nats, mean over inputs, with the standard error over them.

    Raises:
        ValueError: No sites or one given twice, a width that isn't one, or a site that there isn't
            or that multiplies nothing.
    """
    sites, widths = tuple(sites), check_widths(widths)
    if not sites or len(set(sites)) < len(sites):
        raise ValueError(f"sites must be layers that differ, got {list(sites)}.")
    model = InWidths(f, method, sites, widths)
    kl = np.asarray(_divergences(model, at_once, params, state, x), float)
    mean = kl.mean(-1).reshape(2, len(sites), len(widths))
    # Over inputs. All policies share these, so damages are compared more exactly than this.
    scatter = kl.std(-1, ddof=1) if kl.shape[-1] > 1 else np.full(len(kl), np.nan)
    error = scatter.reshape(mean.shape) / math.sqrt(kl.shape[-1])
    return BitSensitivity(sites, widths, mean[0], mean[1], error[0], error[1])


def one_at_a_time(sites: int, widths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Lists the policies that quantize one array of one site: bits of weights, of activations.

    In the order of weights and activations, sites, widths.
    """
    alone = np.full((sites * len(widths), sites), FLOAT, np.int32)
    for i in range(sites):
        alone[i * len(widths) : (i + 1) * len(widths), i] = widths
    others = np.full_like(alone, FLOAT)
    return np.concatenate([alone, others]), np.concatenate([others, alone])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _divergences(model: InWidths, at_once: int, params: Any, state: Any, x: Any) -> Array:
    args = (params, x) if state is None else (params, state, x)
    # FLOAT is a width of the look-up too: that of the sites a policy leaves alone.
    evaluated = under_policies(model._replace(widths=(*model.widths, FLOAT)), *args)
    changes = jax.tree.map(jnp.asarray, one_at_a_time(len(model.sites), model.widths))
    found = divergences(
        model.f, lambda bits: evaluated(*bits), changes, params, x, state=state, at_once=at_once
    )
    return found.reshape(len(found), -1)
