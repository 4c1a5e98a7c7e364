"""No version of JAX brings a primitive that nobody here has looked at.

A primitive that is in no table of `program.ir`, has no moment rule and isn't written out runs as it
is on plain arrays, and is refused by name where a transform must understand it. That is right for
those below: random numbers, communication between devices, decompositions, transforms of Fourier,
references, callbacks, tokens. A name that the installed JAX has beyond them fails this test: write
it out in `core/_traced.py`, put it into the table of its kind, or list it here.
"""

import sys

import jax
import pytest
from jax.extend.core import Primitive, primitives

from jaxeff.core import EXPANSIONS
from jaxeff.moment_propagation.rules import TABLE
from jaxeff.program.ir import primitives as prim

_REFUSED_NAMES = """
    accum_grad_in_ref addupdate after_all all_gather all_gather_done all_gather_invariant
    all_gather_reduced all_gather_reduced_start all_gather_start all_to_all all_to_all_done
    all_to_all_start approx_top_k axis_index bitcast_convert_type box_get box_set broadcast_to
    call_exported call_hi_primitive call_hi_primitive_linearized check cholesky cholesky_update
    clz complex conj create_linear create_token cudnn_fusion cumlogsumexp cummax cummin cumprod
    custom_jvp_call_jaxpr custom_lin custom_linear_solve custom_partitioning custom_vmap_call
    dce_sink debug_callback debug_print dim_as_value dimension_size dot_product_attention_bwd
    dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd
    dot_product_attention_fp8_bwd_wrapper dot_product_attention_fp8_fwd
    dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd
    dot_product_attention_fwd_wrapper eig eigh empty empty2 empty_ref eq_to eval_jaxpr ffi_call
    fft free_ref freeze from_edtype geqp3 geqrf get hessenberg householder_product igamma
    igamma_grad_a igammac imag inspect_sharding io_callback iota iota_2x32_shape
    layout_constraint le_to linear_call log_extend log_read lt_to lu lu_pivots_to_permutation
    mulhi new_box new_log new_ref optimization_barrier ormqr pbroadcast pbroadcast_done
    pbroadcast_dynamic pbroadcast_start philox2x32 philox4x32 pin platform_index pmax pmin
    polygamma population_count ppermute ppermute_done ppermute_start precv preduced psend psum
    psum_done psum_invariant psum_invariant_start psum_start pure_callback qr ragged_all_to_all
    ragged_dot_general random_bits random_clone random_fold_in random_gamma random_seed
    random_split random_unwrap random_wrap real reduce reduce_scatter reduce_scatter_done
    reduce_scatter_start reduce_xor reduced_vary_cast reduced_vary_cast_p
    regularized_incomplete_beta relayout remat_opt rng_bit_generator rng_uniform run_state
    scaled_dot scaled_matmul scaled_matmul_wrapper scatter-mul scatter-sub schur
    select_and_gather_add select_and_scatter select_and_scatter_add shape_assertion shard_map
    sort stage svd swap symmetric_product threefry2x32 threefry4x32 tie to_edtype top_k
    tpu_custom_call triangular_solve tridiagonal tridiagonal_solve unpin unreachable unreduced_pmax
    unreduced_pmin unreduced_psum unreduced_psum_start unreduced_reduce_scatter
    unreduced_reduce_scatter_start vary_unreduced_cast vary_unreduced_cast_p xla_metadata_call
    xla_metadata_value
    with_memory_space_constraint zeros_like zeta
"""
REFUSED = frozenset(_REFUSED_NAMES.split())


def installed() -> dict[str, Primitive]:
    """Returns JAX's primitives by name, without the languages of its kernels."""
    modules = [primitives] + [
        module
        for name, module in sys.modules.items()
        if name.startswith("jax._src") and "pallas" not in name and "mosaic" not in name
    ]
    values = [value for module in modules for value in vars(module).values()]
    return {value.name: value for value in values if isinstance(value, Primitive)}


def test_every_primitive_of_jax_is_known():
    tables = (
        prim.LINEAR, prim.ELEMENTWISE, prim.WINDOW, prim.REDUCTION, prim.IN_PLACE, prim.SHAPE,
        prim.CALLS, prim.CUSTOM, prim.CONTROL, TABLE, EXPANSIONS,
    )  # fmt: skip
    known = {primitive for table in tables for primitive in table}
    unknown = {name for name, primitive in installed().items() if primitive not in known}
    assert sorted(unknown - REFUSED) == [], f"JAX {jax.__version__} has primitives unknown here"


@pytest.mark.parametrize("name", ["log2", "one_minus_square", "polynomial", "unstack"])
def test_what_is_written_out_is_one_of_them(name):
    primitive = installed().get(name)
    if primitive is None:
        pytest.skip(f"JAX {jax.__version__} has no {name}")
    assert primitive in EXPANSIONS
