"""C libraries for other processors, in software: 32-bit ARM, RISC-V, microcontrollers."""

from __future__ import annotations

import dataclasses
import gc
import json
import re
import shutil

import jax
import numpy as np
import pytest
from c_programs import STRICT, call, instructions, require
from flax import nnx
from jaxeff_export import (
    PROCESSORS,
    BoardError,
    BoardMemory,
    Bundle,
    BundleError,
    CLibraryError,
    Processor,
    TargetError,
    deploy,
    resolve_target,
)
from jaxeff_export.boards import ProgramBoard, make_board
from jaxeff_export.bundle import _bundle as bundles
from jaxeff_export.clib import _library as libraries
from jaxeff_export.operators.integer import dot_of
from jaxeff_export.targets import C_TARGETS, emulation, processor_of, tvm_target
from small_network import inputs, mlp, parameters
from tvm.target import Target

import jaxeff
from jaxeff.compression import Int, calibrate
from jaxeff.core import functional
from jaxeff.nn import MLP

TOOLS = {
    "cortex-a7": ("arm-linux-gnueabihf-gcc", "qemu-arm"),
    "cortex-m4": ("arm-none-eabi-gcc", "qemu-system-arm"),
    "cortex-m7": ("arm-none-eabi-gcc", "qemu-system-arm"),
    "riscv64": ("riscv64-linux-gnu-gcc", "qemu-riscv64"),
}


def deployed(core, path) -> Bundle:
    require(*TOOLS[core])
    deploy(mlp, (parameters(), inputs()), target=core, path=path)
    return Bundle.load(path)


@pytest.mark.slow
@pytest.mark.parametrize("core", TOOLS)
def test_a_bundle_is_checked_there(core, tmp_path):
    bundle = deployed(core, tmp_path / "b")
    with bundle.on(f"emulated:{core}") as runner:
        assert runner.check().passed
        x = inputs(7)
        ours, theirs = runner.run(x), mlp(parameters(), x)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


# A core that the package has no row for: of ARMv8-M's smaller half, which an M33's board has too.
M23 = Processor(
    "acme23", "cortex-m23", "thumbv8m.base-none-none-eabi", (("mfloat-abi", "soft"),),
    ("-mthumb", "-mfloat-abi=soft", "-mcpu=cortex-m23"),
    BoardMemory("mps2-an505", (0x10000000, 1 << 20), (0x80000000, 1 << 20)),
    ram=96 << 10, mhz=48,
)  # fmt: skip


