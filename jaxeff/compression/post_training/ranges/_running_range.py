"""`running`: quantization whose activation ranges are followed during training.

```python
from jaxeff.compression import Int, initial_ranges, running
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
spec = {"relu*": Int(4, weights=False, at="output"), "*:linear": Int(4, activations=False)}
g = running(f, spec)
ranges = initial_ranges(f, spec, params, x)
logits, ranges = g(params, ranges, x)                   # a model with a state
h = running(f, spec, training=False)                    # afterwards: the ranges stay
```

Each range is an exponential moving average of the batches' smallest and largest values, the
present batch included, corrected for its start at nothing.

Sharp edges:
    It follows what `at="output"` quantizes and leaves without a range; other settings act as in
    `quantized`. A layer inside a loop can't be followed.
    A value outside a range is clamped, but its gradient stays one (straight-through).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxeff.compression._quantized import quantized, quantizing
from jaxeff.compression.numerics import Tensor, fake_quantize, value_range
from jaxeff.compression.quantizers import Int, Uniform
from jaxeff.core import NEW_STATE_TAG, STATE_TAG, check_number, probability, validate
from jaxeff.program import Rule, check_settings, interpret, plain_rule, resolve, trace
from jaxeff.program.ir import Layer, Program


class RunningRange(NamedTuple):
    """A moving average of a tensor's range.

    Attributes:
        low: Decayed sum of the smallest values.
        high: Decayed sum of the largest values.
        weight: Decayed sum of ones; 0 before the first batch.
    """

    low: Float[Array, ""]
    high: Float[Array, ""]
    weight: Float[Array, ""]

    @property
    def bounds(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The averages; both zero before the first batch."""
        # The decayed sum of ones takes out the start at zero, as Adam's bias correction does.
        weight = jnp.where(self.weight > 0, self.weight, 1)
        return self.low / weight, self.high / weight


Ranges = dict[str, RunningRange]


@validate(decay=probability)
def running(
    f: Callable[..., Any],
    spec: Mapping[str, Int | None],
    *,
    decay: float = 0.9,
    training: bool = True,
) -> Callable[..., Any]:
    """Quantizes a model, in floating point, with ranges that follow its activations.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Maps patterns of sites to `Int` settings, as for `quantized`.
        decay: Share of a moving average that remains after a batch, 0 to 1.
        training: Whether the ranges follow the batches; otherwise they stay as they are.

    Returns:
        A pure function `g(params, ranges, *args) -> (result, ranges)`: a model with a state.

    Raises:
        TypeError: A setting isn't an `Int`.
        ValueError: `decay` isn't between 0 and 1; on the first call, a layer to follow is inside a
            loop, or the ranges are of other layers.
    """
    check_settings(spec, Int, "an Int, such as Int(8)")
    check_number("decay", decay, low=0, high=1)
    # Open ranges of results are followed by the rule below; the rest is quantized as usual.
    rest = quantized(f, {p: None if _is_followed(s) else s for p, s in spec.items()})

    def g(params: Any, ranges: Ranges, *args: Any, **kwargs: Any) -> tuple[Any, Ranges]:
        current = _tag(ranges, STATE_TAG)

        def make_rule(program: Program) -> Rule:
            settings = _followed(spec, program)
            if settings.keys() != ranges.keys():
                raise ValueError(
                    f"The ranges are of {sorted(ranges)}, but the spec follows {sorted(settings)}; "
                    "take those of initial_ranges."
                )

            def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
                first, *others = plain_rule(layer, key, *values)
                setting = settings.get(layer.site)
                if setting is None:
                    return [first, *others]
                tensor = Tensor(layer.site, "output_0", "activation", jnp.ndim(first))
                grid = Uniform(setting.width("activations"))
                with quantizing(grid, tensor, jnp.shape(first)):
                    if training:
                        # Before it is used: the first batch needs a range already.
                        current[layer.site] = _follow(current[layer.site], first, decay)
                    first = _quantize(setting, first, current[layer.site])
                return [first, *others]

            return rule

        result = interpret(rest, make_rule, None, (params, *args), kwargs)
        return result, _tag(current, NEW_STATE_TAG)

    return g


@validate()
def initial_ranges(
    f: Callable[..., Any], spec: Mapping[str, Int | None], params: Any, *args: Any
) -> Ranges:
    """Returns the state before the first batch.

    Args:
        f: The model.
        spec: Settings by site, as for `running`.
        params: The parameters of `f`; only shapes matter, here and below.
        *args: Further arguments of `f`.

    Returns:
        An empty moving average for every layer that is followed.

    Raises:
        ValueError: No layer is followed, or one is inside a loop.
    """
    check_settings(spec, Int, "an Int, such as Int(8)")
    sites = _followed(spec, trace(f, params, *args))
    if not sites:
        raise ValueError(
            'The spec leaves no range open of what a layer returns: give an Int(..., at="output") '
            "without a range, or use jaxeff.quantized."
        )
    return {site: RunningRange(*(jnp.zeros(()) for _ in range(3))) for site in sites}


def _is_followed(setting: Int | None) -> bool:
    if setting is None or not setting.activations or setting.at != "output":
        return False
    if setting.weights and setting.range is None:
        raise ValueError(
            f"{setting!r} quantizes weights and what a layer returns; to follow ranges give each a "
            "pattern of its own (weights=False here)."
        )
    return setting.range is None


def _followed(spec: Mapping[str, Int | None], program: Program) -> dict[str, Int]:
    found = {site: s for site, s in resolve(spec, program).items() if _is_followed(s)}
    outside = {layer.site for layer in program.layers}
    inside = sorted(found.keys() - outside)
    if inside:
        raise ValueError(
            f"{', '.join(inside)} lies inside a loop or branch, where no range can be followed; "
            "give it a range (jaxeff.compression.calibrate measures it)."
        )
    return found


def _follow(old: RunningRange, x: Any, decay: float) -> RunningRange:
    # A statistic like that of a batch norm: no gradient flows through the state.
    low, high = (jax.lax.stop_gradient(end).reshape(()) for end in value_range(x))
    seen = RunningRange(low, high, jnp.ones(()))
    return jax.tree.map(lambda a, b: decay * a + (1 - decay) * b, old, seen)


def _quantize(setting: Int, x: Any, seen: RunningRange) -> Any:
    symmetric = setting.is_symmetric("activations")
    return fake_quantize(x, setting.width("activations"), *seen.bounds, symmetric)


def _tag(ranges: Ranges, tag: str) -> Ranges:
    """Marks the ranges as state, so that a later transform doesn't take them for data."""
    return {
        site: RunningRange(
            **{n: checkpoint_name(x, f"{tag}{site}/{n}") for n, x in seen._asdict().items()}
        )
        for site, seen in ranges.items()
    }
