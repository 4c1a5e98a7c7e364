"""The effect of crossbars on a batch, layer by layer, measured on the host.

`partition` reports it, `calibrate_ranges` measures ranges for it, and `read_out` hands it to
`jaxeff.moments`. Each runs the model once, eagerly, layer by layer.

```python
import jax

import jaxeff
from jaxeff.analog_hardware import Crossbar, analog, calibrate_ranges, partition, read_out
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier(32)
x = x - x.min()                                          # pulses can't be negative
spec = calibrate_ranges(f, params, [x], {"fc1": Crossbar(gain=0.004)})
print(partition(f, params, x, spec))                     # tiles, and what is clipped
logits = analog(f, spec)(jax.random.key(0), params, x)
moments = jaxeff.moments(f, noise=read_out(f, params, x, spec))(params, x)
```
"""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff import core
from jaxeff.analog_hardware import _products as products
from jaxeff.analog_hardware._crossbar import Crossbar
from jaxeff.noise import ReadOut
from jaxeff.program import Layer, at_sites, evaluate, plain_rule, trace
from jaxeff.program.reading import argument_leaves

SATURATED = 0.05
"""Share of clamped read-outs above which `partition` warns."""


def _run(
    where: str,
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Crossbar | None],
    rule: Callable[[Crossbar, Layer, Sequence[Any]], Sequence[Any]],
) -> None:
    """Runs a model eagerly with a rule for the sites of a spec."""
    core.check_function(f"{where}: f", f)
    core.check_params(f"{where}: params", params)
    products.check_crossbars(spec)
    args = core.as_arguments(batch)
    program = trace(f, params, *args)
    arrays = products.crossbars(spec, program)
    outside = {layer.site for layer in program.layers}
    if inside := sorted(set(arrays) - outside):
        raise ValueError(
            f"{where}: {inside[0]!r} lies inside a loop or branch, where values can't be looked "
            "at; set its steps by hand, or leave it out with None."
        )

    def at(array: Crossbar, layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        return rule(array, layer, values)

    evaluate(program, at_sites(arrays, at), None, argument_leaves((params, *args), {}))


@dataclasses.dataclass(frozen=True)
class Placement:
    """Placement of one layer on the array.

    Attributes:
        site: The layer.
        rows: Inputs of the layer's matrix, of one group.
        columns: The number of outputs.
        groups: Matrices, of a grouped convolution.
        tiles: Weight matrices that the array is written with.
        calls: Vectors that are sent per example of the batch.
        utilisation: Share of the tiles' synapses that hold a weight of the layer.
        clipped_inputs: Share of inputs above the largest code.
        clipped_weights: Share of weights above it.
        clipped_counts: Share of read-outs that the converter clamps.
    """

    site: str
    rows: int
    columns: int
    groups: int
    tiles: int
    calls: float
    utilisation: float
    clipped_inputs: float
    clipped_weights: float
    clipped_counts: float


class Partition(tuple[Placement, ...]):
    """A `Placement` per site, in the order of the program; prints as a table."""

    def __str__(self) -> str:
        columns = ("site", "matrix", "groups>", "tiles>", "calls>", "used>", "inputs clipped>",
                   "weights>", "counts>")  # fmt: skip
        rows = [
            (p.site, f"{p.rows} x {p.columns}", str(p.groups), str(p.tiles), f"{p.calls:g}",
             f"{p.utilisation:.1%}", f"{p.clipped_inputs:.1%}", f"{p.clipped_weights:.1%}",
             f"{p.clipped_counts:.1%}") for p in self
        ]  # fmt: skip
        return str(core.Table(columns, rows))

    __repr__ = __str__


def _product(layer: Layer) -> Callable[..., Any]:
    """Compiles the factors of a layer's product: op by op they take seconds."""
    return jax.jit(lambda *values: products.product_of(layer, values))


@core.validate(batch=core.input_batch)
def partition(
    f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Crossbar | None]
) -> Partition:
    """Reports how layers lie on their arrays, and what is clamped on a batch.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them.
        spec: Crossbars by site, as for `jaxeff.analog_hardware.analog`.

    Returns:
        A placement per site. Reads more than one in twenty out of the converter's range, it warns.

    Raises:
        ValueError: As for `analog`.
    """
    placements: list[Placement] = []
    examples = np.shape(jax.tree.leaves(batch)[0])[0]

    def rule(array: Crossbar, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        outputs, placement = _placed(array, layer, values, examples)
        placements.append(placement)
        if placement.clipped_counts > SATURATED:
            warnings.warn(
                f"partition: {placement.clipped_counts:.0%} of the read-outs of {layer.site!r} are "
                "clamped; a smaller gain, fewer sends, or a larger weight_step (calibrate_ranges) "
                "leaves more of them in range.",
                stacklevel=2,
            )
        return outputs

    _run("partition", f, params, batch, spec, rule)
    return Partition(placements)


def _placed(
    array: Crossbar, layer: Layer, values: Sequence[Any], examples: int
) -> tuple[Sequence[Any], Placement]:
    """Runs a layer on its arrays, and reports how it lies there."""
    # On the host, where it can raise: in the compiled rule a negative input becomes NaN.
    if not array.signed:
        products.require_non_negative(layer.site, _product(layer)(*values)[0])
    shapes: list[tuple[Any, Any]] = []
    clipped: list[Any] = []

    def observe(_: Any, tiles: products.TiledProduct, clamped: products.Shares) -> None:
        shapes.append((tiles.inputs.shape, tiles.weights.shape))
        clipped.append(clamped)

    @jax.jit
    def run(*operands: Any) -> Any:
        # Filled while tracing: tracers of an earlier trace mustn't stay.
        clipped.clear()
        outputs = products.on_crossbar(array, layer, None, operands, None, observe)
        return outputs, [jnp.stack([jnp.asarray(c) for c in each]) for each in clipped]

    outputs, shares_of = run(*values)
    # Shapes of the layer's own matrix, before groups are packed into tiles.
    groups, rows, columns = jax.eval_shape(_product(layer), *values)[1].shape
    tiles = int(np.prod(shapes[0][1][:3]))
    vectors = shapes[0][0][2]
    shares = [float(x) for x in np.mean(shares_of, axis=0)]
    room = tiles * array.rows * array.columns
    placement = Placement(
        layer.site, rows, columns, groups, tiles, len(shapes) * tiles * vectors / examples,
        groups * rows * columns / room, *shares,
    )  # fmt: skip
    return outputs, placement


@core.validate(
    spec=core.string_mapping,
    inputs=core.number(0, 100),
    weights=core.number(0, 100),
    batches=core.input_batches,
)
def calibrate_ranges(
    f: Callable[..., Any],
    params: Any,
    batches: Iterable[Any],
    spec: Mapping[str, Crossbar | None],
    *,
    inputs: float = 99.9,
    weights: float = 100.0,
) -> dict[str, Crossbar]:
    """Fixes the value of codes by the activations of the digital model and its weights.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batches: Batches: `args` as a tuple, or the only one of them.
        spec: Crossbars by pattern; those with a step keep it.
        inputs: Percentile of a layer's positive inputs that gets the largest code, averaged over
            batches; 100 clamps nothing.
        weights: Percentile of the magnitudes of its weights.

    Returns:
        A spec with one crossbar per site, its `input_step` and `weight_step` set.

    Raises:
        ValueError: There is no batch, an activation or weight isn't finite, or a layer gets no
            positive input.
    """
    for name, value in (("inputs", inputs), ("weights", weights)):
        core.check_number(f"calibrate_ranges: {name}", value, high=100, above=0)
    tops: dict[str, list[float]] = {}
    largest: dict[str, float] = {}
    settings: dict[str, Crossbar] = {}

    def rule(array: Crossbar, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        site = layer.site
        a, w = (np.asarray(x) for x in _product(layer)(*values))
        _check_finite_operands(site, activations=a, weights=w)
        # Zeros, which a ReLU makes many of, need no code of their own: they would pull the
        # percentile down.
        positive = np.abs(a[a != 0]) if array.signed else a[a > 0]
        if positive.size:
            tops.setdefault(site, []).append(float(np.percentile(positive, inputs)))
        top = float(np.percentile(np.abs(w), weights))
        largest[site] = top if top > 0 else float(array.weight_top)
        settings[site] = array
        return plain_rule(layer, None, *values)

    count = 0
    for batch in batches:
        _run("calibrate_ranges", f, params, batch, spec, rule)
        count += 1
    if not count:
        raise ValueError("calibrate_ranges needs at least one batch, but there is none.")
    return _with_steps(settings, tops, largest)


def _with_steps(
    settings: Mapping[str, Crossbar],
    tops: Mapping[str, Sequence[float]],
    largest: Mapping[str, float],
) -> dict[str, Crossbar]:
    """Sets steps by the percentiles of inputs, one a batch, and of weights."""
    if silent := sorted(set(settings) - set(tops)):
        raise ValueError(
            f"calibrate_ranges: {silent[0]!r} gets no positive input in any batch, so there is "
            "nothing that its codes could stand for; give more data, or its input_step."
        )
    # Percentiles are means over batches: one of all would need every activation at once.
    return {
        site: dataclasses.replace(
            array,
            input_step=_kept(array.input_step, np.mean(tops[site]) / array.input_top),
            weight_step=_kept(array.weight_step, largest[site] / array.weight_top),
        )
        for site, array in settings.items()
    }


def _check_finite_operands(site: str, **operands: np.ndarray) -> None:
    for name, x in operands.items():
        if not np.isfinite(x).all():
            bad = int((~np.isfinite(x)).sum())
            raise ValueError(
                f"calibrate_ranges: {bad} of {x.size} {name} of {site!r} are NaN or infinite: mend "
                "the data, or train the model anew."
            )


def _kept(step: Any, measured: Any) -> Any:
    return jnp.float32(measured) if step is None else step


@core.validate(batch=core.input_batch)
def read_out(
    f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Crossbar | None]
) -> dict[str, ReadOut]:
    """Measures the shift and noise of crossbars on a batch: a noise spec for `jaxeff.moments`.

    ``jaxeff.moments(f, noise=read_out(f, params, x, spec))(params, x)`` has the crossbars' results
    as means and their read-out noise, with whatever else is random, as variances.

    Sharp edges:
        Shifts are those of a pass without noise, and variances pass later layers as the digital
        layer's do: codes and saturation act on means. Both are right to first order in the noise.
        It belongs to this batch.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them.
        spec: Crossbars by site, as for `jaxeff.analog_hardware.analog`.
    """
    read_outs: dict[str, ReadOut] = {}

    def rule(array: Crossbar, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        # On the host, as in `partition`.
        if not array.signed:
            products.require_non_negative(layer.site, _product(layer)(*values)[0])

        @jax.jit
        def run(*operands: Any) -> Any:
            outputs = products.on_crossbar(array, layer, None, operands)
            # Moments of the digital layer plus a shift: what quantization, clamping and
            # mismatch do to the mean.
            shift = outputs[0] - plain_rule(layer, None, *operands)[0]
            return outputs, shift, products.variance_of(array, layer, operands)

        outputs, *both = run(*values)
        read_outs[layer.site] = ReadOut(*both)
        return outputs

    _run("read_out", f, params, batch, spec, rule)
    return read_outs