@pytest.mark.slow
def test_a_chip_of_ones_own_is_a_value(tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    deploy(mlp, (parameters(), inputs()), target=M23, path=tmp_path / "b")
    bundle = Bundle.load(tmp_path / "b")  # by the folder alone
    assert (bundle.manifest.target_name, bundle.manifest.target["mcpu"]) == ("acme23", "cortex-m23")
    for board in ("emulated", ProgramBoard(M23)):
        with bundle.on(board) as runner:
            assert runner.check().board == "emulated:acme23"
            assert runner.check().passed
    small = deploy(mlp, (parameters(), inputs()), target=dataclasses.replace(M23, ram=16))
    with pytest.raises(CLibraryError, match=r"RAM: [\d,]+ bytes are needed .* 16 are there"):
        small.export_c(tmp_path / "c")
    if shutil.which("llvm-mca"):
        models = bundle.model(like="cortex-m33")
        assert models.milliseconds() == models.milliseconds(48) == models.cycles / 48 / 1e3


def test_a_processor_is_a_target():
    for name, processor in PROCESSORS.items():
        assert resolve_target(name) == dict(processor) == dict(C_TARGETS[name])
    chip = dataclasses.replace(PROCESSORS["cortex-m4"], name="chip", flash=1 << 19)
    kept = json.loads(json.dumps(resolve_target(chip)))
    assert kept == resolve_target(chip)
    assert processor_of(kept) == chip
    assert processor_of(C_TARGETS["cortex-m4"]) == PROCESSORS["cortex-m4"]
    assert dot_of(tvm_target(kept)).name == "smlad"
    for wrong in ({"flags": ("-fplugin=x.so",)}, {"name": "a b"}, {"flags": ("-mthumb;reboot",)}):
        with pytest.raises(TargetError, match="Processor"):
            dataclasses.replace(chip, **wrong)
    with pytest.raises(TargetError, match="describes no processor: 'board'"):
        processor_of({"processor": {"name": "chip"}})


@pytest.mark.slow
def test_the_program_of_a_bundle_is_built_once(tmp_path, monkeypatch):
    bundle = deployed("cortex-m4", tmp_path / "b")
    work = []

    def counted(module, name):
        plain = getattr(module, name)

        def one(*args, **kwargs):
            work.append(name)
            return plain(*args, **kwargs)

        monkeypatch.setattr(module, name, one)

    counted(bundles, "lift")
    counted(libraries, "scheduled")
    x = inputs(3)
    for board in ("emulated:cortex-m4", "emulated", "emulated:cortex-m4"):
        theirs = mlp(parameters(), x)
        for a, b in zip(*map(jax.tree.leaves, (bundle.run(x, board=board), theirs)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
        assert bundle.check(board).passed
    with bundle.on("emulated") as runner:
        assert runner.check().passed
    with pytest.raises(BoardError, match="was left"):
        runner.run(x)
    assert work == ["lift", "scheduled"]
    # Another library is of the same function, which isn't read again.
    bundle.export_c(tmp_path / "net")
    assert work == ["lift", "scheduled", "scheduled"]
    folder = bundle._program_library.folder.parent
    del bundle, runner
    gc.collect()
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("core", ["cortex-a7", "cortex-m7"])
def test_a_stranger_follows_the_readme(core, tmp_path):
    library = deployed(core, tmp_path / "b").export_c(tmp_path / "net")
    build, run = instructions(library.folder)
    call(*build.split(), folder=library.folder)
    assert "as JAX computed" in call(*run.split(), folder=library.folder)
    assert set(library.needs) <= {"memcpy", "memset", "expf", "floorf"}
    require("cmake")
    call("cmake", "-S", ".", "-B", "build", folder=library.folder)
    call("cmake", "--build", "build", folder=library.folder)
    run = run.replace("example", "build/net_example")
    assert "as JAX computed" in call(*run.split(), folder=library.folder)


@pytest.mark.slow
@pytest.mark.parametrize("core", ["cortex-a7", "cortex-m7"])
def test_clang_compiles_the_example_as_the_readme_says(core, tmp_path):
    require("clang")
    library = deployed(core, tmp_path / "b").export_c(tmp_path / "net")
    text = (library.folder / "README.md").read_text()
    build, run = instructions(library.folder)
    compiler, *flags = build.split()
    clang = ["clang", *re.findall(r"--target=[^`\s]+|-fshort-enums|-isystem\s\S+(?=`)", text)]
    clang = " ".join(clang).split()
    if core == "cortex-m7":
        of_processor = [flag for flag in flags if flag.startswith(("-m", "-std"))]
        for file in ("main", "startup"):
            call(*clang, *STRICT, *of_processor, "-c", f"{file}.c", folder=library.folder)
        objects = {"main.c": "main.o", "startup.c": "startup.o"}
        call(compiler, *(objects.get(flag, flag) for flag in flags), folder=library.folder)
    else:
        call(*clang, *flags, folder=library.folder)
    assert "as JAX computed" in call(*run.split(), folder=library.folder)


@pytest.mark.slow
def test_integer_networks_are_the_same_bits_on_a_microcontroller(tmp_path):
    require(*TOOLS["cortex-m7"])
    f, params = functional(MLP((20, 16, 5), rngs=nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (8, 20))
    g = jaxeff.integer(f, calibrate(f, params, [x], {"*:linear": Int(8)}).spec)
    codes = g.convert(params, x)
    bundle = deploy(g, (codes, x), target="cortex-m7", path=tmp_path / "b")
    np.testing.assert_array_equal(bundle.run(x, board="emulated"), jax.jit(g)(codes, x))
    # Bytes of weights, and few of scales.
    assert bundle.export_c(tmp_path / "net").sizes.parameters < 2 * (20 * 16 + 16 * 5) + 1000


class Convolutions(nnx.Module):
    """Strided, depthwise and grouped, with a dense layer behind them."""

    def __init__(self, rngs):
        self.strided = nnx.Conv(3, 8, (3, 3), strides=2, rngs=rngs)
        self.depthwise = nnx.Conv(8, 8, (3, 3), feature_group_count=8, rngs=rngs)
        self.grouped = nnx.Conv(8, 6, (3, 3), feature_group_count=2, rngs=rngs)
        self.dense = nnx.Linear(6 * 16, 7, rngs=rngs)

    def __call__(self, x):
        for layer in (self.strided, self.depthwise, self.grouped):
            x = nnx.relu(layer(x))
        return self.dense(x.reshape(len(x), -1))


@pytest.mark.slow
def test_integer_convolutions_too_by_the_instruction_for_two_products(tmp_path):
    require(*TOOLS["cortex-m4"], "arm-none-eabi-objdump")
    assert dot_of(Target(C_TARGETS["cortex-m4"])).name == "smlad"
    f, params = functional(Convolutions(nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (2, 7, 7, 3))
    g = jaxeff.integer(f, calibrate(f, params, [x], {"*:linear": Int(8)}).spec)
    codes = g.convert(params, x)
    bundle = deploy(g, (codes, x), target="cortex-m4", path=tmp_path / "b")
    np.testing.assert_array_equal(bundle.run(x, board="emulated"), jax.jit(g)(codes, x))
    archive = bundle.export_c(tmp_path / "net").folder / "libnet.a"
    assert "smlad" in call("arm-none-eabi-objdump", "-d", str(archive), folder=tmp_path)


@pytest.mark.slow
def test_other_boards_are_refused(tmp_path, deployed_mlp):
    bundle = deployed("cortex-m7", tmp_path / "b")
    with pytest.raises(BundleError, match=r"for thumbv7em \(cortex-m7\), the board local is"):
        bundle.check()
    with pytest.raises(BundleError, match="emulated:cortex-m4 lacks its fp64"):
        bundle.check("emulated:cortex-m4")
    with pytest.raises(BundleError, match=r"the library is for .* \(host\), the board emulated:"):
        deployed_mlp.check("emulated:riscv64")
    with pytest.raises(BoardError, match="is not timed"):
        bundle.benchmark("emulated:cortex-m7")
    with pytest.raises(CLibraryError, match=r"RAM: .* 256 are there"):
        bundle.export_c(tmp_path / "c", ram=256)


def test_boards_by_name(monkeypatch, tmp_path):
    assert isinstance(make_board("emulated", target={"mcpu": "generic-rv64"}), ProgramBoard)
    with pytest.raises(BoardError, match="no emulated core 'cortex-m23'; there are"):
        make_board("emulated:cortex-m23")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BoardError, match="apt-get install gcc-arm-none-eabi"):
        make_board("emulated:cortex-m7").__enter__()
    for core, package in (("cortex-m7", "qemu-system-arm"), ("riscv32", "qemu-system-misc")):
        with pytest.raises(RuntimeError, match=f"apt-get install {package}"):
            emulation(core, C_TARGETS[core], tmp_path)


def test_what_a_varying_batch_is_told(tmp_path):
    require(*TOOLS["riscv64"])
    x = np.ones((2, 3), np.float32)
    with pytest.raises(CLibraryError, match="deploy for a fixed batch"):
        deploy(lambda x: x * 2, (x,), target="riscv64", parameters=0, any_batch=True)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cortex-m4", "riscv32"])
def test_numbers_of_64_bits_are_refused_where_there_is_no_unit_for_them(tmp_path, target):
    with jax.enable_x64(True):
        example = np.ones((4, 3)), np.ones((1, 4))
        with pytest.raises(CLibraryError, match=f"is float64 .* {target} has no unit for numbers"):
            deploy(lambda w, x: x @ w, example, target=target, path=tmp_path / "b")
        assert not (tmp_path / "b").exists()
        deploy(lambda w, x: x @ w, example, target="cortex-m7", path=tmp_path / "b")
