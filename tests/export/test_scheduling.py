"""Default schedules: what they know of a processor."""

import jax
import jax.numpy as jnp
import jaxeff_export
import numpy as np
import pytest
import tvm
import tvm_ffi
from importer_oracle import assert_agrees, export, run
from jaxeff_export.compiler import (
    Machine,
    bind_parameters,
    compilation_target,
    compile_module,
    schedule_module,
    tiles_of,
)
from jaxeff_export.compiler import _scheduling as scheduling
from jaxeff_export.compiler import _tiles as tiles
from jaxeff_export.compiler._tiles import register_tile
from jaxeff_export.compiler.tir import root_of, statements_of
from jaxeff_export.importer import import_stablehlo
from jaxeff_export.operators import Form, dense_module
from jaxeff_export.targets import resolve_target
from tvm import relax, s_tir, tirx, topi
from tvm.target import Target


def loops_of(mod):
    """Lists the loops of all of a module's kernels."""
    loops = []
    for _, kernel in mod.functions_items():
        if isinstance(kernel, tirx.PrimFunc):
            tvm_ffi.structural_walk(kernel.body, (tirx.For, loops.append))
    return loops


@pytest.mark.parametrize(
    ("settings", "lanes", "registers"),
    [
        ({"mcpu": "skylake-avx512"}, 16, 32),
        ({"mcpu": "haswell"}, 8, 16),
        ({"mcpu": "x86-64-v2"}, 4, 16),
        ({"mcpu": "cortex-a72", "mtriple": "aarch64-linux-gnu"}, 4, 32),
        ({"mcpu": "cortex-m7", "mtriple": "thumbv7em-none-eabihf"}, 1, 32),
    ],
)
def test_vectors_are_those_of_the_target(settings, lanes, registers):
    triple = {"mtriple": "x86_64-linux-gnu"}
    target = Target({"kind": "llvm", "num-cores": 4, **triple, **settings})
    assert Machine.of(target) == Machine(lanes, registers, cores=4)


@pytest.mark.parametrize(
    ("said", "prefers"),
    [([], "-prefer-256-bit"), (["+prefer-256-bit"], "+prefer-256-bit"), (["-avx512f"], "")],
)
def test_vectors_are_whole_where_there_is_avx_512(said, prefers):
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "emeraldrapids", "mattr": said}
    names = [str(name) for name in compilation_target(target).attrs.get("mattr", [])]
    assert [name for name in names if "prefer" in name] == ([prefers] if prefers else [])


@pytest.mark.parametrize(
    ("columns", "lanes", "tile"),
    [(112, 16, (10, 1)), (64, 16, (5, 4)), (84, 4, (5, 3)), (16, 4, (5, 4)), (6, 4, (10, 2))],
)
def test_tiles_need_few_loads(columns, lanes, tile):
    chosen = register_tile([10, columns], Machine(lanes, 32, 1), 1, None, 100)
    assert (*chosen.rows, chosen.vectors) == tile


def test_few_channels_leave_registers_for_their_weights_on_arm():
    wide, image = (register_tile([32, 64], Machine(4, 32, 1), 1, None, depth) for depth in (64, 3))
    assert wide.vectors * wide.rows[0] == 16
    assert image.vectors * image.rows[0] <= 12
    memory = register_tile(
        [32, 64], Machine(16, 32, 1), 1, None, 3
    )  # weights are operands in memory
    assert memory.vectors * memory.rows[0] == 16


def test_short_rows_of_whole_arrays_are_one_loop():
    """A loop of four LLVM would unroll, and gather along the next one."""

    def f(w, x):
        return x * x + w

    x = np.zeros((6, 50, 4), np.float32)
    mod = schedule_module(import_stablehlo(export(f, x, x)), resolve_target("host"))
    extents = [int(loop.extent) for loop in loops_of(mod)]
    assert extents == [x.size]


def test_short_loops_over_channels_are_vectors():
    """LLVM would unroll 32 turns before it looks for vectors, and gather along the next loop."""

    def f(w, x):
        return x * w[:, None] + w

    w, x = np.linspace(-1, 1, 32, dtype=np.float32), np.ones((3, 32, 32), np.float32)
    mod = schedule_module(import_stablehlo(export(f, w, x)), {"kind": "llvm", "mcpu": "haswell"})
    vectors = [loop for loop in loops_of(mod) if loop.kind == tirx.ForKind.VECTORIZED]
    assert {int(loop.extent) for loop in vectors} == {8}
    assert_agrees(f, w, x)


