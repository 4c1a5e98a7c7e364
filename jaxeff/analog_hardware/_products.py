"""`analog`: a model whose dense and convolution layers run on analog crossbars, as a transform.

```python
import jax

from jaxeff.analog_hardware import Crossbar, Linear, analog, partition
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
x = x - x.min()                                           # pulses have no sign
spec = {"fc*:linear": Crossbar(gain=0.02, model=Linear(noise=1.0))}
g = analog(f, spec)
logits = g(jax.random.key(0), params, x)
print(partition(f, params, x, spec))                      # tiles, calls, utilisation, clipping
```

A layer's product is cut into tiles of `rows` by `columns`; every tile is read out and converted on
its own, and the tiles of a column are added digitally. Biases, activations and everything else stay
digital. A convolution sends one patch per position; its groups share tiles along the diagonal.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.analog_hardware import _crossbar
from jaxeff.core import check_function, is_concrete, read_once, single_key, validate
from jaxeff.core import jax_internals as _compat
from jaxeff.program import (
    Layer,
    Program,
    check_settings,
    interpret_sites,
    read_out,
    read_out_by,
    resolve,
)
from jaxeff.program.ir import run_nodes

Counts = Callable[[Any, Any, Any], Any]
"""Counts of a chip, `(key, weights, inputs) -> counts`, for tiles: `[g, tr, tc, r, c]` of weight
codes, `[g, tr, p, r]` of input codes, `[g, tr, tc, p, c]` of counts."""


class TiledProduct(NamedTuple):
    """A product on tiles: `g` groups, `tr` by `tc` tiles of `r` rows and `c` columns.

    Attributes:
        inputs: Codes, `[g, tr, p, r]`.
        weights: Codes, `[g, tr, tc, r, c]`.
        held: Counts before conversion, or those that a chip gave, `[g, tr, tc, p, c]`.
        counts: Converted, `[g, tr, tc, p, c]`.
    """

    inputs: Float[Array, "g tr p r"]
    weights: Float[Array, "g tr tc r c"]
    held: Float[Array, "g tr tc p c"]
    counts: Float[Array, "g tr tc p c"]


Shares = tuple[Any, Any, Any]
"""Parts of inputs, weights and counts that are clamped, as scalars."""

Observe = Callable[[_crossbar.MatrixProduct, TiledProduct, Shares], None]


def on_crossbar(
    crossbar: _crossbar.Crossbar,
    layer: Layer,
    key: PRNGKeyArray | None,
    values: Sequence[Any],
    chip: Counts | None = None,
    observe: Observe | None = None,
) -> tuple[Any, ...]:
    """Computes a linear layer with its product on a crossbar; without noise if there is no key.

    `chip` computes the counts in the model's place, which still has the gradient; `observe` is
    called with the product, its tiles and what is clamped.
    """
    op = layer.op
    assert op is not None

    def bind(eqn: Any, *operands: Any) -> list[Any]:
        if eqn is not op.eqn:
            return _compat.bind(eqn, *operands)
        (dtype,) = (v.aval.dtype for v in op.outputs)
        # Codes are whole numbers up to thousands: bfloat16 would round them.
        precise = jnp.promote_types(dtype, jnp.float32)
        left, right = (x.astype(precise) for x in operands)
        product = _crossbar.as_product(layer.site, op, left, right)
        result = _multiplied(crossbar, layer.site, key, product, chip, observe)
        return [product.restore(result).astype(dtype)]

    return run_nodes(layer.nodes, layer.inputs, values, layer.outputs, bind)


def variance_of(crossbar: _crossbar.Crossbar, layer: Layer, values: Sequence[Any]) -> Any:
    """Computes the variance that read-outs of tiles give a layer's result, in its shape."""
    op = layer.op
    assert op is not None
    variances: list[Any] = []

    def bind(eqn: Any, *operands: Any) -> list[Any]:
        if eqn is not op.eqn:
            return _compat.bind(eqn, *operands)
        left, right = (x.astype(jnp.float32) for x in operands)
        product = _crossbar.as_product(layer.site, op, left, right)
        # The variance of a sum over tiles is the sum of the tiles' variances: the same adding and
        # restoring as for counts, without the clamp of digital sums, which is nonlinear.
        spread: list[Any] = []
        quiet = dataclasses.replace(crossbar, correction=None)

        def observe(part: _crossbar.MatrixProduct, tiles: TiledProduct, _: Shares) -> None:
            pairs = jax.vmap(jax.vmap(jax.vmap(crossbar.model.variance, (None, 0))))
            each = pairs(tiles.inputs, tiles.weights)
            each = jnp.broadcast_to(each, tiles.counts.shape)
            if crossbar.correction is not None:
                each = each * crossbar.correction.scale[: each.shape[-1]] ** 2
            wide = dataclasses.replace(crossbar, sum_bits=None)
            each = part.restore(_summed(wide, each, part.weights.shape[-1]))
            # Signed inputs are read out twice: variances add.
            spread.extend(jnp.split(each, 2, axis=1) if crossbar.signed else [each])

        _multiplied(quiet, layer.site, None, product, None, observe)
        steps = _steps(crossbar, product)
        unit = steps[0] * steps[1] / (crossbar.gain * crossbar.sends)
        # In squares of a count's value.
        variances.append(product.restore(sum(spread) * unit**2))
        return _compat.bind(eqn, *operands)

    run_nodes(layer.nodes, layer.inputs, values, layer.outputs, bind)
    return variances[0]


