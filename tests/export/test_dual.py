"""Layers of Cortex-M4 and M7 by C functions: every form of them, to XLA's bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import require
from flax import nnx
from jaxeff_export import deploy
from jaxeff_export.clib._kernels import CKernel
from jaxeff_export.clib._program import KernelCall, KernelProgram, plan

import jaxeff
from jaxeff.compression import Binary, Int, LayerQuantization, Ternary, Uniform, calibrate
from jaxeff.core import functional


def _conv(a, b, window, rngs, **more):
    return nnx.Conv(a, b, window, rngs=rngs, **more)


class Forms(nnx.Module):
    """Layers whose depths, widths and edges don't divide evenly, with and without a ReLU."""

    def __init__(self, rngs):
        self.bytes = _conv(3, 7, (4, 3), rngs, strides=(2, 1))
        self.fours = _conv(4, 12, (3, 3), rngs)
        self.deep = _conv(12, 5, (5, 5), rngs, padding="VALID")
        self.windowed = _conv(12, 12, (3, 3), rngs, feature_group_count=12)
        self.apart = _conv(12, 12, (3, 3), rngs, strides=2, feature_group_count=12)
        self.depthwise = _conv(12, 12, (2, 5), rngs, feature_group_count=12)
        self.back = _conv(12, 12, (1, 1), rngs)
        self.project = _conv(12, 12, (1, 1), rngs)
        self.rows = nnx.Linear(12, 6, rngs=rngs)
        self.grouped = _conv(12, 6, (3, 3), rngs, feature_group_count=3)
        self.dilated = _conv(12, 4, (3, 3), rngs, kernel_dilation=2)
        self.long = nnx.Linear(9 * 7 * 12, 9, rngs=rngs)
        self.last = nnx.Linear(9, 3, rngs=rngs)

    def __call__(self, x):
        first = jax.nn.relu6(self.bytes(x))
        y = nnx.relu(self.fours(x[..., [0, 1, 2, 1]]))
        wide = self.windowed(y)
        short = nnx.relu(self.depthwise(wide))
        summed = nnx.relu(self.back(short) + short)
        projected = self.back(nnx.relu(summed)) + self.project(wide)
        last = self.last(nnx.relu(self.long(summed.reshape(len(x), -1))))
        half = self.apart(y)
        deep = self.deep(y)
        mean = self.rows(nnx.relu(half).mean((1, 2)))
        return first, projected, last, half, deep, mean, self.grouped(y), self.dilated(y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("core", "bits", "requantize"),
    [
        ("cortex-m4", 1, "fixed"),
        ("cortex-m4", 8, "float"),
        ("cortex-m7", 4, "float"),
        ("cortex-m55", 8, "float"),
        ("cortex-m55", 4, "fixed"),  # whole numbers alone, and weights that share bytes
        ("cortex-m55", 1, "float"),
        ("cortex-m85", 2, "float"),
    ],
)
def test_every_form_has_the_bits_of_xla(core, bits, requantize, tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    f, params = functional(Forms(nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(bits), (2, 9, 7, 3))
    setting = LayerQuantization(Binary(), Uniform(8)) if bits == 1 else Int(bits, 8)
    spec = calibrate(f, params, [x], {"*:linear": setting}).spec
    g = jaxeff.integer(f, spec, requantize=requantize)
    codes = g.convert(params, x)
    bundle = deploy(g, (codes, x), target=core, path=tmp_path / "b")
    # Beyond what was calibrated too: results are clamped at both ends.
    for given in (x, 8 * x, jnp.zeros_like(x)):
        ours, theirs = bundle.run(given, board="emulated"), jax.jit(g)(codes, given)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


class Windows(nnx.Module):
    """Depthwise layers of 3 by 3 that end in bytes, with all kinds of edges."""

    CASES = (
        *((1, "SAME"), (1, "VALID"), (2, "SAME"), (2, "VALID"), (1, ((2, 2), (2, 2)))),
        *((1, ((0, 2), (1, 0))), (2, ((1, 2), (2, 1))), (1, ((1, 1), (0, 2)))),
    )

    def __init__(self, rngs):
        alone = {"feature_group_count": 8}
        self.first = _conv(3, 8, (1, 1), rngs)
        self.windows = nnx.List(
            _conv(8, 8, (3, 3), rngs, strides=strides, padding=padding, **alone)
            for strides, padding in self.CASES
        )
        self.again = _conv(8, 8, (3, 3), rngs, **alone)
        self.last = nnx.List(_conv(8, 2, (1, 1), rngs) for _ in self.CASES)

    def __call__(self, x):
        x = nnx.relu(self.first(x))
        results = [nnx.relu(window(x)) for window in self.windows]
        results[0] = nnx.relu(self.again(results[0]))  # over what nobody reads any more
        return [last(y) for last, y in zip(self.last, results, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("core", "shape", "bits"),
    [
        ("cortex-m7", (9, 6), 8),  # along columns, too
        ("cortex-m4", (6, 9), 2),
        ("cortex-m7", (3, 3), 8),  # rows of a pixel, which stay as they are
        # Units so fine that weights have no room for them: an input of four bits.
        ("cortex-m33", (7, 5), (8, 4)),
    ],
)
def test_windows_in_pairs_of_columns_have_the_bits_of_xla(core, shape, bits, tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    f, params = functional(Windows(nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (2, *shape, 3))
    inner = Int(*bits) if isinstance(bits, tuple) else Int(bits, 8)
    settings = {"first:linear": Int(8), "windows*:linear": inner, "again:linear": Int(8)}
    spec = calibrate(f, params, [x], {**settings, "last*:linear": Int(8)}).spec
    g = jaxeff.integer(f, spec)
    codes = g.convert(params, x)
    bundle = deploy(g, (codes, x), target=core, path=tmp_path / "b")
    for given in (x, 8 * x, jnp.zeros_like(x)):
        ours, theirs = bundle.run(given, board="emulated"), jax.jit(g)(codes, given)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


class Residual(nnx.Module):
    """A projected shortcut whose floats are larger than what it reads, and one before a mean."""

    def __init__(self, rngs):
        self.first = _conv(3, 8, (3, 3), rngs)
        self.one = _conv(8, 12, (3, 3), rngs, strides=2)
        self.two = _conv(12, 12, (3, 3), rngs)
        self.past = _conv(8, 12, (1, 1), rngs, strides=2)
        self.deep = _conv(12, 16, (3, 3), rngs)
        self.by = _conv(12, 16, (1, 1), rngs)
        self.last = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.first(x))
        x = nnx.relu(self.two(nnx.relu(self.one(x))) + self.past(x))
        return self.last(nnx.relu(self.deep(x) + self.by(x)).mean((1, 2)))


@pytest.mark.slow
def test_shortcuts_and_means_are_no_arrays(tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    f, params = functional(Residual(nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (2, 22, 20, 3))
    g = jaxeff.integer(f, calibrate(f, params, [x], {"*:linear": Int(8)}).spec)
    codes = g.convert(params, x)
    bundle = deploy(g, (codes, x), target="cortex-m7", path=tmp_path / "b")
    ours, theirs = bundle.run(x, board="emulated"), jax.jit(g)(codes, x)
    np.testing.assert_array_equal(ours, theirs)
    steps = bundle.export_c(tmp_path / "net").steps
    assert sum("with_shortcut" in step.kernel for step in steps) == 2
    # Floats of a shortcut are 4 bytes for each of 2 x 11 x 10 x 12 results, which nobody writes.
    assert max(step.writes for step in steps) == 2 * 22 * 20 * 8 < 4 * 2 * 11 * 10 * 12


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "share"), [(Binary(), 0.8), (Ternary(), 0.7)])
def test_two_values_take_a_bit_and_three_take_two(weights, share, tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    f, params = functional(Residual(nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (2, 22, 20, 3))
    sizes = []
    for quantizer in (weights, Uniform(8, symmetric=True)):
        setting = LayerQuantization(quantizer, Uniform(8))
        g = jaxeff.integer(f, calibrate(f, params, [x], {"*:linear": setting}).spec)
        codes = g.convert(params, x)
        bundle = deploy(g, (codes, x), target="cortex-m7", path=tmp_path / "b")
        ours, theirs = bundle.run(x, board="emulated"), jax.jit(g)(codes, x)
        np.testing.assert_array_equal(ours, theirs)
        sizes.append(bundle.export_c(tmp_path / f"net{len(sizes)}").sizes.parameters)
    kernels = sum(w.size for w in jax.tree.leaves(params) if w.ndim > 1)
    # An eighth, or a quarter, of the bytes of codes, but for filled rows.
    assert sizes[1] - sizes[0] >= share * kernels


@pytest.mark.slow
@pytest.mark.parametrize("learnt", [False, True])
def test_a_state_that_no_data_is_in_needs_no_c_here(learnt, tmp_path):
    """Its codes are computed before any call, by this machine, which has none of the functions."""
    require("arm-none-eabi-gcc", "qemu-system-arm")

    def f(params, x):
        h = params["h"] if learnt else jnp.zeros((1, 8))
        for row in x:
            h = jnp.tanh(row[None] @ params["x"] + h @ params["w"])
        return h

    rng = np.random.default_rng(0)
    shapes = {"x": (4, 8), "w": (8, 8), "h": (1, 8)}
    params = {k: rng.normal(size=shape).astype(np.float32) / 2 for k, shape in shapes.items()}
    x = rng.normal(size=(3, 4)).astype(np.float32)
    g = jaxeff.integer(f, calibrate(f, params, [x], {"*": Int(8)}).spec)
    codes = g.convert(params, x)
    bundle = deploy(g, (codes, x), target="cortex-m7", path=tmp_path / "b")
    # A tanh, which compilers round differently: a millionth of its range.
    output, expected = bundle.run(x, board="emulated"), jax.jit(g)(codes, x)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_functions_are_shared_by_layers_of_a_form(tmp_path):
    require("arm-none-eabi-gcc")

    def size(layers):
        def f(params, x):
            for w in params:
                x = jax.nn.relu(x @ w)
            return x

        keys = jax.random.split(jax.random.key(0), layers)
        params = [jax.random.normal(key, (24, 24)) / 4 for key in keys]
        x = jax.random.normal(jax.random.key(1), (1, 24))
        g = jaxeff.integer(f, calibrate(f, params, [x], {"*": Int(8)}).spec)
        library = deploy(g, (g.convert(params, x), x), target="cortex-m7")
        return library.export_c(tmp_path / str(layers), name="net").sizes.code

    two, six = size(2), size(6)
    assert six - two < 4 * 200


def test_results_take_the_place_of_what_is_read_last():
    def kernel(*over):
        return CKernel((), (), 0, over)

    kernels = {"plain": kernel(), "over": kernel(0), "second": kernel(1)}
    calls = [
        KernelCall("plain", (0,), (1,)),
        KernelCall("over", (1,), (2,)),  # nobody reads 1 any more
        KernelCall("over", (2,), (3,)),  # 2 is read once more
        KernelCall("second", (3, 2), (4,)),
        KernelCall("plain", (4,), (5,)),
    ]
    program = KernelProgram((64,) * 6, (), (0,), (), (5,), tuple(calls))
    memory = plan(program, kernels)
    assert memory.arrays[1] == memory.arrays[2] == memory.arrays[4] != memory.arrays[3]
    assert memory.size == memory.live == 128
    plain = {name: kernel() for name in kernels}
    assert plan(program, plain).size == 192


def test_a_larger_result_lies_elsewhere():
    calls = (KernelCall("over", (0,), (1,)), KernelCall("over", (1,), (2,)))
    calls += (KernelCall("over", (2,), (3,)),)
    program = KernelProgram((16, 16, 32, 16), (), (0,), (), (3,), calls)
    memory = plan(program, {"over": CKernel((), (), 0, (0,))})
    assert memory.arrays[1] != memory.arrays[2]
