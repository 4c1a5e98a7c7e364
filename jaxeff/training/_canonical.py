"""Convolutions in the one layout that is fast everywhere: ``[batch, ..., channels]``.

```python
import jax
import jax.numpy as jnp

from jaxeff.nn import small_classifier
from jaxeff.training import canonical_convolutions, canonical_in_loops, label_loss

f, params, (x, y) = small_classifier(32)

def update(params, rows):
    gradients = jax.grad(lambda p: label_loss(f(p, x[rows]), y[rows]))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), None

batches = jnp.arange(32).reshape(4, 8)
plain, _ = jax.lax.scan(update, params, batches)
quick, _ = jax.lax.scan(canonical_in_loops(update), params, batches)
same = jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-5), plain, quick)
assert all(jax.tree.leaves(same))

g = canonical_convolutions(f, products=True)             # whatever the device is
assert jnp.allclose(g(params, x), f(params, x), atol=1e-5)
```
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxeff.core import ClosedJaxpr, JaxprEqn, bind, primitives, pure_function, validate
from jaxeff.program.ir import Contraction, Scan, convolved_channels_last, walk


@validate(f=pure_function)
def canonical_convolutions(f: Callable[..., Any], *, products: bool = False) -> Callable[..., Any]:
    """Rewrites each convolution in ``f``, also in scans, to channels-last layout.

    The gradient of a convolution is a convolution with its axes in another order. XLA's CPU
    compiler brings it to the layout of its fast kernels only at the top level of a program: inside
    a loop, such as the scan over an epoch's mini-batches, it falls back to one that is several
    times slower. `canonical_convolutions` states the transpositions in the program itself. A
    LeNet-5 training epoch is three times faster with it, measured on two cores (jaxlib 0.10.2); the
    results are the same up to float rounding.

    Args:
      f: Any function of pytrees of arrays. Calls with custom derivatives, conditionals and while
        loops inside it are left as they are.
      products: Whether convolutions over a single channel become products of a matrix with patches,
        which XLA's CPU compiler computes several times faster. They then take the memory of their
        patches.

    Returns:
      A function of the same arguments (positional) and results.
    """

    def canonical(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
        outputs = _evaluate(
            closed, jax.tree.leaves(args), _product if products else convolved_channels_last
        )
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return canonical


def canonical_in_loops(f: Callable[..., Any], *, products: bool = False) -> Callable[..., Any]:
    """Rewrites ``f`` for use in a loop: with canonical convolutions on a processor.

    Inside a loop, XLA's CPU compiler has fast convolutions for that layout only; other compilers
    choose layouts themselves.

    Sharp edge: apply it last, to a function that takes its own gradients, such as an epoch. Derived
    *from* its result, gradients are right but slow again.

    Args:
      f: Function to rewrite, as for `canonical_convolutions`.
      products: Whether convolutions over a single channel become products, as for
        `canonical_convolutions`.
    """
    return canonical_convolutions(f, products=products) if jax.default_backend() == "cpu" else f


Convolve = Callable[..., jax.Array]


def _evaluate(closed: ClosedJaxpr, values: list[Any], convolve: Convolve) -> list[Any]:
    return walk(closed, values, lambda eqn, operands: _apply(eqn, operands, convolve))


def _apply(eqn: JaxprEqn, values: list[Any], convolve: Convolve) -> list[Any]:
    if eqn.primitive is primitives.conv_general_dilated_p:
        return [convolve(eqn, *values)]
    # Not custom derivatives: evaluated inside, they would lose theirs.
    if eqn.primitive in (primitives.jit_p, primitives.closed_call_p):
        inner = eqn.params["jaxpr" if "jaxpr" in eqn.params else "call_jaxpr"]
        return _evaluate(inner, values, convolve)
    if eqn.primitive is primitives.scan_p:
        return _scan(eqn, values, convolve)
    return bind(eqn, *values)


def _product(eqn: JaxprEqn, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
    """Computes a convolution over one channel as the kernel's columns times all patches."""
    contraction, params = Contraction.of(eqn), eqn.params
    (batch, feature, *space), (out, into, *taps), result = contraction.layouts
    dilated = any(n != 1 for n in (*params["lhs_dilation"], *params["rhs_dilation"]))
    grouped = params["feature_group_count"] * params["batch_group_count"] > 1
    if kernel.shape[into] != 1 or dilated or grouped:
        return convolved_channels_last(eqn, inputs, kernel)
    image = jax.lax.squeeze(jax.lax.transpose(inputs, (feature, batch, *space)), (0,))
    # Padding once, so that every tap is a plain strided slice of the same image.
    borders = [(0, 0, 0), *((*pad, 0) for pad in params["padding"])]
    image = jax.lax.pad(image, jnp.zeros((), image.dtype), borders)
    strides = params["window_strides"]
    size = [contraction.shapes[2][axis] for axis in contraction.window(2)]
    window = [kernel.shape[axis] for axis in taps]

    def seen(tap: tuple[int, ...]) -> jax.Array:
        """Slices the part of the image that one entry of the kernel is multiplied with."""
        steps = list(zip(tap, size, strides, strict=True))
        ends = [start + (n - 1) * stride + 1 for start, n, stride in steps]
        return jax.lax.slice(image, (0, *tap), (len(image), *ends), (1, *strides))

    # im2col: one matrix product of [out, taps] by [taps, positions].
    patches = jnp.stack([seen(tap) for tap in itertools.product(*map(range, window))])
    columns = jax.lax.transpose(kernel, (out, into, *taps)).reshape(kernel.shape[out], -1)
    y = jax.lax.dot_general(
        columns,
        patches,
        (((1,), (0,)), ((), ())),
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
    )
    order = (result[1], result[0], *result[2:])
    return jax.lax.transpose(y, [order.index(axis) for axis in range(len(order))])


def _scan(eqn: JaxprEqn, values: list[Any], convolve: Convolve) -> list[Any]:
    loop = Scan.of(eqn, values)

    def body(carry: Any, x: Any) -> tuple[Any, Any]:
        return loop.split(_evaluate(loop.body, loop.inputs(carry, x), convolve))

    # A new scan: the parameters of the primitive change between JAX's versions.
    last, ys = jax.lax.scan(body, loop.carry, loop.xs, loop.length, loop.reverse, loop.unroll)
    return [*last, *ys]