def product_of(layer: Layer, values: Sequence[Any]) -> tuple[Any, Any]:
    """Returns a linear layer's factors, `[groups, vectors, rows]` and `[groups, rows, columns]`."""
    op = layer.op
    assert op is not None
    products: list[Any] = []

    def bind(eqn: Any, *operands: Any) -> list[Any]:
        if eqn is op.eqn:
            left, right = (x.astype(jnp.float32) for x in operands)
            products.append(_crossbar.as_product(layer.site, op, left, right))
        return _compat.bind(eqn, *operands)

    run_nodes(layer.nodes, layer.inputs, values, layer.outputs, bind)
    return products[0].inputs, products[0].weights


def _is_noiseless(crossbar: _crossbar.Crossbar) -> bool:
    """Returns whether a crossbar's model is known to draw nothing."""
    return bool(getattr(crossbar.model, "noiseless", False))


def _steps(crossbar: _crossbar.Crossbar, product: _crossbar.MatrixProduct) -> tuple[Any, Any]:
    """Computes the values of one input code and one weight code."""
    return (
        _step(crossbar.input_step, product.inputs, crossbar.input_top),
        _step(crossbar.weight_step, product.parameter, crossbar.weight_top),
    )


def _multiplied(
    crossbar: _crossbar.Crossbar,
    site: str,
    key: PRNGKeyArray | None,
    product: _crossbar.MatrixProduct,
    chip: Counts | None,
    observe: Observe | None,
) -> Any:
    if not crossbar.signed:
        product = product._replace(inputs=require_non_negative(site, product.inputs))
    if chip is None and _is_noiseless(crossbar):
        key = None  # what is drawn for nothing is most of what there is to compile
    if chip is None and observe is None:
        return _simulated(crossbar, key, product.inputs, product.weights, product.parameter)
    return _passes(crossbar, key, product, chip, observe)


@jax.jit
def _simulated(
    crossbar: _crossbar.Crossbar, key: Any, inputs: Any, weights: Any, parameter: Any
) -> Any:
    """Multiplies on models: traced once for all products of one shape and kind of crossbar."""
    product = _crossbar.MatrixProduct(inputs, weights, lambda y: y, parameter)
    return _passes(crossbar, key, product, None, None)


def _passes(
    crossbar: _crossbar.Crossbar,
    key: PRNGKeyArray | None,
    product: _crossbar.MatrixProduct,
    chip: Counts | None,
    observe: Observe | None,
) -> Any:
    """Sends the inputs, negative ones in a pass of their own, and scales what is read out."""
    inputs = product.inputs
    input_step, weight_step = _steps(crossbar, product)
    if crossbar.signed:
        # A pulse has no sign: negative inputs go in a second pass, whose counts are subtracted. The
        # passes are vectors beside one another on the same tiles.
        inputs = jax.lax.concatenate([inputs, -inputs], 1)
    part = _crossbar.pack_groups(
        product._replace(inputs=inputs, restore=lambda y: y),
        crossbar.rows,
        crossbar.columns,
    )
    a = _crossbar.encode_integers(part.inputs, input_step, 0, crossbar.input_top)
    w = _crossbar.encode_integers(
        part.weights, weight_step, -crossbar.weight_top, crossbar.weight_top
    )
    gain = jnp.asarray(crossbar.gain, a.dtype)
    if crossbar.sends > 1:
        gain = gain * crossbar.sends
    tiles = _tiles(crossbar, key, a, w, gain, chip)
    if observe is not None:
        low, high = _crossbar.signed_range(crossbar.output_bits)
        clipped = (
            jnp.mean(inputs > (crossbar.input_top + 0.5) * input_step),
            jnp.mean(jnp.abs(product.weights) > (crossbar.weight_top + 0.5) * weight_step),
            # Counts of a chip come clamped: at an end, what was held may have been beyond it.
            jnp.mean((tiles.held < low) | (tiles.held >= high + 1))
            if chip is None
            else jnp.mean((tiles.held <= low) | (tiles.held >= high)),
        )
        observe(part, tiles, clipped)
    counts = part.restore(_summed(crossbar, tiles.counts, part.weights.shape[-1]))
    if crossbar.signed:
        positive, negative = jnp.split(counts, 2, 1)
        counts = positive - negative
    # A count is gain times a sum of products of codes, and codes count steps.
    return counts * (input_step * weight_step / gain)


