"""`deterministic`: a spec as it is used after training, with nothing left to chance."""

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
