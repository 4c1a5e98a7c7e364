"""A policy: a bit width for the weights and the activations of every site, as arrays.

```python
import jax
import jax.numpy as jnp

from jaxeff.compression import bit_policy, each_policy, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
sites = ("conv1", "fc2")
spec = bit_policy(sites, jnp.array([4, 32]), jnp.array([8, 2]))    # fc2 keeps its weights
quantized(f, spec)(params, x)

many = jax.random.randint(jax.random.key(0), (100, 2), 1, 9)
logits = each_policy(f, params, x, sites, many, many)              # [100, batch, classes]
```

A width of 32 leaves an array alone. `each_policy` evaluates many in one compiled program, in which
weights are quantized once per width rather than once per policy.

Sharp edge: inside a loop of the model weights are quantized again by every policy.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxeff import core
from jaxeff.compression import numerics
from jaxeff.compression._quantized import of_inputs, quantized, settings_of
from jaxeff.compression.quantizers import Switched, Uniform
from jaxeff.program import Layer, evaluate, plain_rule, trace
from jaxeff.training import map_changes

FLOAT = 32
"""The width that leaves an array as it is."""

Method = Callable[[Any], numerics.Quantizer]
"""Makes a quantizer from a bit width, which may be traced: `Uniform`, `LSQ`."""
Widths = Int[Array | np.ndarray, "*policies sites"]


@core.validate(
    method=core.function_of_form("method(bits)"),
    of_activations=core.function_of_form("method(bits)"),
)
def bit_policy(
    sites: Sequence[str],
    weights: Widths | None = None,
    activations: Widths | None = None,
    *,
    method: Method = Uniform,
    of_activations: Method | None = None,
) -> dict[str, numerics.LayerQuantization | None]:
    """Makes a spec from the bits of every site.

    Args:
        sites: The layers.
        weights: Bit widths, 1 to 16, or 32 to leave the weights of a site alone; None for all of
            them. They may be traced, and have leading axes for `vmap` to go over.
        activations: Bit widths of the layers' inputs, in the same form.
        method: Function from a bit width to a quantizer.
        of_activations: Such a function for activations; None takes `method`.

    Raises:
        ValueError: There are no widths, not one per site, or one that is neither of these.
    """
    sites = tuple(sites)
    by_role = {"weights": weights, "activations": activations}
    if all(widths is None for widths in by_role.values()):
        raise ValueError("A policy needs bit widths of weights, of activations, or of both.")
    for name, widths in by_role.items():
        if widths is not None:
            _check(name, widths, sites)
    spec: dict[str, numerics.LayerQuantization | None] = {}
    for i, site in enumerate(sites):
        w = None if weights is None else _switched(weights[..., i], method)
        a = None
        if activations is not None:
            a = _switched(activations[..., i], of_activations or method)
        spec[site] = None if w is None and a is None else numerics.LayerQuantization(w, a)
    return spec


class WidthOptions(TypedDict, total=False):
    """How widths of bits are tried; `InWidths` has their meaning and defaults."""

    method: Method
    at_once: int


@dataclass(frozen=True)
class InWidths:
    """A model that is quantized to several widths; static to `jit`.

    Attributes:
        f: The model.
        sites: The layers.
        widths: The widths.
        method: Function from a bit width to a quantizer.
        at_once: Number of policies evaluated side by side, by `vmap`.
    """

    f: Callable[..., Any]
    sites: tuple[str, ...]
    widths: tuple[int, ...]
    _: KW_ONLY
    method: Method = Uniform
    at_once: int = 1


@core.validate(
    x=core.input_batch,
    weights=core.integer_array(2),
    activations=core.integer_array(2),
    method=core.function_of_form("method(bits)"),
    at_once=core.static_integer(),
)
@core.forwards(InWidths, WidthOptions)
def each_policy(
    f: Callable[..., Any],
    params: Any,
    x: Any,
    sites: Sequence[str],
    weights: Widths,
    activations: Widths,
    *,
    widths: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8, FLOAT),
    **options: Unpack[WidthOptions],
) -> Float[Array, "policies ..."]:
    """Evaluates a model under many policies.

    One program for any policies of a shape: other bits compile nothing.

    Args:
        f: A pure function `f(params, x)`.
        params: The parameters of `f`.
        x: Inputs, which are evaluated at once.
        sites: The layers.
        weights: Bit widths of their weights, a row per policy.
        activations: Bit widths of their inputs, in the same form.
        widths: The widths that policies may have; weights and inputs are kept in memory in each.
        **options: `method`, a function from a bit width to a quantizer; and `at_once`, the number
            of policies evaluated side by side, by `vmap`.

    Raises:
        ValueError: Widths that aren't a row per policy with one per site, or not among `widths`.
    """
    sites, widths = tuple(sites), tuple(widths)
    for name, bits in (("weights", weights), ("activations", activations)):
        if np.ndim(bits) != 2:
            raise ValueError(
                f"{name} must be a row of bit widths per policy, not {np.shape(bits)}."
            )
        _check(name, bits, sites)
        if core.is_concrete(bits) and not np.isin(bits, widths).all():
            bad = sorted(set(np.unique(bits).tolist()) - set(widths))
            raise ValueError(f"{name} have a width of {bad[0]}, but widths lists {widths}.")
    model = InWidths(f, sites, widths, **options)
    outputs: Array = _each(model, params, x, weights, activations)
    return outputs


@functools.partial(jax.jit, static_argnums=0)
def _each(model: InWidths, params: Any, x: Any, weights: Any, activations: Any) -> Array:
    evaluated = under_policies(model, params, x)
    changes = (jnp.asarray(weights), jnp.asarray(activations))
    outputs: Array = map_changes(lambda c: evaluated(*c)(params, x), changes, model.at_once)
    return outputs


def under_policies(model: InWidths, *args: Any) -> Callable[[Any, Any], Callable[..., Any]]:
    """Makes the quantized model from the widths of a policy.

    What no policy changes, weights and the model's inputs, is quantized before, once in each width,
    and looked up.
    """
    f, sites, widths = model.f, model.sites, model.widths
    tables = _tables(model, args)

    def changed(weights: Any, activations: Any) -> Callable[..., Any]:
        spec = bit_policy(sites, weights, activations, method=model.method)
        for i, site in enumerate(sites):
            setting = spec[site]
            known = tables.get(site)
            if setting is None or known is None:
                continue
            # Weights don't depend on other sites' bits: a look-up replaces quantizing them
            # in each policy.
            w, a = (jnp.argmax(jnp.asarray(widths) == bits[i]) for bits in (weights, activations))
            read: Any = setting.activations
            if "activation" in known:
                read = _LookedUp(known["activation"], a)
            spec[site] = numerics.LayerQuantization(_LookedUp(known["weight"], w), read)
        return quantized(f, spec)

    return changed


@core.register_setting
class _LookedUp(numerics.BaseQuantizer):
    """Values of arrays computed in advance, by name, and the index of those to take."""

    values: dict[str, Any]
    index: Any
    purpose: str = core.static("look-up")

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Returns the values of an array."""
        entry = jax.lax.dynamic_index_in_dim(self.values[tensor.name], self.index, keepdims=False)
        return jnp.asarray(entry, x.dtype)