def _tiles(
    crossbar: _crossbar.Crossbar, key: PRNGKeyArray | None, a: Any, w: Any, gain: Any,
    chip: Counts | None,
) -> TiledProduct:  # fmt: skip
    """Computes the converted counts of every tile of `[g, p, k]` by `[g, k, n]` codes."""
    # Inputs are shared by the tiles of a row, weights are each tile's own.
    inputs = _crossbar.cut_into_tiles(a, {2: crossbar.rows}).transpose(0, 2, 1, 3)
    weights = _crossbar.cut_into_tiles(w, {1: crossbar.rows, 2: crossbar.columns})
    weights = weights.transpose(0, 1, 3, 2, 4)  # from [g, tr, r, tc, c]
    model = crossbar.model

    def over_tiles(function: Callable[[Any, Any], Any]) -> Any:
        by_column = jax.vmap(function, (None, 0))
        return jax.vmap(jax.vmap(by_column))(inputs, weights)

    def by_pass(draw: Callable[[Any, Any], Any], vectors: Any, axis: int) -> Any:
        """Draws for each pass with a key of its own; vectors of both lie along an axis."""
        passes = jnp.split(vectors, 2, axis) if crossbar.signed else [vectors]
        keys = [None] * 2 if key is None else jax.random.split(key)
        drawn = [draw(pass_key, part) for pass_key, part in zip(keys, passes, strict=False)]
        return jnp.concatenate(drawn, -2)

    held = over_tiles(lambda x, m: model.counts(x, m, gain))
    # A chip has its own noise; the model's is added where no chip answers.
    if key is not None and chip is None:
        noise = by_pass(lambda k, part: jax.random.normal(k, part.shape, part.dtype), held, 3)
        held = held + jnp.sqrt(over_tiles(model.variance)) * noise
    rounding = getattr(model, "rounding", "nearest")
    counts = _crossbar.convert(held, crossbar.output_bits, rounding)
    if chip is not None:
        held = by_pass(lambda k, part: chip(k, weights, part), inputs, 2).astype(counts.dtype)
        # In the loop: the value of the chip, the gradient of the model.
        counts = _crossbar.with_gradient_of(held, counts)
    if crossbar.correction is not None:
        counts = crossbar.correction.apply(counts)
    return TiledProduct(inputs, weights, held, counts)


def _summed(crossbar: _crossbar.Crossbar, counts: Any, columns: int) -> Any:
    """Sums over row tiles digitally, `[g, p, n]`."""
    # Row tiles hold parts of one sum, column tiles different outputs.
    total = jax.lax.reduce_sum(counts, [1])
    if crossbar.sum_bits is not None:
        low, high = _crossbar.signed_range(crossbar.sum_bits)
        total = jnp.clip(total, low, high)
    groups, _, vectors, _ = total.shape
    return total.transpose(0, 2, 1, 3).reshape(groups, vectors, -1)[..., :columns]


def _step(step: Any, x: Any, top: int) -> Any:
    """Returns the value of a code: as set, or such that the largest magnitude has the largest."""
    if step is not None:
        return jnp.asarray(step, x.dtype)
    return _unit(jax.lax.reduce_max(jax.lax.abs(x), range(x.ndim)), top)


@functools.partial(jax.jit, static_argnums=1)
def _unit(largest: Any, top: int) -> Any:
    """Returns the value of a code of which the largest value has `top`: shared by all layers."""
    # No gradient through a scale, which would pull on the largest value alone.
    largest = jax.lax.stop_gradient(largest)
    return jax.lax.select(largest > 0, largest, jnp.ones((), largest.dtype)) / top


def require_non_negative(site: str, x: Any) -> Any:
    """Refuses negative inputs, which pulses can't carry; where traced, the result is NaN."""
    least = jax.lax.stop_gradient(x.min())
    if is_concrete(least) and float(least) < 0:
        raise ValueError(
            f"analog: {site!r} reads negative activations (minimum {float(least):.4g}, maximum "
            f"{float(x.max()):.4g}), but an input is the length of a pulse: put a ReLU in front, "
            "scale the data from 0 on, or let Crossbar(signed=True) send them in a second pass."
        )
    # Compiled code can't raise: NaN reaches the loss, whose training reports it.
    return x * jnp.where(least < 0, jnp.nan, 1).astype(x.dtype)


