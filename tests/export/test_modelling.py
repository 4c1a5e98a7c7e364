"""What is read from machine code: instructions, and what a core would do with them."""

import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from jaxeff_export import Bundle, deploy
from jaxeff_export.bundle import _machine_model as machine_model
from jaxeff_export.bundle._machine_model import level_of

from jaxeff.compression import Int, integer

LINES = """
vfmadd231ps 0x18(%r9,%r13,1){1to16},%zmm24,%zmm20    16  512  1   0  -
vfmadd231ps %ymm1,%ymm2,%ymm3                         8  256  0   0  -
vmovaps (%rsi,%rax,4),%zmm30                          0  512  1   0  -
vmovaps %zmm7,(%rcx,%rax,4)                           0  512  0  64  -
vmovaps %zmm7,0x40(%rsp)                              0  512  0   0  spill
vpdpbusd %zmm1,%zmm2,%zmm3                           64  512  0   0  -
add $0x40,%r12                                        0    0  0   0  -
fmla v18.4s, v24.4s, v23.s[0]                         4  128  0   0  -
ldp q24, q25, [x13]                                   0  128  1   0  -
stp q24, q25, [x13]                                   0  128  0  32  -
str q24, [sp, #32]                                    0  128  0   0  spill
cnt v0.16b, v1.16b                                  128  128  0   0  -
"""
"""Instructions: products, width of the vector, loads, bytes stored, and whether it spills."""


@pytest.mark.parametrize("row", LINES.strip().split("\n"))
def test_instructions(row):
    *words, products, width, loads, stored, spill = row.split()
    line = " ".join(words)
    assert machine_model.count_products([line]) == int(products)
    assert machine_model.count_multiplies([line]) == (int(products) > 0)
    assert machine_model.vector_bits(line) == int(width)
    assert machine_model.count_loads([line]) == int(loads)
    assert machine_model.stored_bytes([line]) == int(stored)
    assert machine_model.is_spill(line) == (spill == "spill")


def test_caches():
    assert level_of("cortex-a72", 32 * 1024).name == "L1"
    assert level_of("cortex-a72", 32 * 1024 + 1).name == "L2"
    assert level_of("cortex-a72", 10**9).name == "memory"
    assert level_of("some-core", 1) is None


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, arm_linker):
    def f(params, x):
        w, b = params
        return jnp.tanh(x @ w + b) @ w.T

    rng = np.random.default_rng(0)
    w, b, x = (rng.standard_normal(s).astype(np.float32) for s in ((48, 64), (64,), (10, 48)))
    return deploy(f, ((w, b), x), target="cortex-a72", path=tmp_path_factory.mktemp("m") / "b")


def test_a_bundle_knows_its_kernels_work(bundle):
    kernels = Bundle.load(bundle.folder).manifest.kernels
    first = next(work for name, work in kernels.items() if "matmul" in name and "read" in work)
    assert sum(work["products"] for work in kernels.values()) == 2 * 10 * 48 * 64
    assert first["read"] > first["bound"] >= 4 * 48 * 64
    assert first["calls"] == 1
    assert first["written"] in (4 * 10 * 64, 4 * 10 * 48)


def test_a_model_of_float_kernels_holds_the_roof(bundle):
    if shutil.which("llvm-mca") is None:
        pytest.skip("llvm-mca is not installed")
    loops = [loop for loop in bundle.model() if "matmul" in loop.kernel]
    assert len(loops) == 2
    for loop in loops:
        assert 3.6 <= loop.per_cycle <= 4.01
        assert loop.spills == 0
        assert loop.width == 128
        assert loop.loads_per_multiply < 0.7
        assert loop.turns == pytest.approx(10 * 48 * 64 / loop.products)
        assert loop.level == "L1"
        assert loop.total >= loop.turns * loop.cycles


def test_parameters_come_from_where_all_of_them_are(bundle, monkeypatch):
    monkeypatch.setattr(machine_model, "_cycles", lambda *_: 1.0)
    monkeypatch.setattr(machine_model, "find_modeller", lambda name, _: name)
    library, kernels = bundle.folder / "library.so", bundle.manifest.kernels

    def transfers(extra):
        work = {**kernels, "another": {"read": extra, "written": 0, "products": 0, "bound": extra}}
        loops = machine_model.model_library(library, "aarch64", "cortex-a72", work)
        return {loop.name: (loop.transfer, loop.level) for loop in loops if "matmul" in loop.name}

    near, far = transfers(0), transfers(10**7)
    for name, (transfer, level) in near.items():
        facts = kernels[name]
        assert level == far[name][1] == "L1"
        assert transfer == pytest.approx((facts["read"] + facts["written"]) / 16)
        assert far[name][0] - transfer == pytest.approx(facts["bound"] * (1 / 3 - 1 / 16))


def test_a_loop_that_sums_is_the_one_that_multiplies():
    squares = ["vmulps %zmm1,%zmm1,%zmm2", "vfmadd231ps %zmm1,%zmm2,%zmm3"] * 9
    sums = ["vmovaps (%rsi,%rax,4),%zmm30", "vfmadd231ps %zmm30,%zmm2,%zmm3"]
    chosen = max([[*squares, "vmovaps %zmm3,(%rcx,%rax,4)"], sums], key=machine_model._weight)
    assert chosen == sums


@pytest.mark.arm
def test_codes_of_four_bits_hold_the_roof(tmp_path, arm_linker):
    """One multiplication a cycle; added up in dwords each, as before, they took 1.6 of its time."""
    if shutil.which("llvm-mca") is None:
        pytest.skip("llvm-mca is not installed")
    four = Int(4, 8, symmetric=True, per="group", group=32, steps="int8", activations_per="token")
    x = jnp.linspace(-1, 1, 2048)[None]
    w = jnp.sin(jnp.arange(2048 * 64.0)).reshape(2048, 64)
    g = integer(lambda w, x: x @ w, {"*": four}, dynamic=True)
    bundle = deploy(g, (g.convert(w, x), x), target="cortex-a72", path=tmp_path / "b")
    (loop,) = (each for each in bundle.model() if each.products)
    assert loop.products == 8 * loop.multiplies
    assert loop.cycles < 1.5 * loop.multiplies
