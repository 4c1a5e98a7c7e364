"""Ranges of activations, measured on data or followed in training: `calibrate`, `ptq`, `running`.

```python
from jaxeff.compression import Int, initial_ranges, running
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
spec = {"relu*": Int(4, weights=False, at="output"), "*:linear": Int(4, activations=False)}
g = running(f, spec)
ranges = initial_ranges(f, params, x, spec)
logits, ranges = g(params, ranges, x)                   # a model with a state
h = running(f, spec, training=False)                    # afterwards: the ranges stay
```
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.compression._quantized import applies, of_inputs, of_outputs, quantized, quantizing
from jaxeff.compression.integers import integer
from jaxeff.compression.numerics import LayerQuantization, Tensor, fake_quantize, value_range
from jaxeff.compression.numerics import parts as parts_of
from jaxeff.compression.post_training import _clipping as clipping
from jaxeff.compression.post_training._layerwise import PostTrained
from jaxeff.compression.quantizers import Int, Uniform
from jaxeff.program import (
    Layer,
    Program,
    Rule,
    at_sites,
    check_settings,
    evaluate,
    interpret,
    plain_rule,
    resolve,
    trace,
)
from jaxeff.training import Batches

Measured = Int | Uniform | LayerQuantization
_OpenRanges = list[tuple[Any, Tensor, Any, int]]


@core.validate(percentile=core.number(above=0, high=100), spec=core.spec_of())
def calibrate(
    f: Callable[..., Any],
    params: Any,
    batches: Any,
    spec: Mapping[str, Measured | None],
    *,
    method: str | None = None,
    percentile: float | None = None,
    weights: bool = False,
) -> PostTrained:
    """Measures the range of every activation that a spec quantizes on a uniform grid.

    ```python
    from jaxeff.compression import Int, calibrate, quantized
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    _, _, spec = calibrate(f, params, [x[:128], x[128:]], {"*": Int(8), "fc2": None})
    logits = quantized(f, spec)(params, x)
    _, _, spec = calibrate(f, params, x, {"*:linear": Int(4)}, method="mse", weights=True)
    ```

    Sharp edges:
        Ranges are those of the model before quantization.
        A second call with batches of the same shapes and an equal spec compiles nothing where `f`
        is the same object.
        Uses of one layer with one setting, such as the steps of an unrolled cell, have one range;
        a use that the spec names (`"fc#1"`) has its own.
        Methods whose field `range` is None are measured, `Int` and `Uniform`; others start by
        `init`.
        This is host code: it runs over the batches once and can't be traced.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batches: A batch, `args` as a tuple or the only one of them; or a list of batches, of one
            shape each, or an iterator, a loader, `jaxeff.training.Batches`. A list or dict that is
            an argument itself, as of Keras's models of several inputs, goes into a tuple:
            `([a, b],)`.
        spec: Maps patterns of sites to `Int`, `Uniform` or `LayerQuantization` settings.
        method: "minmax" takes the smallest and largest value seen. "percentile" takes a percentile
            and its counterpart in every batch, averaged over batches, so that outliers are clamped.
            "mse" and "kl" clip where the squared error, or the divergence of the distributions, is
            least (`jaxeff.compression.clip_range`), on a histogram of all batches. None is
            "minmax", or "percentile" where one below 100 is given.
        percentile: Above 50, at most 100; 99.9 for "percentile" where none is given.
        weights: Whether ranges of weights are measured by the same method, those that
            `Uniform.per` says. They stay what they are then while parameters change.

    Returns:
        `f`, its parameters, and a spec with one setting per quantized site, those measured with a
        fixed range. An `Int` whose weights are measured becomes a `LayerQuantization`.

    Raises:
        TypeError: The spec isn't a mapping from patterns to such settings.
        ValueError: There are no batches or an empty one, `percentile` isn't above 50 and at most
            100 or belongs to another method, a pattern matches or decides no site, a layer was
            never reached or gave values that aren't finite, or a width has to be known and isn't.
    """
    batches = as_batches("calibrate: batches", batches)
    kinds: Any = Measured
    check_settings(spec, kinds, "an Int, such as Int(8), a Uniform or a LayerQuantization of them")
    method, percentile = _method(method, percentile)
    observer = clipping.Observer(method)
    measure = functools.partial(_observed, f, dict(spec), method, percentile, weights)
    arrays, seen = _run(core.kept_program(measure), observer, params, batches)
    settings, first_uses, kept = dict(seen.settings), seen.first_uses, seen.weights
    ranges = observer.ranges(seen.grids)
    for site, first in first_uses.items():
        if first in ranges:
            settings[site] = _with_ranges(settings[site], ranges[first])
    for site, (quantizer, axes) in kept.items():
        both = _weight_range(site, arrays[site], axes, quantizer, method, percentile)
        apart = parts_of(settings[site])
        fixed = dataclasses.replace(quantizer, range=both)
        settings[site] = dataclasses.replace(apart, weights=fixed)
    return PostTrained(f, params, settings)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class _Traced:
    """What a trace of a model says of its sites, which a program that is kept says again.

    Attributes:
        settings: The setting of each site.
        first_uses: The site that has the range of each, by site.
        grids: The grid of each activation that is measured.
        weights: The grid of each weight that is measured, and the axes that ranges differ along.
    """

    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    first_uses: dict[str, str] = dataclasses.field(default_factory=dict)
    grids: dict[clipping.Place, Uniform] = dataclasses.field(default_factory=dict)
    weights: dict[str, tuple[Uniform, tuple[int, ...]]] = dataclasses.field(default_factory=dict)


def _observed(
    f: Callable[..., Any],
    spec: Mapping[str, Measured | None],
    method: str,
    percentile: float,
    weights: bool,
    number: Any,
    *args: Any,
) -> tuple[dict[str, Any], _Traced]:
    """Runs a model, has the observer of a number record activations, and gives weights."""
    program = trace(f, *args)
    resolved = resolve(spec, program, applies, "an integer grid")
    seen = _Traced(_by_site(program, resolved), _first_uses(program, resolved))
    # Weights inside loops have no single array here: they keep their own range.
    outside = {layer.site for layer in program.layers}
    arrays: dict[str, Any] = {}

    def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        setting = resolved.get(layer.site)
        outputs = plain_rule(layer, key, *values)
        if setting is None:
            return outputs
        for quantizer, tensor, x, operand in _open(layer, setting, values, outputs):
            if tensor.role == "activation":
                place = seen.first_uses[layer.site], operand
                seen.grids[place] = quantizer
                clipping.observe(number, place, x, method, percentile)
            elif weights and layer.site in outside:
                seen.weights[layer.site] = quantizer, tensor.axes(quantizer.per)
                arrays[layer.site] = x
        return outputs

    evaluate(program, rule, None, jax.tree.leaves((args, {})))
    return arrays, seen


@core.validate(bits=core.static_integer(1, 8), spec=core.spec_of())
def ptq(
    f: Callable[..., Any],
    params: Any,
    batches: Any,
    *,
    bits: int = 8,
    spec: Mapping[str, Any] | None = None,
    method: str | None = None,
) -> PostTrained:
    """Makes a trained network one of integers: measures ranges, and converts its weights to codes.

    ```python
    from jaxeff.compression import ptq
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    g, codes, spec = ptq(f, params, x)
    logits = g(codes, x)
    ```

    `jaxeff_export.deploy(g, (codes, x[:1]), target="cortex-m7")` takes both. What it does is
    `calibrate`, `integer` and `convert`, which have more settings.

    Args:
        f: A pure function `f(params, *args)` in inference.
        params: The parameters of `f`.
        batches: Examples that ranges are measured on, as for `calibrate`.
        bits: Bit width of the weights of all dense and convolution layers, 1 to 8; their
            activations have 8.
        spec: Settings by site in place of those of `bits`.
        method: How ranges are measured, as `calibrate` has it.

    Returns:
        The function `g(codes, *args)`, the codes, and the spec with the measured ranges.

    Raises:
        ValueError: There are no batches, or as for `calibrate`.
        IntegerError: A layer has no integer kernel for its setting, as for `integer`.
    """
    batches = list(as_batches("ptq: batches", batches))
    if not batches:
        raise ValueError("ptq: there are no batches; give an array of examples, or a list of them.")
    measured = calibrate(f, params, batches, spec or {"*:linear": Int(bits, 8)}, method=method).spec
    g = integer(f, measured)
    return PostTrained(g, g.convert(params, *core.as_arguments(batches[0])), measured)


def as_batches(where: str, batches: Any) -> Iterable[Any]:
    """Returns batches one by one: those of a list or an iterator, or one alone."""
    if isinstance(batches, Batches):
        return batches.epoch(0, rest=True)
    alone = isinstance(batches, tuple | Mapping) or hasattr(batches, "dtype")
    batches = [batches] if alone else batches
    core.input_batches(where, batches)
    # A loader may give tensors of PyTorch, and its arguments as a list.
    return batches if isinstance(batches, list) else map(Batches.arrays, batches)


def _run(
    program: Callable[..., Any], observer: clipping.Observer, params: Any, batches: Iterable[Any]
) -> tuple[dict[str, Any], _Traced]:
    """Runs the model on all batches, and gives what the last does: weights are equal in all."""
    result: tuple[dict[str, Any], _Traced] | None = None
    for batch in batches:
        args = core.as_arguments(batch)
        core.check_params("a batch", args)
        if any(np.size(leaf) == 0 for leaf in jax.tree.leaves(args)):
            raise ValueError("calibrate needs batches with at least one example, but one is empty.")
        try:
            result = program(observer.number, params, *args)
        except (TypeError, ValueError) as error:
            if isinstance(batches, list) and len(batches) > 1:
                error.add_note(
                    f"The {len(batches)} entries of the list are taken as batches, one after the "
                    "other. One batch of several arguments is a tuple, (a, b); of one argument "
                    "that is a list, ([a, b],)."
                )
            raise
    # Callbacks run asynchronously: wait until all of them have recorded.
    jax.effects_barrier()
    if result is None:
        raise ValueError("calibrate needs at least one batch, but there is none.")
    return result


def _method(method: str | None, percentile: float | None) -> tuple[str, float]:
    """Returns the method, and the percentile that it takes."""
    if percentile is not None:
        core.check_number("percentile", percentile, high=100, above=50)
    if method is None:
        method = "minmax" if percentile in (None, 100) else "percentile"
    core.check_choice("method", method, clipping.METHODS)
    if percentile is not None and method != "percentile" and percentile != 100:
        raise ValueError(f'percentile={percentile} belongs to method="percentile", not {method!r}.')
    return method, 99.9 if percentile is None else percentile


def _open(
    layer: Layer, setting: Measured, values: Sequence[Any], outputs: Sequence[Any]
) -> _OpenRanges:
    """Lists a layer's methods with an open range, with their arrays and operands' numbers."""
    apart = parts_of(setting)
    arrays = [(q, t, values[i]) for q, t, i in of_inputs(layer, apart, values)]
    arrays += [(q, t, outputs[i]) for q, t, i in of_outputs(layer, apart, outputs)]
    return [
        (q, t, x, int(t.name.rpartition("_")[2]))
        for q, t, x in arrays
        if getattr(q, "range", ()) is None
    ]


def _with_ranges(setting: Measured, ends: Mapping[int, tuple[float, float]]) -> Measured:
    """Returns a setting with the ranges of its activations, by operand."""
    if isinstance(setting, Int):
        low, high = np.array([ends[i] for i in sorted(ends)], np.float32).T
        # A single activation has plain numbers, several have arrays with an entry for each.
        if len(low) == 1:
            low, high = low[0], high[0]
        return dataclasses.replace(setting, range=(jnp.asarray(low), jnp.asarray(high)))
    apart = parts_of(setting)
    count = max(ends) + 1
    activations = apart.activations
    if isinstance(activations, tuple):
        count = len(activations)
    methods = list(activations) if isinstance(activations, tuple) else [activations] * count
    for i, (low, high) in ends.items():
        both = jnp.asarray(low, jnp.float32), jnp.asarray(high, jnp.float32)
        grid: Any = methods[i]
        methods[i] = dataclasses.replace(grid, range=both)
    one = not isinstance(activations, tuple) and count == 1
    return dataclasses.replace(apart, activations=methods[0] if one else tuple(methods))


def _weight_range(
    site: str, w: Any, axes: Sequence[int], grid: Uniform, method: str, percentile: float
) -> tuple[Any, Any]:
    """Measures the range of a weight, or of each of its output channels."""
    values = np.asarray(w, np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"The weight of {site!r} holds NaN or infinity.")
    axes = [a % values.ndim for a in axes]
    rest = [a for a in range(values.ndim) if a not in axes]
    shape = tuple(n if a in axes else 1 for a, n in enumerate(values.shape)) if axes else ()
    # One row per range.
    flat = values.transpose(axes + rest).reshape(int(np.prod(shape)), -1)
    width = clipping.known_width(site, grid) if method in {"mse", "kl"} else 8
    ends = [
        clipping.clip_range(
            row, width, symmetric=grid.symmetric, method=method, percentile=percentile
        )
        for row in flat
    ]
    low, high = (jnp.asarray(np.array(e).reshape(shape), w.dtype) for e in zip(*ends, strict=True))
    return low, high


def _by_site(program: Program, measured: Mapping[str, Measured]) -> dict[str, Measured | None]:
    """Returns the settings that quantize something, one pattern per site."""
    used = {
        layer.base
        for layer in program.sites
        if layer.site in measured and applies(layer, measured[layer.site])
    }
    # A first use is a pattern for later uses too, so those left alone say None for themselves.
    chosen = {layer.site: layer for layer in program.sites if layer.base in used}
    return {
        site: measured[site] if site in measured and applies(layer, measured[site]) else None
        for site, layer in chosen.items()
    }


def _first_uses(program: Program, measured: Mapping[str, Measured]) -> dict[str, str]:
    """Returns the first of the uses that share a range with each site.

    An unrolled loop has the ranges of a rolled one, and so one set of scales.
    """
    first: dict[tuple[Any, ...], str] = {}
    return {
        layer.site: first.setdefault(
            (layer.base, id(measured[layer.site]), *(v.aval.shape for v in layer.inputs)),
            layer.site,
        )
        for layer in program.walk()
        if layer.site in measured
    }


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


@core.validate(decay=core.probability)
def running(
    f: Callable[..., Any],
    spec: Mapping[str, Int | None],
    *,
    decay: float = 0.9,
    training: bool = True,
) -> Callable[..., Any]:
    """Quantizes a model, in floating point, with ranges that follow its activations.

    Each range is an exponential moving average of the batches' smallest and largest values, the
    present batch included, corrected for its start at nothing.

    Sharp edges:
        It follows what `at="output"` quantizes and leaves without a range; other settings act as in
        `quantized`. A layer inside a loop can't be followed.
        A value outside a range is clamped, but its gradient stays one (straight-through).

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
    # Open ranges of results are followed by the rule below; the rest is quantized as usual.
    rest = quantized(f, {p: None if _is_followed(s) else s for p, s in spec.items()})

    def g(params: Any, ranges: Ranges, *args: Any, **kwargs: Any) -> tuple[Any, Ranges]:
        current = _tag(ranges, core.STATE_TAG)

        def make_rule(program: Program) -> Rule:
            settings = _followed(spec, program)
            _check_same_sites(ranges, settings)

            def rule(setting: Int, layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
                first, *others = plain_rule(layer, key, *values)
                tensor = Tensor(layer.site, "output_0", "activation", jnp.ndim(first))
                grid = Uniform(setting.width("activations"))
                with quantizing(grid, tensor, jnp.shape(first)):
                    if training:
                        # Before it is used: the first batch needs a range already.
                        current[layer.site] = _follow(current[layer.site], first, decay)
                    first = _quantize(setting, first, current[layer.site])
                return [first, *others]

            return at_sites(settings, rule)

        result = interpret(rest, make_rule, None, (params, *args), kwargs)
        return result, _tag(current, core.NEW_STATE_TAG)

    return g


def _check_same_sites(ranges: Ranges, settings: Mapping[str, Any]) -> None:
    if settings.keys() != ranges.keys():
        raise ValueError(
            f"The ranges are of {sorted(ranges)}, but the spec follows {sorted(settings)}; take "
            "those of initial_ranges."
        )


@core.validate(batch=core.parameter_tree)
def initial_ranges(
    f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Int | None]
) -> Ranges:
    """Returns the state before the first batch.

    Args:
        f: The model.
        params: The parameters of `f`; only shapes matter, here and below.
        batch: The inputs of `f` as a tuple, or the only one of them.
        spec: Settings by site, as for `running`.

    Returns:
        An empty moving average for every layer that is followed.

    Raises:
        ValueError: No layer is followed, or one is inside a loop.
    """
    check_settings(spec, Int, "an Int, such as Int(8)")
    sites = _followed(spec, trace(f, params, *core.as_arguments(batch)))
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
    settings = {site: s for site, s in resolve(spec, program).items() if _is_followed(s)}
    outside = {layer.site for layer in program.layers}
    inside = sorted(settings.keys() - outside)
    if inside:
        raise ValueError(
            f"{', '.join(inside)} lies inside a loop or branch, where no range can be followed; "
            "give it a range (jaxeff.compression.calibrate measures it)."
        )
    return settings


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
