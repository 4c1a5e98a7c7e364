"""Products with packed weights against NumPy, with every instruction, and networks of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tvm
from jaxeff_export import deploy, resolve_target
from jaxeff_export.compiler import compile_module
from jaxeff_export.operators.integer import dot_of, integer_operators
from tvm import relax
from tvm.target import Target

from jaxeff.compression import Int, integer
from jaxeff.compression.integers._packed import packed_codes, q_packed

HOST = {**resolve_target("host"), "num-cores": 1}
SHAPES = [  # rows, inputs, outputs, codes that share a step
    (1, 64, 48, 32), (1, 160, 33, 160), (3, 96, 5, 96), (8, 64, 130, 32), (2, 37, 20, 37),
    (5, 96, 21, 16), (9, 128, 40, 64),
]  # fmt: skip
ODD = [(2, 30, 7, 10), (2, 36, 9, 12)]


def case(shape, bits, steps, of_codes, extreme=False):
    """Operands, attributes and what NumPy makes of them."""
    rows, depth, columns, group = shape
    rng = np.random.default_rng(sum(shape) + bits)
    most = 2 ** (bits - 1) - 1
    # Codes of four bits may be full: one more below zero.
    least = -most - (bits <= 4)
    w = (
        np.full((depth, columns), least)
        if extreme
        else rng.integers(least, most + 1, (depth, columns))
    )
    groups = -(-depth // group)
    s = {
        "int8": lambda: rng.integers(1, 128, (groups, columns)).astype(np.int8),
        "float16": lambda: rng.uniform(1e-5, 1e-2, (groups, columns)).astype(np.float16),
        "float32": lambda: rng.uniform(1e-3, 1e-2, (groups, columns)).astype(np.float32),
    }[steps]()
    s *= rng.choice(np.array([-1, 1], s.dtype), s.shape)
    if of_codes:
        x = np.full((rows, depth), -127) if extreme else rng.integers(-127, 128, (rows, depth))
        x, dtype = x.astype(np.int8), np.int64
    else:
        x, dtype = rng.normal(size=(rows, depth)).astype(np.float32), np.float64
    weight = w.astype(dtype) * np.repeat(s.astype(dtype), group, 0)[:depth]
    expected = x.astype(dtype) @ weight
    codes = w.astype(np.int8)
    stored = np.asarray(packed_codes(jnp.asarray(codes))) if bits <= 4 else codes
    return (x, stored, s), {"weight_bits": bits, "group": group}, expected


def hold(cases, target, any_batch=False):
    """Compiles all cases together: sums of codes are exact, others to float rounding."""
    operator = integer_operators(target, any_batch=any_batch)["jaxeff.q_packed"]
    bb, given = relax.BlockBuilder(), []
    for i, (arrays, _, _) in enumerate(cases):
        kinds = [relax.TensorType(a.shape, str(a.dtype)) for a in arrays]
        given.append([relax.Var(f"x{i}_{j}", kind) for j, kind in enumerate(kinds)])
    with bb.function("main", [v for each in given for v in each]):
        with bb.dataflow():
            made = [
                operator(bb, *each, **at) for each, (_, at, _) in zip(given, cases, strict=True)
            ]
            output = bb.emit_output(relax.Tuple(made))
        bb.emit_func_output(output)
    machine = relax.VirtualMachine(compile_module(bb.get(), target), tvm.cpu())
    results = machine["main"](*(tvm.runtime.tensor(a) for arrays, _, _ in cases for a in arrays))
    compare([result.numpy() for result in results], cases)


def compare(results, cases):
    for result, ((x, *_), at, expected) in zip(results, cases, strict=True):
        atol = 0.0 if x.dtype == np.int8 else 2e-6 * np.abs(expected).max()
        np.testing.assert_allclose(result, expected, rtol=0, atol=atol, err_msg=str((x.shape, at)))


def masked(*features):
    """This machine without some of its instructions."""
    names = [*HOST.get("mattr", ()), *(f"-{name}" for name in features)]
    return {**HOST, "mattr": names}


@pytest.mark.slow
@pytest.mark.parametrize(
    "missing",
    [(), ("avx512vnni", "avxvnni"), ("avx512f", "avxvnni"), ("avx512f", "avxvnni", "avx2")],
)
def test_every_instruction_gives_the_same(missing):
    if missing and dot_of(Target(HOST)).name != "vpdpbusd":
        pytest.skip("nothing to switch off on this processor")
    cases = [case(shape, 4, "int8", True) for shape in [*SHAPES, *ODD]]
    cases += [case((2, 64, 40, 32), 4, "int8", True, extreme=True)]
    cases += [case(shape, 4, "float16", False) for shape in [*SHAPES, *ODD]]
    cases += [case(shape, 8, "float32", False) for shape in SHAPES[:4]]
    cases += [case(SHAPES[0], 3, "int8", False), case(SHAPES[1], 8, "int8", True)]
    hold(cases, masked(*missing))


@pytest.mark.slow
def test_short_vectors_of_avx_vnni_give_the_same(monkeypatch):
    """AVX-512 has the instructions of AVX-VNNI for the same vectors, so it runs their kernels."""
    if dot_of(Target(HOST)).lanes != 16 or dot_of(Target(HOST)).name != "vpdpbusd":
        pytest.skip("this processor has no AVX-512 VNNI")
    without = masked("avx512f")
    short = dot_of(Target({**without, "mattr": [*without["mattr"], "+avxvnni"]}))
    assert (short.name, short.lanes) == ("vpdpbusd", 8)
    for module in ("_dots", "_packed"):
        name = f"jaxeff_export.operators.integer.{module}.dot_of"
        monkeypatch.setattr(name, lambda target: short)
    cases = [case(shape, 4, "int8", True) for shape in [*SHAPES, ODD[0]]]
    cases += [case((2, 64, 40, 32), 4, "int8", True, extreme=True)]
    cases += [case(shape, 4, "float16", False) for shape in SHAPES[:4]]
    hold(cases, HOST)


@pytest.mark.arm
@pytest.mark.parametrize("core", ["cortex-a72", "cortex-a76"])
def test_arm_gives_the_same(core, arm_linker, emulator):
    cases = [case(shape, 4, "int8", True) for shape in [*SHAPES, ODD[0]]]
    cases += [case((2, 64, 40, 32), 4, "int8", True, extreme=True)]
    cases += [case(shape, 4, "float16", False) for shape in SHAPES[:5]]
    cases += [case(SHAPES[2], 8, "float32", False)]

    def products(weights, inputs):
        given = zip(inputs, weights, cases, strict=True)
        return [q_packed(x, *w, **at) for x, w, (_, at, _) in given]

    inputs = [x for (x, *_), _, _ in cases]
    bundle = deploy(products, ([w for (_, *w), _, _ in cases], inputs), target=core)
    compare(bundle.run(inputs, board=f"emulated:{core}"), cases)


def f(params, x):
    hidden = jax.nn.gelu(x @ params["up"]["w"] + params["up"]["b"][None])
    return hidden @ params["down"]["w"] + params["down"]["b"][None]


def network(depth=64, hidden=96, outputs=10):
    keys = jax.random.split(jax.random.key(0), 4)
    up = {"w": jax.random.normal(keys[0], (depth, hidden)) / 8, "b": jnp.ones(hidden)}
    down = {"w": jax.random.normal(keys[1], (hidden, outputs)) / 8, "b": jnp.ones(outputs)}
    return {"up": up, "down": down}, jax.random.normal(keys[3], (3, depth))


BY_TOKEN = Int(4, 8, symmetric=True, per="group", steps="int8", activations_per="token")
HALF = Int(4, activations=False, per="group", steps="float16")


@pytest.mark.slow
def test_networks_compute_what_they_did(tmp_path):
    params, x = network()
    eight = Int(8, activations=False)
    for setting in (BY_TOKEN, HALF, eight):
        g = integer(f, {"*:linear": setting}, dynamic=True)
        codes = g.convert(params, x)
        bundle = deploy(g, (codes, x))
        here = jax.jit(g)(codes, x)
        if setting is BY_TOKEN:  # gelu is rounded otherwise by XLA than by TVM
            np.testing.assert_allclose(bundle.run(x), here, atol=2e-2)
        else:
            np.testing.assert_allclose(bundle.run(x), here, atol=1e-5)
        assert bundle.check().passed


@pytest.mark.slow
@pytest.mark.parametrize("setting", [BY_TOKEN, HALF])
def test_any_batch(setting):
    params, x = network()

    def one(params, x):
        return x @ params["up"]["w"]

    g = integer(one, {"*:linear": setting}, dynamic=True)
    codes = g.convert(params, x)
    bundle = deploy(g, (codes, x), any_batch=True)
    for rows in (1, 3, 7, 70):
        data = jax.random.normal(jax.random.key(rows), (rows, 64))
        expected = jax.jit(g)(codes, data)
        if setting is BY_TOKEN:
            np.testing.assert_array_equal(bundle.run(data), expected)
        else:
            np.testing.assert_allclose(bundle.run(data), expected, atol=1e-5)


@pytest.mark.slow
def test_codes_of_tokens_are_exact_and_packed():
    params, x = network(256, 256)

    def one(params, x):
        return x @ params["up"]["w"] + params["up"]["b"][None]

    sizes = {}
    for name, setting in {"codes": BY_TOKEN, "half": HALF}.items():
        g = integer(one, {"*:linear": setting}, dynamic=True)
        codes = g.convert(params, x)
        bundle = deploy(g, (codes, x))
        with bundle.on() as runner:
            got = runner.run(x)
        sizes[name] = sum(array.nbytes for array in bundle.derived)
        if name == "codes":
            np.testing.assert_array_equal(got, jax.jit(g)(codes, x))
    # Four bits a code, and a step of 8 or 16 bits for 32 of them.
    assert sizes["codes"] == 256 * 256 * 4.25 / 8
    assert sizes["half"] == 256 * 256 * 4.5 / 8
