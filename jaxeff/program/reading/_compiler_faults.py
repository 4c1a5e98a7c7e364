"""Warns of products that XLA compiles wrongly on processors, where a function is read.

Seen in every jaxlib from 0.10.2 to 0.12.0.1, on processors: a matrix product or convolution whose
*second* operand is one number everywhere (`jnp.zeros`, `jnp.ones`, a box filter, a scalar that is
broadcast), with a result of at least `SMALLEST` entries that a reduction reads in the same
compiled function, gives NaN or arbitrary numbers: `jax.jit(lambda a: jnp.sum(a @ jnp.ones((64,
64))))`. Without `jit`, or with `FLAG` in the environment variable `XLA_FLAGS`, it is right.

Whether the operand is one number is only known where the function makes it itself: arguments are
left alone, and so are the compiler's rewritings, which may make such a product of another one.
"""

import math
import os
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core import ClosedJaxpr, JaxprEqn
from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import entering, walk
from jaxeff.program.ir import primitives as prim

FLAG = "--xla_cpu_experimental_ynn_fusion_type="
"""Turns off the fusion that is wrong."""
SMALLEST = 4096
"""Entries of the smallest result that was wrong: 64 x 64 and 512 x 8 are, 56 x 72 isn't."""


class CompilerWarning(UserWarning):
    """XLA compiles a part of the function wrongly on processors; the message has a way out."""


def warn_of_faults(closed: ClosedJaxpr) -> None:
    """Warns of products with an operand of one number, where XLA would compile them wrongly."""
    if FLAG in os.environ.get("XLA_FLAGS", "") or jax.default_backend() != "cpu":
        return
    places = list(dict.fromkeys(_faulty_products(closed)))
    if places:
        warnings.warn(
            "On processors XLA may compile a product with an array of one number everywhere to "
            f"NaN or arbitrary numbers; here at {', '.join(places)}. Set XLA_FLAGS={FLAG} in the "
            "environment before JAX starts, or write the product as a sum times that number.",
            CompilerWarning,
            stacklevel=2,
        )


def _faulty_products(closed: ClosedJaxpr) -> list[str]:
    """Lists where in the user's code the products stand."""
    places: list[str] = []

    def rule(eqn: JaxprEqn, one_number: list[bool]) -> Sequence[bool]:
        if eqn.primitive in prim.LINEAR:
            out: Any = eqn.outvars[0].aval
            floating = jnp.issubdtype(out.dtype, jnp.floating)
            if one_number[1] and floating and _entries(out) >= SMALLEST:
                places.append(_compat.source_line(eqn))
        if eqn.primitive in prim.CONTROL:
            # Of what goes into a loop or a branch nothing is known; what is made inside is.
            for body in _compat.sub_jaxprs(eqn):
                places.extend(_faulty_products(body))
        keeps = eqn.primitive in prim.ELEMENTWISE or eqn.primitive in _MOVES
        return [(keeps and all(one_number)) or _entries(v.aval) == 1 for v in eqn.outvars]

    single = [_entries(v.aval) == 1 for v in closed.jaxpr.invars]
    walk(closed, single, entering(rule, _is_one_number), _is_one_number)
    return places


def _entries(aval: Any) -> int:
    """Counts the entries of an array, at one where its size may vary; keys and tokens have none."""
    return math.prod(_compat.at_size(getattr(aval, "shape", (0,)), 1))


_MOVES = {
    prim.p.broadcast_in_dim_p, prim.p.reshape_p, prim.p.transpose_p, prim.p.squeeze_p,
    prim.p.slice_p, prim.p.rev_p, prim.p.name_p,
}  # fmt: skip


def _is_one_number(atom: Any, value: Any) -> bool:
    """Tells whether a literal or a constant array has one number everywhere."""
    del atom
    if np.ndim(value) == 0:
        return True
    numeric = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.number)
    if isinstance(value, jax.core.Tracer) or not numeric or not value.size:
        return False
    flat = np.ravel(np.asarray(value))
    return bool(flat[0] == flat[-1] and (flat == flat[0]).all())