@pytest.mark.parametrize("columns", [2048, 1000])
def test_partial_results_of_a_reduction_are_vectors(columns):
    """Each of them is otherwise walked alone, since LLVM doesn't exchange such loops."""
    x = np.zeros((2, columns), np.float32)
    program = import_stablehlo(export(lambda x: x.max(-1), x))
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}
    loops = loops_of(schedule_module(program, target))
    kinds = [(loop.kind, int(loop.extent)) for loop in loops]
    # Forty partial results of 1,000 numbers are five vectors of AVX2, 32 of 2,048 are four.
    assert (tirx.ForKind.VECTORIZED, 8) in kinds
    x = np.random.default_rng(0).permuted(x + np.arange(columns, dtype=np.float32), axis=1)
    assert_agrees(lambda x: (x.max(-1), x.min(-1)), x)


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_floats_stay_vectors(name):
    """TVM takes a vector apart, lane by lane, where a choice stands behind a test for NaN."""
    x = np.random.default_rng(0).normal(size=(64, 9, 32)).astype(np.float32)
    x[0, 3, 5], x[1, 0, 6], x[2, 8, 7] = np.nan, np.nan, np.inf
    program = import_stablehlo(export(lambda x: getattr(jnp, name)(x, 1), x))
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}
    mod = schedule_module(program, target)
    kernels = [k for _, k in mod.functions_items() if isinstance(k, tirx.PrimFunc)]
    for kernel in kernels:
        alone = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
        text = tvm.compile(alone, target).mod.inspect_source("ll")
        assert "fcmp uno <" in text
        assert "fcmp uno float" not in text
    # XLA's vectors lose a NaN here.
    np.testing.assert_array_equal(run(program, x)[0], getattr(x, name)(1))


@pytest.mark.parametrize("function", [jax.numpy.negative, jax.scipy.special.erf])
def test_arrays_without_elements(function):
    assert_agrees(function, np.zeros((2, 0, 3), np.float32))


def test_a_variance_is_two_fused_products_a_turn():
    form = Form("variance")
    mod = schedule_module(dense_module(4, 6, 16, form), resolve_target("host"))
    stores = []
    for _, kernel in mod.functions_items():
        if isinstance(kernel, tirx.PrimFunc):
            tvm_ffi.structural_walk(kernel.body, (tirx.BufferStore, stores.append))
    sums = [
        s.value for s in stores if isinstance(s.value, tirx.Add) and isinstance(s.value.b, tirx.Mul)
    ]
    assert any(isinstance(value.a, tirx.Add) for value in sums)


def image(w, x):
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims))


@pytest.mark.parametrize(
    ("shape", "features", "strips"),
    [((3, 12, 14, 1), 3, True), ((2, 5, 28, 1), 6, True), ((2, 6, 14, 3), 3, False),
     ((1, 6, 14, 1), 12, False)],
)  # fmt: skip
def test_convolutions_to_few_features_are_vectors_of_pixels(shape, features, strips, monkeypatch):
    found = []
    monkeypatch.setattr(
        scheduling, "strip_of", lambda *a: found.append(tiles.strip_of(*a)) or found[-1]
    )
    rng = np.random.default_rng(0)
    w = rng.standard_normal((5, 5, shape[-1], features)).astype(np.float32)
    x = rng.standard_normal(shape).astype(np.float32)
    target = {**resolve_target("host"), "num-cores": 2}
    monkeypatch.setattr(scheduling.Machine, "of", lambda _: Machine(16, 32, 2))
    executable = compile_module(import_stablehlo(export(image, w, x)), target)
    (ours,) = (
        relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, (w, x))),
    )
    np.testing.assert_allclose(ours.numpy(), jax.jit(image)(w, x), rtol=2e-5, atol=2e-5)
    assert any(found) == strips


