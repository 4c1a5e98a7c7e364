"""Weights in blocks of columns: the same results, from weights in the order of their use."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from importer_oracle import assert_close, export, rewritten, run
from jaxeff_export import deploy
from jaxeff_export.compiler import (
    Machine,
    bind_parameters,
    fused_kernels,
    merge_blocks,
    schedule_kernel,
    tiles_of,
)
from jaxeff_export.compiler._tiles import register_tile
from jaxeff_export.compiler.passes import block_weights
from jaxeff_export.importer import import_stablehlo
from jaxeff_export.targets import resolve_target
from jaxeff_export.tuning._spaces import tiles
from tvm import tirx
from tvm.target import Target

import jaxeff
from jaxeff.moment_propagation import Gaussian
from jaxeff.nn import MLP

AVX512 = Machine(lanes=16, registers=32, cores=1)
NEON = Machine(lanes=4, registers=32, cores=4)


def array(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def blocked(function, parameter, *inputs, machine=AVX512):
    """Derived arrays of a function whose two parts, together, were checked against XLA."""
    rewrite = lambda kernels: block_weights(kernels, 1, machine)  # noqa: E731
    return rewritten(rewrite, function, parameter, *inputs, atol=1e-4)[1]  # sums of thousands


def dense(w, x):
    return jax.nn.relu(x @ w)


def convolution(w, x):
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims)


def test_weights_of_long_rows_lie_in_blocks():
    w, x = array(300, 256), array(8, 300)
    (layout,) = blocked(dense, w, x)
    count, rows, columns = layout.shape
    assert (rows, count * columns) == w.shape
    assert columns < 256
    np.testing.assert_array_equal(layout, w.reshape(rows, count, columns).swapaxes(0, 1))


@pytest.mark.parametrize("machine", [AVX512, NEON])
def test_convolutions_have_blocks(machine):
    (layout,) = blocked(convolution, array(3, 3, 32, 256), array(2, 4, 4, 32), machine=machine)
    assert layout.shape[1:4] == (3, 3, 32)


def test_padded_weights_lie_in_blocks():
    w, x = array(300, 250), array(8, 300)
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}
    parts = bind_parameters(import_stablehlo(export(dense, w, x)), 1, target)
    (found,) = run(parts.derive, w)
    rows = found.swapaxes(0, 1).reshape(300, 256)
    np.testing.assert_array_equal(rows, np.pad(w, ((0, 0), (0, 6))))
    assert_close(run(parts.main, found, x)[0], np.asarray(dense(w, x)), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(4096, 128), (64, 512)])
def test_short_rows_and_few_weights_stay(shape):
    assert blocked(dense, array(*shape), array(3, shape[0])) == []


def test_weights_used_twice_are_laid_out_once():
    def both(w, x):
        return x @ w, (x * 2) @ w

    assert len(blocked(both, array(300, 256), array(8, 300))) == 1


def test_given_weights_stay():
    """What isn't bound would be laid out in every call."""
    assert (
        blocked(lambda scale, w, x: scale * (x @ w), array(1), array(300, 256), array(8, 300)) == []
    )


@pytest.mark.parametrize("machine", [AVX512, NEON])
def test_a_tile_has_the_columns_of_a_block(machine):
    """So that its vectors are neighbours in memory, and tiles of the same columns follow."""
    w, x = array(300, 256), array(8, 300)
    rewrite = lambda kernels: block_weights(kernels, 1, machine)  # noqa: E731
    parts, (derived,) = rewritten(rewrite, dense, w, x, atol=1e-4)
    fused = fused_kernels(parts.main, Target(resolve_target("host")))
    (kernel,) = (f for _, f in fused.functions_items() if isinstance(f, tirx.PrimFunc))
    chosen = []

    def choose(extents, machine, results, together):
        chosen.append((together, register_tile(extents, machine, results, together, 300)))
        return chosen[-1][1]

    schedule = schedule_kernel(merge_blocks(kernel), replace(machine, tiling=choose))
    ((together, tile),) = chosen
    assert together == derived.shape[-1] == tile.columns
    assert tile.columns_first
    # The module says it, for `bundle.explain()`.
    assert tiles_of(schedule.mod) == {"main": (*tile.rows, tile.columns)}


def test_tuning_tries_tiles_within_a_block():
    tiling = tiles([8, 256], AVX512, 1, 64)
    assert {tile.columns for tile in tiling} >= {16, 32, 64}
    assert all(64 % tile.columns == 0 for tile in tiling)


@pytest.mark.slow
def test_both_moments_have_blocks(tmp_path):
    f, params = jaxeff.functional(MLP((300, 256, 10), rngs=nnx.Rngs(0)))
    posterior = jax.tree.map(lambda p: Gaussian(p, 0.01 * jnp.ones_like(p)), params)
    x = jax.random.normal(jax.random.key(0), (8, 300))
    bundle = deploy(jaxeff.moments(f, method="diagonal"), (posterior, x), path=tmp_path / "bundle")
    assert bundle.check().passed
    shapes = [spec.shape for spec in bundle.manifest.derived if len(spec.shape) == 3]
    assert len(shapes) == 2  # means and variances
    assert len(set(shapes)) == 1
