"""Products with weights of 2 of 4 against NumPy, with every instruction, and their bytes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import require
from jaxeff_export import deploy, resolve_target
from jaxeff_export.operators.integer import dot_of
from tvm.target import Target

from jaxeff.compression import LayerQuantization, integer
from jaxeff.compression.integers._packed import kept_of, q_sparse
from jaxeff.compression.quantizers import Uniform
from jaxeff.pruning.sparsity import NofM

HOST = {**resolve_target("host"), "num-cores": 1}
# Rows, inputs and outputs; dtypes of inputs and values.
CASES = [
    ((1, 64, 48), "int8", "int8"), ((8, 96, 130), "int8", "int8"), ((3, 36, 33), "int8", "int8"),
    ((3, 36, 33), "float32", "float32"), ((5, 64, 48), "float32", "float32"),
    ((2, 36, 7), "float32", "int8"),
]  # fmt: skip
EIGHT = Uniform(8, symmetric=True)


def case(shape, dtype, stored):
    """Input, values, places, and what NumPy makes of them."""
    rows, depth, columns = shape
    rng = np.random.default_rng(sum(shape))
    order = np.argsort(rng.random((depth // 4, 4, columns)), axis=1)
    mask = (np.argsort(order, axis=1) < 2).reshape(depth, columns)
    # The largest codes too: -128 is one that shuffled inputs may not lose the sign of.
    w = rng.integers(-127, 128, (depth, columns)).astype(stored)
    x = rng.integers(-128, 128, (rows, depth)).astype(dtype)
    values, places = kept_of(jnp.asarray(w), jnp.asarray(mask))
    expected = x.astype(np.int64) @ (w * mask).astype(np.int64)
    return x, np.asarray(values), np.asarray(places), expected


def hold(target, **where):
    """Compiles all cases together: whole numbers, so floats are exact, too."""
    cases = [case(*each) for each in CASES]

    def products(weights, inputs):
        return [q_sparse(x, *w, weight_bits=8) for x, w in zip(inputs, weights, strict=True)]

    inputs = [x for x, *_ in cases]
    bundle = deploy(products, ([(v, p) for _, v, p, _ in cases], inputs), target=target)
    for result, (x, *_, expected) in zip(bundle.run(inputs, **where), cases, strict=True):
        np.testing.assert_array_equal(result, expected, err_msg=f"{x.shape} {x.dtype}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "missing",
    [(), ("avx512vnni", "avxvnni"), ("avx512f", "avxvnni"), ("avx512f", "avxvnni", "avx2", "avx")],
)
def test_every_instruction_gives_the_same(missing):
    if missing and dot_of(Target(HOST)).name != "vpdpbusd":
        pytest.skip("nothing to switch off on this processor")
    names = [*HOST.get("mattr", ()), *(f"-{name}" for name in missing)]
    hold({**HOST, "mattr": names})


@pytest.mark.arm
@pytest.mark.parametrize("core", ["cortex-a72", "cortex-a76"])
def test_arm_gives_the_same(core, arm_linker, emulator):
    hold(core, board=f"emulated:{core}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "bits"),
    [
        (NofM(2, 4), 17),
        (NofM(2, 4, values=EIGHT), 5),
        (LayerQuantization(NofM(2, 4, values=EIGHT), Uniform(8, symmetric=True, per="token")), 5),
    ],
)
def test_a_bundle_holds_values_and_places_alone(setting, bits):
    w = jax.random.normal(jax.random.key(0), (256, 128))
    x = jax.random.normal(jax.random.key(1), (2, 256))
    g = integer(lambda params, x: x @ params["w"], {"*": setting}, dynamic=True)
    converted = g.convert({"w": w}, x)
    bundle = deploy(g, (converted, x))
    np.testing.assert_allclose(bundle.run(x), jax.jit(g)(converted, x), rtol=0, atol=2e-5)
    taken = sum(a.nbytes for a in bundle.derived if a.size >= w.size // 32)
    assert taken == w.size * bits / 8
    # Beside them an output has two numbers at most, and nothing else of the weight is stored.
    assert sum(a.nbytes for a in bundle.derived) <= taken + 8 * 128


@pytest.mark.slow
def test_a_microcontroller_holds_them_packed(tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    w = jax.random.normal(jax.random.key(0), (64, 32))
    x = jax.random.normal(jax.random.key(1), (2, 64))
    each = LayerQuantization(NofM(2, 4, values=EIGHT), Uniform(8, symmetric=True, per="token"))
    g = integer(lambda params, x: x @ params["w"], {"*": each}, dynamic=True)
    converted = g.convert({"w": w}, x)
    bundle = deploy(g, (converted, x), target="cortex-m7")
    output = bundle.run(x, board="emulated:cortex-m7")
    np.testing.assert_array_equal(output, jax.jit(g)(converted, x))
    # Five bits a weight, and up to two numbers of 32 bits an output.
    stored = bundle.export_c(tmp_path / "net").sizes.parameters
    assert w.size * 5 // 8 <= stored <= w.size * 5 // 8 + 8 * 32