ChipAt = Callable[[str], Counts]
"""Function that computes the counts of a site in place of the model."""


@validate()
def analog(
    f: Callable[..., Any], spec: Mapping[str, _crossbar.Crossbar | None]
) -> Callable[..., Any]:
    """Runs dense and convolution layers of a model on analog crossbars.

    Sharp edges:
        Inputs are unsigned. Eager calls refuse a negative activation; under `jit`, where values
        can't be looked at, the layer's result is NaN, which `fit` reports, instead of a silent
        wrong number.
        Gradients are straight-through with those of clamping: none where a code or a column is
        clamped.
        A step that is None follows the largest value of every call, so that an example's result
        depends on its batch; `calibrate_ranges` fixes steps.
        Every tile is the same piece of hardware, written anew: a fixed pattern repeats over tiles.
        `analog` around `quantized` or `pruned` takes what these leave. Around `analog`, they find
        tiles in the place of a matrix: `quantized` has scales per tensor only, `pruned` refuses.
        Noise around it comes after the read-out. `jaxeff.moments` takes what a crossbar changes
        from `read_out`.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Maps patterns of linear sites to `Crossbar` settings; the most specific pattern
            decides, and None leaves a layer alone (`jaxeff.program`).

    Returns:
        A pure function `g(key, params, *args)` with the result of `f` on such hardware.

    Raises:
        TypeError: The spec isn't a mapping from patterns to `Crossbar` settings.
        ValueError: On the first call: a pattern matches or decides no site, two are equally
            specific at one, one decides a site that isn't linear, or a layer reads negative
            activations or nothing.

    References:
        Klein's thesis, section 5.2; Klein et al., "Towards addressing noise and static variations
        of analog computations using efficient retraining" (2021).
    """
    return with_chip(f, spec, None)


def with_chip(
    f: Callable[..., Any], spec: Mapping[str, _crossbar.Crossbar | None], chip: ChipAt | None
) -> Callable[..., Any]:
    """Computes `analog` with the counts of a chip, if there is one, and the models' gradients."""
    check_function("analog: f", f)
    check_crossbars(spec)
    f = read_once(f)

    def g(key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Any:
        single_key("the first argument, a key,", key)
        # A site's key is made of two equations, which nothing reads where nothing is drawn.
        is_silent = chip is None and all(a is None or _is_noiseless(a) for a in spec.values())

        def rule(
            array: _crossbar.Crossbar, layer: Layer, site_key: PRNGKeyArray, *values: Any
        ) -> Sequence[Any]:
            counts = None if chip is None else chip(layer.site)
            outputs = on_crossbar(array, layer, site_key, values, counts)
            return [
                # Marked, so that a transform around this one knows where products are read out.
                y if v.spread else read_out(y, "analog")
                for v, y in zip(layer.outputs, outputs, strict=True)
            ]

        arrays = functools.partial(crossbars, spec)
        return interpret_sites(f, arrays, rule, None if is_silent else key, args, kwargs, "analog")

    return g


def check_crossbars(spec: Any) -> None:
    """Checks that a spec maps patterns to crossbars or None.

    Raises:
        TypeError: It doesn't.
    """
    check_settings(spec, _crossbar.Crossbar, "a Crossbar, such as Crossbar(gain=0.004)")


def crossbars(
    spec: Mapping[str, _crossbar.Crossbar | None], program: Program
) -> dict[str, _crossbar.Crossbar]:
    """Resolves a spec to one crossbar per site.

    Raises:
        SpecError: As `jaxeff.program.resolve`.
    """
    settings = resolve(spec, program)
    for layer in program.sites:
        # A product with a constant of the program is linear too, but there is nothing to program.
        if layer.site in settings and layer.kind == "linear" and not layer.weights:
            raise ValueError(
                f"A crossbar holds weights, but {layer.site!r} multiplies by a constant that the "
                f"function computes; leave it out with {{..., {layer.site!r}: None}}."
            )
        if layer.site in settings and layer.kind != "linear":
            raise ValueError(
                f"A crossbar holds weights and multiplies, but {layer.site!r} is {layer.kind}; "
                "narrow the pattern, for example to '*:linear'."
            )
        # A tile has one current for a number: complex products are several real ones.
        if layer.site in settings and jnp.issubdtype(
            layer.outputs[0].aval.dtype, jnp.complexfloating
        ):
            raise ValueError(
                f"A crossbar multiplies real numbers, but {layer.site!r} multiplies complex ones; "
                f"multiply their parts, or leave it out with {{..., {layer.site!r}: None}}."
            )
        if layer.site in settings and (transform := read_out_by(layer.nodes)):
            raise ValueError(
                f"analog can't act on {layer.site!r}, which {transform} reads out already; leave "
                "it out with None, here or there."
            )
    return settings
