"""Products with weights that stay packed in memory: few bits to a code, or two of four inputs.

Exported, they are composites `jaxeff.q_packed` and `jaxeff.q_sparse`, whose decomposition is the
arithmetic here. Results of float32 are float32; of int8 codes with int8 steps, or none, they are
int32, the same bits on every machine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int8, UInt8

from jaxeff.compression.integers import _operators as operators
from jaxeff.compression.integers._layers import Kernel, product_of
from jaxeff.compression.numerics import LayerQuantization, OnGrid, Tensor
from jaxeff.compression.quantizers import multiples_of
from jaxeff.core import jax_internals as _compat
from jaxeff.program import Layer

KEPT, BLOCK = 2, 4
_SHARED, _BITS = 4, 2  # places in a byte, and bits of each


def q_sparse(x: Array, values: Array, places: Array, *, weight_bits: int) -> Array:
    """Multiplies by weights of which two of every four inputs are kept, stored without the zeros.

    With the kept values v of K inputs for each of N outputs, two for each block of four, and their
    places p in the blocks,

        y[m, n] = sum_i x[m, 4 (i // 2) + p[i, n]] v[i, n]

    Memory is 17 bits a weight in float32 and 5 in int8, of 32 and 8.

    Args:
        x: float32 (M, K); or int8, codes on a grid around zero.
        values: int8 (K / 2, N), or float32 for x of float32.
        places: uint8 (ceil(K / 8), N): those of values 4i to 4i + 3 in byte i, 2 bits each, the
            first lowest.
        weight_bits: Width of the values, an attribute of the composite.

    References:
        Mishra et al., "Accelerating Sparse Deep Neural Networks", arXiv:2104.08378, section 3.
    """

    def rule(x: Array, values: Array, places: Array) -> tuple[Array]:
        dtype = jnp.int32 if x.dtype == jnp.int8 else jnp.float32
        return (jnp.matmul(x.astype(dtype), without_gaps(values.astype(dtype), places)),)

    attributes = {"weight_bits": weight_bits}
    (y,) = _compat.export_composite(rule, (x, values, places), "jaxeff.q_sparse", attributes)
    return y


def kept_of(w: Array, mask: Array) -> tuple[Array, Array]:
    """Returns the values of a matrix (K, N) that a mask keeps of every block, and their places."""
    depth, columns = w.shape
    apart = (depth // BLOCK, BLOCK, columns)
    # Stable: what is kept comes first, in the order of the inputs.
    places = jnp.argsort(~mask.reshape(apart), axis=1, stable=True)[:, :KEPT]
    values = jnp.take_along_axis(w.reshape(apart), places, 1).reshape(-1, columns)
    # A last byte that isn't full has places of values that there are none of.
    rows = jnp.pad(places.reshape(-1, columns), ((0, -(depth // KEPT) % _SHARED), (0, 0)))
    four = rows.reshape(-1, _SHARED, columns) << (_BITS * jnp.arange(_SHARED))[None, :, None]
    return values, four.sum(1).astype(jnp.uint8)


def without_gaps(values: Array, places: Array) -> Array:
    """Fills what `kept_of` left out with zeros."""
    rows, columns = values.shape
    shifts = _BITS * jnp.arange(_SHARED, dtype=jnp.uint8)
    each = (places[:, None] >> shifts[None, :, None]) & 3
    at = each.reshape(-1, columns)[:rows].reshape(-1, KEPT, 1, columns)
    apart = values.reshape(-1, KEPT, 1, columns)
    # Places of a block differ, so that at most one of the two terms isn't zero.
    inside = at == jnp.arange(BLOCK, dtype=jnp.uint8)[None, None, :, None]
    return jnp.where(inside, apart, jnp.zeros_like(apart)).sum(1).reshape(-1, columns)


@dataclass(frozen=True)
class SparseWeight:
    """How a weight is stored of which two of four inputs are kept.

    Attributes:
        quantizer: The method that keeps them, with a quantizer of the values or None.
        tensor: Description of it.
        bits: Bits of a value.
        largest: The largest magnitude of a code.
    """

    quantizer: Any
    tensor: Tensor
    bits: int
    largest: int = 0

    operator = staticmethod(q_sparse)
    most = 1

    @property
    def by_output(self) -> bool:
        """Whether there are `units`, a number for each output."""
        return self.quantizer.values is not None

    @property
    def attributes(self) -> dict[str, int]:
        """What the operator is told."""
        return {"weight_bits": self.bits}

    def operands(self, of_codes: bool) -> tuple[str, ...]:
        """Names what the operator multiplies by."""
        del of_codes
        return ("codes", "places")

    def stored(self, w: Float[Array, "*shape"], kernel: Kernel) -> dict[str, Array]:
        """Computes what is stored: `codes`, their `places` and `units` by output."""
        mask = kernel.lay_weight(self.quantizer.mask(w, self.tensor))
        if not self.by_output:
            values, places = kept_of(kernel.lay_weight(w), mask)
            return {"codes": values, "places": places}
        codes, steps = operators.weight_codes(self.quantizer.values, w, self.tensor)
        values, places = kept_of(kernel.lay_weight(codes), mask)
        units = kernel.lay_weight(jnp.broadcast_to(steps, w.shape))[0]
        return {"codes": values, "places": places, "units": units}


def pattern_of(quantizer: Any) -> tuple[int, int] | None:
    """Returns how many of how many inputs a method keeps, if it keeps as many of every block."""
    pattern: tuple[int, int] | None = getattr(quantizer, "pattern", None)
    return pattern


def sparse_weight(
    quantizer: Any, tensor: Tensor, kernel: Kernel, shape: tuple[int, ...]
) -> SparseWeight | str:
    """Describes how a sparse weight is stored; or why it can't be."""
    if pattern_of(quantizer) != (KEPT, BLOCK):
        return "a product with weights of another pattern than 2 of 4"
    # Blocks are neighbours in the weight as it lies, which isn't always how it is multiplied.
    with jax.ensure_compile_time_eval():
        laid = np.asarray(kernel.lay_weight(jnp.asarray(quantizer.blocks(shape, tensor))))
    number = np.arange(kernel.depth)[:, None] // BLOCK
    if not np.array_equal(laid // laid.shape[-1], np.broadcast_to(number, laid.shape)):
        return "a product whose inputs lie in another order than the blocks"
    values = quantizer.values
    if values is None:
        return SparseWeight(quantizer, tensor, 32)
    form = _form(values, tensor, shape)
    if isinstance(form, str):
        return form
    # A code of one bit has no zero, which padding needs.
    return (
        "a product with sparse weights of 1 bits"
        if form.bits == 1
        else SparseWeight(quantizer, tensor, *form)
    )


HALF = 4
"""Bits of codes that share a byte."""
_MULTIPLES = 127


def q_packed(x: Array, w: Array, *steps: Array, weight_bits: int, group: int) -> Array:
    """Multiplies by weights of few bits that stay codes in memory, two of four bits in a byte.

    With weight codes w, K of them for each of N outputs, and a step s for each group of them,

        y[m, n] = sum_k x[m, k] (w[k, n] s[k // group, n])

    Args:
        x: float32 (M, K); or int8, codes on a grid around zero.
        w: int8 (K, N); or uint8 (ceil(K / 2), N): code 2i plus 8 in the lower half of byte i, code
            2i + 1 plus 8 in the upper one.
        *steps: float32, float16, or int8 multiples of a step of the output (groups, N), each of any
            sign; of a single group there may be none, for a step of one.
        weight_bits: Width of the codes, an attribute of the composite.
        group: Inputs that share a step, an attribute.

    References:
        Lin et al., "AWQ", arXiv:2306.00978 (weights alone, by group). Dettmers et al.,
        "LLM.int8()", arXiv:2208.07339 (activations by token).
    """
    depth = x.shape[-1]

    def rule(x: Array, w: Array, *steps: Array) -> tuple[Array]:
        dtype = jnp.int32 if x.dtype == jnp.int8 else jnp.float32
        codes = (unpacked_codes(w, depth) if w.dtype == jnp.uint8 else w).astype(dtype)
        for each in steps:
            codes = codes * jnp.repeat(each.astype(dtype), group, 0)[:depth]
        return (jnp.matmul(x.astype(dtype), codes),)

    attributes = {"weight_bits": weight_bits, "group": group}
    (y,) = _compat.export_composite(rule, (x, w, *steps), "jaxeff.q_packed", attributes)
    return y


def packed_codes(codes: Int8[Array, "depth columns"]) -> UInt8[Array, "half columns"]:
    """Packs codes of at most four bits, two in a byte."""
    # Moved to be unsigned, so that a mask unpacks them.
    low = jnp.pad(codes, ((0, len(codes) % 2), (0, 0))).astype(jnp.int32) + 8
    return (low[0::2] | (low[1::2] << HALF)).astype(jnp.uint8)


def unpacked_codes(w: UInt8[Array, "half columns"], depth: int) -> Int8[Array, "depth columns"]:
    """Unpacks the codes of `packed_codes`."""
    both = jnp.stack([w & 15, w >> HALF], 1).reshape(-1, w.shape[-1])[:depth]
    return both.astype(jnp.int8) - jnp.int8(8)


@dataclass(frozen=True)
class PackedWeight:
    """How a weight of few bits is stored.

    Attributes:
        quantizer: Method of its grid, by itself or by group.
        tensor: Description of it.
        bits: Bits of a code.
        largest: The largest magnitude of a code.
        group: Codes that share a step.
        steps: What steps are stored as.
    """

    quantizer: Any
    tensor: Tensor
    bits: int
    largest: int
    group: int
    steps: str = "float32"

    operator = staticmethod(q_packed)

    @property
    def most(self) -> int | None:
        """The largest multiple of a step of its output; None where steps are floats."""
        return _MULTIPLES if self.steps == "int8" else None

    @property
    def by_output(self) -> bool:
        """Whether there are `units`, a number for each output."""
        return self.steps == "int8"

    @property
    def attributes(self) -> dict[str, int]:
        """What the operator is told."""
        return {"weight_bits": self.bits, "group": self.group}

    def operands(self, of_codes: bool) -> tuple[str, ...]:
        """Names what the operator multiplies floats by, or codes."""
        return ("codes", "steps") if self.by_output or not of_codes else ("codes",)

    def stored(self, w: Float[Array, "*shape"], kernel: Kernel) -> dict[str, Array]:
        """Computes what is stored: `codes`, `steps` by group and `units` by output."""
        codes, step = operators.weight_codes(self.quantizer, w, self.tensor)
        laid = kernel.lay_weight(codes)
        steps = kernel.lay_weight(jnp.broadcast_to(step, w.shape))[:: self.group]
        arrays = {"codes": packed_codes(laid) if self.bits <= HALF else laid}
        if self.steps == "int8":
            multiples, unit = multiples_of(jnp.abs(steps), (1,))
            multiples = jnp.where(steps < 0, -multiples, multiples)
            return {**arrays, "steps": multiples, "units": unit[0]}
        return {**arrays, "steps": steps.astype(self.steps)}


def _form(quantizer: Any, tensor: Tensor, shape: tuple[int, ...]) -> operators.CodeWidth | str:
    """Returns the sizes of a weight's codes; or why there is no kernel for them."""
    largest = (
        operators.largest_code(quantizer, tensor, shape) if isinstance(quantizer, OnGrid) else None
    )
    if largest is None:
        method = quantizer.method if is_grouped(quantizer) else quantizer
        return f"a product with weights of {type(method).__name__}"
    bits = operators.width(quantizer, f"{tensor.site}/{tensor.name}", most=16)
    if bits > operators.MOST_BITS:
        return f"a product with weights of {bits} bits"
    if not largest:
        return "a product with weights on a grid that isn't centred on zero"
    return operators.CodeWidth(bits, largest)


def packed_weight(
    quantizer: Any, tensor: Tensor, kernel: Kernel, shape: tuple[int, ...]
) -> PackedWeight | SparseWeight | str:
    """Describes how a weight is stored; or why it can't be."""
    if pattern_of(quantizer) is not None:
        return sparse_weight(quantizer, tensor, kernel, shape)
    form = _form(quantizer, tensor, shape)
    if isinstance(form, str):
        return form
    # A step for each output is one group as long as the sum.
    group = getattr(quantizer, "group", None) or kernel.depth
    steps = getattr(quantizer, "steps", "float32")
    return PackedWeight(quantizer, tensor, *form, group, steps)


def is_grouped(quantizer: Any) -> bool:
    """Tells whether weights of one output have several steps."""
    return getattr(quantizer, "group", None) is not None


def takes_packed(setting: LayerQuantization) -> bool:
    """Returns whether a setting's products are those of packed weights."""
    alone = setting.weights is not None and setting.activations is None
    return alone or is_grouped(setting.weights) or pattern_of(setting.weights) is not None


def packed_kernel(layer: Layer) -> Kernel | str:
    """Finds how a layer with packed weights is laid out; or why there is no kernel."""
    kernel = product_of(layer)
    if not isinstance(kernel, str) and kernel.operator is not operators.q_dense:
        return "quantized by group or in its weights alone and no product with one matrix"
    return kernel


class PackedLayer(NamedTuple):
    """A layer whose weight is packed.

    Attributes:
        layer: The layer.
        kernel: Layout of its product.
        weight: How its weight is stored.
        call: The operator, under the name of the layer.
        stored: Function from a name to the array of `PackedWeight.stored`.
    """

    layer: Layer
    kernel: Kernel
    weight: PackedWeight | SparseWeight
    call: Callable[..., Array]
    stored: Callable[[str], Array]


def packed_product(
    packed: PackedLayer,
    x: Float[Array, "*shape"],
    bias: Float[Array, " columns"] | None,
    grid_of_x: tuple[Any, Tensor] | None,
) -> Array:
    """Computes a layer whose weights are packed.

    `grid_of_x` has grid and description of the activations, if they are quantized.
    """
    layer, kernel, weight, call, stored = packed
    dtype, at = layer.outputs[0].aval.dtype, weight.attributes
    units = stored("units") if weight.by_output else None
    # Steps are float32, so products are too, whatever the layer's dtype is.
    rows = kernel.lay_input(x.astype(jnp.float32))
    if grid_of_x is None:
        y = call(rows, *map(stored, weight.operands(of_codes=False)), **at)
        y = y if units is None else y * units[None]
        y = y if bias is None else y + bias[None]
        return kernel.lay_result(y).astype(dtype)
    quantizer, tensor = grid_of_x
    bits, most = operators.width(quantizer, layer.site), weight.most or 1
    check_sums(layer.site, kernel.depth, bits, weight, most)
    to = quantizer.uniform_grid(x.astype(jnp.float32), tensor)
    step, lower, upper = (kernel.lay_scale(v, kernel.depth) for v in (to.step, to.lower, to.upper))
    q = jnp.clip(jax.lax.round(rows / step, operators.HALF_TO_EVEN), lower, upper).astype(jnp.int8)
    acc = call(q, *map(stored, weight.operands(of_codes=True)), **at)
    # What is left of the steps once the groups' multiples are in the sums.
    by_output = stored("steps")[0] if units is None else units
    guard = operators.guard_bits(kernel.depth, bits, weight.largest * most)
    unit = kernel.lay_scale(to.step, acc.shape[-1]) * by_output[None] / 2**guard
    if bias is None:
        return kernel.lay_result(acc.astype(jnp.float32) * unit * 2**guard).astype(dtype)
    return kernel.lay_result(operators.biased(acc << guard, bias[None], unit)).astype(dtype)


def check_grids(
    quantizer: Any,
    tensor: Tensor,
    shape: tuple[int, ...],
    weight: PackedWeight | SparseWeight,
    dynamic: bool,
) -> None:
    """Checks that sums of codes need neither floats nor the sums of a group's weights.

    `quantizer` and `tensor` are the activations'; `dynamic` says whether open ranges are computed
    in every call.
    """
    site, bits = tensor.site, operators.width(quantizer, f"{tensor.site}/{tensor.name}")
    if operators.largest_code(quantizer, tensor, shape) != operators.levels(bits):
        raise operators.IntegerError(
            f"{site!r}: weights by group multiply activations on a grid around zero, whose sums "
            "need no sum of each group's weights: take symmetric=True, or activations=False."
        )
    if weight.most is None:
        raise operators.IntegerError(
            f"{site!r}: codes of activations are summed over groups without a float, so groups "
            'need steps of 8 bits: take steps="int8", or activations=False.'
        )
    if bits < 2:  # a symmetric grid of one bit has no zero
        raise operators.IntegerError(
            f"{site!r}: activations of products by group need two bits or more."
        )
    if operators.is_open(quantizer, tensor) and not dynamic:
        raise operators.IntegerError(
            f"{site!r}: its activations have no range: calibrate measures one; dynamic=True "
            "computes it anew in every call."
        )


def check_sums(
    site: str, depth: int, bits: int, weight: PackedWeight | SparseWeight, most: int
) -> None:
    """Checks that int32 holds the sums of a layer, with a bias."""
    largest = operators.levels(bits) * weight.largest * most
    # The largest bias takes a quarter of int32.
    deepest = (3 * operators.LIMIT - 1) // largest
    if depth > deepest:
        raise operators.IntegerError(
            f"{site!r} sums {depth} products of {bits} and {weight.bits} bits with steps of "
            f"8 bits, which can overflow int32 from {deepest + 1} on; take fewer bits, or "
            "activations=False."
        )
