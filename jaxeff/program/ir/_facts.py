"""What is known of primitives as functions of numbers: smooth or not, where defined, of what sign.

Beside signatures, which say what an equation does to axes. A primitive that isn't listed is taken
as smooth, defined everywhere, of either sign and no polynomial.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from jaxeff.core import primitives as p
from jaxeff.core import pvary_p, reshard_p, split_p, stack_p, tile_p
from jaxeff.program.ir import _primitives as prim

Form = Literal["sum", "affine", "smooth", "kinked", "staircase"]
Degree = Literal["largest", "added", "quotient", "power", "none"]


class Facts(NamedTuple):
    """A primitive as a function of numbers.

    Attributes:
        form: A "sum" of entries, each taken or not; "affine" in each operand while the others stand
            still; "smooth"; "kinked", with a slope almost everywhere; a "staircase", without one.
        degree: Of a polynomial of its operands: the "largest" of their degrees, all "added", a
            "quotient" of the first two, or their "power"; "none" if it isn't one.
        sign: Results are "never" negative; are "kept" so if no operand is negative; or are "any".
        domain: "all" numbers; "positive" ones at least; "limited" otherwise.
    """

    form: Form = "smooth"
    degree: Degree = "none"
    sign: Literal["never", "kept", "any"] = "any"
    domain: Literal["all", "positive", "limited"] = "all"


_TAKEN = Facts("sum", "largest")

FACTS: dict[Any, Facts] = {
    **dict.fromkeys(prim.MOVES | prim.IN_PLACE, _TAKEN),
    **dict.fromkeys({p.concatenate_p, p.pad_p, p.rev_p, p.slice_p}, _TAKEN),
    **dict.fromkeys({split_p, stack_p, tile_p}, _TAKEN),
    **dict.fromkeys({p.dynamic_slice_p, p.dynamic_update_slice_p, p.gather_p, p.scatter_p}, _TAKEN),
    **dict.fromkeys({p.cumsum_p, p.reduce_sum_p, p.reduce_window_sum_p, p.scatter_add_p}, _TAKEN),
    **dict.fromkeys({pvary_p, reshard_p, p.reduce_precision_p, p.select_n_p}, _TAKEN),
    **dict.fromkeys({p.add_jaxvals_p, p.copy_p, p.name_p, p.stop_gradient_p},
                    Facts("sum", "largest", "kept")),
    p.add_p: Facts("affine", "largest", "kept"),
    p.convert_element_type_p: Facts("affine", "largest", "kept"),
    p.div_p: Facts("affine", "quotient", "kept"),
    p.mul_p: Facts("affine", "added", "kept"),
    p.neg_p: Facts("affine", "largest"),
    p.sub_p: Facts("affine", "largest"),
    p.conv_general_dilated_p: Facts("affine", "added"),
    p.dot_general_p: Facts("affine", "added"),
    p.integer_pow_p: Facts("smooth", "power"),
    p.square_p: Facts("smooth", "power", "never"),
    p.abs_p: Facts("kinked", sign="never"),
    p.min_p: Facts("kinked", sign="kept"),
    **dict.fromkeys(
        {p.bessel_i0e_p, p.cbrt_p, p.clamp_p, p.cummax_p, p.cummin_p, p.max_p, p.reduce_max_p,
         p.reduce_min_p, p.reduce_window_max_p, p.reduce_window_min_p, p.scatter_max_p,
         p.scatter_min_p, p.sign_p, p.sort_p, p.top_k_p}, Facts("kinked")),
    **dict.fromkeys({p.ceil_p, p.floor_p, p.rem_p, p.round_p}, Facts("staircase")),
    **dict.fromkeys({p.cosh_p, p.exp2_p, p.exp_p, p.logistic_p}, Facts(sign="never")),
    **dict.fromkeys({p.log1p_p, p.sqrt_p}, Facts(sign="kept", domain="positive")),
    **dict.fromkeys({p.log_p, p.pow_p, p.rsqrt_p}, Facts(domain="positive")),
    **dict.fromkeys(
        {p.acos_p, p.acosh_p, p.asin_p, p.atanh_p, p.digamma_p, p.erf_inv_p, p.lgamma_p},
        Facts(domain="limited")),
}  # fmt: skip
"""By primitive."""

_UNKNOWN = Facts()


def facts(eqn: Any) -> Facts:
    """Returns what is known of an equation's primitive."""
    return FACTS.get(eqn.primitive, _UNKNOWN)