def _tables(model: InWidths, args: Sequence[Any]) -> dict[str, dict[str, dict[str, Array]]]:
    """Quantizes what no policy changes to every width: by site, by role, then by name.

    Sites inside loops, and those that share their weights, have none.
    """
    sites, widths = model.sites, model.widths
    program = trace(model.f, *args)
    settings = settings_of(
        {site: numerics.LayerQuantization(Uniform(8), Uniform(8)) for site in sites}, program
    )
    # A weight that two sites share has one table only if both use the same bits: leave it out.
    shared = {layer.base for layer in program.sites if layer.occurrence}
    alone = {layer.site for layer in program.layers if layer.base not in shared} & set(settings)
    changed: set[Any] = set()  # by the bits of some site
    for layer in program.layers:
        inside = (inner.site for body in layer.programs for inner in body.sites)
        # Whatever lies downstream of a quantized site varies between policies.
        is_quantized = not settings.keys().isdisjoint([layer.site, *inside])
        if is_quantized or not changed.isdisjoint(layer.inputs):
            changed.update(layer.outputs)
    bits = jnp.asarray(widths)
    tables: dict[str, dict[str, dict[str, Array]]] = {}

    def tabulate(x: Array, tensor: numerics.Tensor) -> Array:
        quantized_to: Array = jax.lax.map(
            lambda b: _switched(b, model.method).quantize(x, tensor), bits
        )
        return quantized_to

    def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        if layer.site in alone:
            read = of_inputs(layer, settings[layer.site], values)
            fixed = not any(layer.inputs[i] in changed for i in layer.data)
            of_site: dict[str, dict[str, Array]] = {"weight": {}}
            for _, tensor, i in read:
                if tensor.role == "weight" or fixed:
                    of_site.setdefault(tensor.role, {})[tensor.name] = tabulate(values[i], tensor)
            tables[layer.site] = of_site
        return plain_rule(layer, key, *values)

    evaluate(program, rule, None, jax.tree.leaves((tuple(args), {})))
    return tables


def _switched(bits: Any, method: Method) -> Any:
    """Makes a method that acts below 17 bits; one known width needs no switch."""
    if core.is_concrete(bits) and np.ndim(bits) == 0:
        return None if bits > numerics.MAX_BITS else method(int(bits))
    bits = jnp.asarray(bits)
    # A traced width may mean "leave alone": a number decides, as there is one program.
    return Switched(
        method(jnp.clip(bits, 1, numerics.MAX_BITS)),
        (bits <= numerics.MAX_BITS).astype(jnp.float32),
    )


def _check(name: str, widths: Any, sites: tuple[str, ...]) -> None:
    shape = np.shape(widths)
    if not shape or shape[-1] != len(sites):
        raise ValueError(
            f"{name} must hold a bit width for each of {len(sites)} sites, not {shape}."
        )
    if core.is_concrete(widths):
        numbers = np.asarray(widths)
        allowed = (numbers >= 1) & (numbers <= numerics.MAX_BITS) & (numbers % 1 == 0) | (
            numbers == FLOAT
        )
        if not allowed.all():
            where = np.argwhere(~allowed)[0]
            raise ValueError(
                f"{name} of {sites[where[-1]]!r} has {numbers[tuple(where)]:g} bits; a width is 1 "
                f"to {numerics.MAX_BITS}, or {FLOAT} to leave the array alone."
            )
