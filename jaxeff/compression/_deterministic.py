"""`deterministic`: a spec as it is used after training, with nothing left to chance.

```python
import jax.numpy as jnp

from jaxeff.compression import Stochastic, Uniform, deterministic, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier(4)
spec = {"conv1": Stochastic(4), "fc*": Uniform(8)}       # drawn in training: keyed=True
settled = deterministic(spec)
assert settled["fc*"] is spec["fc*"]
logits = quantized(f, settled)(params, x)                # no key
assert jnp.array_equal(logits, quantized(f, {"conv1": Uniform(4), "fc*": Uniform(8)})(params, x))
```
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxeff.compression.numerics import LayerQuantization, Method
from jaxeff.core import spec_of, validate


@validate(spec=spec_of())
def deterministic(spec: Mapping[str, Method | None]) -> dict[str, Method | None]:
    """Replaces methods that draw by the form of them that doesn't.

    A method says which that is in its `deterministic()`: `Relaxed` and `Stochastic` take the
    nearest value, `BayesianBits` opens or closes its gates, `Discrete` takes the most probable
    value, `DoReFa` leaves gradients alone and `Binary` draws no signs. Other methods stay.

    Args:
        spec: Quantizers by site, as for `quantized`.

    Returns:
        A spec for `quantized` without a key.
    """
    return {pattern: _settled(setting) for pattern, setting in spec.items()}


def _settled(setting: Any) -> Any:
    if isinstance(setting, tuple):
        return tuple(_settled(each) for each in setting)
    if isinstance(setting, LayerQuantization):
        weights, activations = _settled(setting.weights), _settled(setting.activations)
        return replace(setting, weights=weights, activations=activations)
    return setting.deterministic() if hasattr(setting, "deterministic") else setting