@pytest.mark.parametrize(
    ("images", "cores", "nests"), [(4, 2, 1), (4, 1, 1), (9, 2, 1), (3, 2, 2), (1, 1, 2)]
)
def test_large_copies_are_written_image_by_image(images, cores, nests):
    """Not where a core would have one image more of a few, nor of one alone."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((3, 3, 64, 16)).astype(np.float32)
    x = rng.standard_normal((images, 64, 64, 64)).astype(np.float32)
    target = {**resolve_target("host"), "num-cores": cores}
    module = import_stablehlo(export(image, w, x))
    kernels = [
        f
        for _, f in schedule_module(module, target).functions_items()
        if isinstance(f, tirx.PrimFunc)
    ]
    assert [len(statements_of(root_of(kernel).body)) for kernel in kernels] == [nests]
    machine = relax.VirtualMachine(compile_module(module, target), tvm.cpu())
    ours = machine["main"](*map(tvm.runtime.tensor, (w, x))).numpy()
    np.testing.assert_allclose(ours, jax.jit(image)(w, x), rtol=1e-4, atol=1e-4)


def layer(w, b, x):
    """Contracts all axes of the weights but the last: one, or heads and their channels."""
    return jax.nn.relu(jax.numpy.tensordot(x, w, w.ndim - 1) + b)


@pytest.mark.parametrize("weights", [(40, 64), (4, 8, 128), (256, 512)])
@pytest.mark.parametrize("rows", [(37,), (1, 37), (3, 23)])
def test_tiles_overlap_where_rows_divide_badly(weights, rows):
    """37 rows are eight tiles of five: one row at a time would load all weights for each."""
    rng = np.random.default_rng(0)
    arguments = (weights, weights[-1:], rows + weights[:-1])
    w, b, x = (rng.standard_normal(shape).astype(np.float32) for shape in arguments)
    target = {**resolve_target("host"), "num-cores": 2}
    lifted = bind_parameters(import_stablehlo(export(layer, w, b, x)), 2, target)
    kernels = schedule_module(lifted.main, target)
    (tile,) = {tile[-2] for tile in tiles_of(kernels).values()}
    assert tile > 1
    assert rows[-1] % tile
    guards = []
    for _, kernel in kernels.functions_items():
        if isinstance(kernel, tirx.PrimFunc):
            tvm_ffi.structural_walk(
                kernel.body, (s_tir.SBlockRealize, lambda block: guards.append(block.predicate))
            )
    assert guards
    assert all(isinstance(guard, tirx.IntImm) for guard in guards)
    assert_agrees(layer, w, b, x, rtol=1e-4, atol=1e-4)
    bundle = jaxeff_export.deploy(lambda p, x: layer(*p, x), ((w, b), x), target=target)
    assert bundle.check().max_relative_error < 1e-5


def test_tiles_that_divide_rows_are_kept_where_they_are_as_good():
    for rows in (20, 64, 196):
        tile = register_tile([1, rows, 384], Machine(16, 32, 1), 1, None, 384)
        assert rows % tile.rows[-1] == 0


def test_a_dense_layer_to_heads_is_a_matrix_product():
    """As a loop nest its tile would be of one row and several heads, which share no weights."""
    x, w = np.zeros((1, 37, 192), np.float32), np.zeros((192, 6, 32), np.float32)
    mod = schedule_module(
        import_stablehlo(export(lambda w, x: jax.numpy.tensordot(x, w, 1), w, x)),
        resolve_target("host"),
    )
    ((rows, columns),) = tiles_of(mod).values()
    assert rows > 1
    assert columns > 1


def test_a_group_reads_some_results_of_several_kernels():
    """TVM's FuseOps mixes the tuples up when a group reads parts of more than one."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))

    def several(a, i):
        return [topi.cumsum(a, axis=0), topi.cumsum(a, axis=1), topi.add(a, float(i))]

    with builder.function("main", [x]):
        with builder.dataflow():
            # Many: with two, one order in two is right.
            tuples = [builder.emit_te(several, x, i) for i in range(6)]
            read = [builder.emit(relax.TupleGetItem(each, k)) for each in tuples for k in (0, 2)]
            total = builder.emit_te(lambda *each: topi.add(sum(each[1:], each[0]), 1.0), *read)
            flat = builder.emit_output(builder.emit_te(topi.reshape, total, (16,)))
        builder.emit_func_output(flat)

    machine = relax.VirtualMachine(compile_module(builder.get(), {"kind": "llvm"}), tvm.cpu())
    value = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    result = machine["main"](tvm.runtime.tensor(value)).numpy()
    expected = 6 * (value.cumsum(0) + value) + sum(range(6)) + 1
    np.testing.assert_allclose(result, expected.ravel(), rtol=1e-5, atol=1e-5)


