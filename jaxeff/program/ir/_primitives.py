"""JAX primitives sorted by what they do to a tensor, and what is known of them as functions.

They are compared as objects, never by name.

A primitive that is in none of these sets is `other`: it runs as it is on plain arrays, and a
transform that must understand it (moments of a random value) reports it by name.
"""

from typing import Any, Literal, NamedTuple

from jaxeff import core
from jaxeff.core import primitives as p

LINEAR = {p.dot_general_p, p.conv_general_dilated_p}

ELEMENTWISE = {
    p.abs_p, p.acos_p, p.acosh_p, p.add_jaxvals_p, p.add_p, p.and_p, p.asin_p, p.asinh_p,
    p.atan2_p, p.atan_p, p.atanh_p, p.bessel_i0e_p, p.bessel_i1e_p, p.cbrt_p, p.ceil_p,
    p.clamp_p, p.convert_element_type_p, p.copy_p, p.cos_p, p.cosh_p, p.digamma_p, p.div_p,
    p.eq_p, p.erf_inv_p, p.erf_p, p.erfc_p, p.exp2_p, p.exp_p, p.expm1_p, p.floor_p, p.ge_p,
    p.gt_p, p.integer_pow_p, p.is_finite_p, p.le_p, p.lgamma_p, p.log1p_p, p.log_p, p.logistic_p,
    p.lt_p, p.max_p, p.min_p, p.mul_p, p.ne_p, p.neg_p, p.nextafter_p, p.not_p, p.or_p, p.pow_p,
    p.reduce_precision_p, p.rem_p, p.round_p, p.rsqrt_p, p.select_n_p, p.shift_left_p,
    p.shift_right_arithmetic_p, p.shift_right_logical_p, p.sign_p, p.sin_p, p.sinh_p, p.sqrt_p,
    p.square_p, p.stop_gradient_p, p.sub_p, p.tan_p, p.tanh_p, p.xor_p,
}  # fmt: skip

WINDOW = {
    p.reduce_window_p: "pool",
    p.reduce_window_max_p: "max_pool",
    p.reduce_window_min_p: "min_pool",
    p.reduce_window_sum_p: "sum_pool",
}

# By a constant, they scale; a sum that one of them scales is an average.
SCALING = {p.div_p, p.mul_p}

REDUCTION = {
    p.reduce_sum_p: "sum",
    p.reduce_max_p: "max",
    p.reduce_min_p: "min",
    p.reduce_prod_p: "prod",
    p.reduce_and_p: "all",
    p.reduce_or_p: "any",
    p.argmax_p: "argmax",
    p.argmin_p: "argmin",
}

# They say where entries are, not what: on which device, in which layout, under which name.
IN_PLACE = {
    p.copy_p, p.device_put_p, p.name_p, p.sharding_constraint_p, core.pvary_p, core.reshard_p,
}  # fmt: skip

# They add their operands entry by entry, the second perhaps with the other sign.
SUMS = {p.add_p, p.sub_p, p.add_jaxvals_p}

# Each entry of the result is one of the operand's: at most once, or repeated too.
REARRANGING = {p.reshape_p, p.rev_p, p.slice_p, p.squeeze_p, p.transpose_p}
VIEWS = REARRANGING | {p.broadcast_in_dim_p}

# They move, add, merge and split whole axes.
MOVES = VIEWS - {p.rev_p, p.slice_p}

SHAPE = {
    *VIEWS, p.concatenate_p, p.dynamic_slice_p, p.dynamic_update_slice_p, p.gather_p, p.pad_p,
    p.name_p, core.split_p, p.sharding_constraint_p, p.device_put_p, core.tile_p, core.stack_p,
    core.pvary_p, core.reshard_p,
}  # fmt: skip

# Shape operations a statistic passes on its way back to the tensor it was taken from.
BROADCAST_BACK = MOVES | {p.name_p}

# Calls whose body is read in place; custom_jvp and custom_vjp only when a site is inside.
CALLS = {p.jit_p, p.closed_call_p, p.call_p, core.composite_p, core.export_composite_p}
CUSTOM = {p.custom_jvp_call_p, p.custom_vjp_call_p}
CONTROL = {p.scan_p, p.while_p, p.cond_p, p.remat_p}
NAME = p.name_p

Form = Literal["sum", "affine", "smooth", "kinked", "staircase"]
Degree = Literal["largest", "added", "quotient", "power", "none"]


class Facts(NamedTuple):
    """A primitive as a function of numbers: smooth or not, where defined, of what sign.

    One that isn't listed is taken as smooth, defined everywhere, of either sign and no polynomial.

    Attributes:
        form: A "sum" of entries, each taken or not; "affine" in each operand while the others stand
            still; "smooth"; "kinked", with a slope almost everywhere; a "staircase", without one.
        degree: Degree as a polynomial of its operands: the "largest" of theirs, all "added", a
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
    **dict.fromkeys(VIEWS | IN_PLACE, _TAKEN),
    **dict.fromkeys({p.concatenate_p, p.pad_p, core.split_p, core.stack_p, core.tile_p}, _TAKEN),
    **dict.fromkeys({p.dynamic_slice_p, p.dynamic_update_slice_p, p.gather_p, p.scatter_p}, _TAKEN),
    **dict.fromkeys({p.cumsum_p, p.reduce_sum_p, p.reduce_window_sum_p, p.scatter_add_p}, _TAKEN),
    **dict.fromkeys({core.pvary_p, core.reshard_p, p.reduce_precision_p, p.select_n_p}, _TAKEN),
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