def test_a_dear_chain_walks_whole_channels_in_vectors():
    """Channels fused with pixels would be a remainder wherever channels alone are read."""

    def f(w, x):
        for _ in range(40):
            x = jax.numpy.tanh(x * w) + x
        return x

    w, x = np.full((32,), 0.5, np.float32), np.ones((2, 5, 7, 32), np.float32)
    mod = schedule_module(import_stablehlo(export(f, w, x)), resolve_target("host"))
    extents = [int(loop.extent) for loop in loops_of(mod)]
    assert 32 in extents
    assert_agrees(f, w, x, rtol=1e-5)


def test_what_only_named_values_compute_is_defined_before_them():
    # A row and its weight are named, and where a vector begins is computed in these names first.
    def weighted(w, x):
        return (w[0, :, :, 0, :, None].reshape(9, 1, 1, 1) * x).sum(0, keepdims=True)

    w = np.linspace(-1, 1, 9, dtype=np.float32).reshape(1, 9, 1, 1, 1)
    x = np.linspace(0, 3, 9 * 32, dtype=np.float32).reshape(9, 1, 32, 1)
    assert_agrees(weighted, w, x)


LONG_CHAIN = """\
@T.prim_func(private=True, s_tir=True)
def main(w: T.Buffer((32,), "float32"), x: T.Buffer((3, 32), "float32"),
         a: T.Buffer((3, 32), "float32"), b: T.Buffer((3, 32), "float32")):
    T.func_attr({"tirx.noalias": True})
    for i, j in T.grid(3, 32):
        with T.sblock("copied"):
            v_i, v_j = T.axis.remap("SS", [i, j])
            T.reads(w[v_j])
            T.writes(a[v_i, v_j])
            a[v_i, v_j] = w[v_j]
        with T.sblock("chained"):
            v_i, v_j = T.axis.remap("SS", [i, j])
            T.reads(x[v_i, 0:32])
            T.writes(b[v_i, v_j])
            VARIABLES
            b[v_i, v_j] = CHAIN
"""


def test_a_loop_of_two_blocks_is_a_vector_only_where_both_may_be():
    # Local variables of a long chain have one place each, which lanes of a vector would share.
    chain, names = "v7 + v0", [f"v{i}" for i in range(8)]
    for i in range(7, 0, -1):
        chain = f"T.Let({chain}, where={{v{i}: v{i - 1} * v{i - 1} + x[v_i, 31 - v_j]}})"
    chain = f"T.Let({chain}, where={{v0: x[v_i, v_j]}})"
    variables = "; ".join(f"{name} = T.float32()" for name in names)
    text = LONG_CHAIN.replace("VARIABLES", variables).replace("CHAIN", chain)
    kernel = tvm.script.from_source(text)
    w = np.linspace(-1, 0.2, 32, dtype=np.float32)
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (3, 32)).astype(np.float32)
    builder = relax.BlockBuilder()
    arguments = [
        relax.Var(n, relax.TensorType(v.shape, "float32")) for n, v in (("w", w), ("x", x))
    ]
    with builder.function("main", arguments):
        kinds = [relax.TensorType((3, 32), "float32")] * 2
        with builder.dataflow():
            called = relax.call_tir(builder.add_func(kernel, "pair"), arguments, kinds)
            both = builder.emit_output(called)
        builder.emit_func_output(both)
    machine = relax.VirtualMachine(compile_module(builder.get()), tvm.cpu())
    copied, chained = machine["main"](*map(tvm.runtime.tensor, (w, x)))
    v = x
    for _ in range(7):
        v = v * v + x[:, ::-1]
    np.testing.assert_array_equal(copied.numpy(), np.broadcast_to(w, x.shape))
    np.testing.assert_allclose(chained.numpy(), v + x, rtol=1e-5, atol=1e-6)
