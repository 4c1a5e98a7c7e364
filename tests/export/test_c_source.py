"""C99 source of networks: no warnings, the bits of JAX, compilers of any processor."""

from __future__ import annotations

import dataclasses
import platform
import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import arguments, call, everything, instructions, require
from jaxeff_export import Bundle, CLibraryError, deploy
from jaxeff_export.bundle import _building as building
from jaxeff_export.clib import ExampleProgram

import jaxeff
from jaxeff.compression import Int, calibrate
from jaxeff.nn import small_classifier

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")


@pytest.fixture(scope="module")
def integer():
    """An integer network with convolutions, pooling and dense layers, and its arguments."""
    f, params, (x, _) = small_classifier(4)
    g = jaxeff.integer(f, calibrate(f, params, [x], {"*:linear": Int(8)}).spec)
    return g, (g.convert(params, x), x)


@pytest.fixture(scope="module")
def source(integer, tmp_path_factory):
    """Its source, of a bundle that was read back from its folder."""
    folder = tmp_path_factory.mktemp("source")
    deploy(*integer, path=folder / "bundle")
    return Bundle.load(folder / "bundle").export_c(folder / "net", source=True)


def same_bits(library, core, f, args):
    """Whether a program computes the bits of JAX, of other inputs than it was made with too."""
    program = ExampleProgram(library, core)
    (result,), expected = program.run(), np.asarray(jax.jit(f)(*args))
    assert result.tobytes() == expected.tobytes()
    x = np.asarray(args[-1])[::-1] * np.float32(1.25)
    (result,), expected = program.run([x]), np.asarray(jax.jit(f)(*args[:-1], x))
    assert result.tobytes() == expected.tobytes()


def test_it_is_one_file_and_its_header_with_the_bits_of_jax(integer, source):
    files = {entry.name for entry in source.folder.iterdir()}
    named = {name for name in files if name.startswith("net")}
    assert named == {"net.c", "net.h", "net_serial.c", "net_serial.h"}
    text = (source.folder / "net.c").read_text()
    assert "asm" not in text
    assert set(source.needs) <= {"memcpy", "memset"}
    same_bits(source, None, *integer)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compilers_have_nothing_to_say(compiler, source, tmp_path):
    require(compiler)
    call(compiler, *STRICT, "-O2", "-c", "net.c", "-o", tmp_path / "net.o", folder=source.folder)


def test_a_stranger_follows_the_readme(source):
    build, run = instructions(source.folder)
    call(*build.split(), folder=source.folder)
    assert "as JAX computed" in call(*run.split(), folder=source.folder)


@pytest.mark.slow
def test_cmake_builds_it(source):
    require("cmake")
    call("cmake", "-S", ".", "-B", "build", folder=source.folder)
    call("cmake", "--build", "build", folder=source.folder)
    assert "as JAX computed" in call("build/net_example", folder=source.folder)


@pytest.mark.parametrize("optimization", ["-O0", "-O3"])
def test_every_kind_of_number_is_as_in_the_archive(optimization, tmp_path):
    """Loops, branches, random bits, sorts and half floats; also where accesses may be moved."""
    bundle = deploy(everything, arguments())
    library = bundle.export_c(tmp_path / "net", source=True)
    call("gcc", *STRICT, optimization, "-c", "net.c", folder=library.folder)
    program = ExampleProgram(library, None)
    for ours, theirs in zip(
        program.run(), jax.tree.leaves(jax.jit(everything)(*arguments())), strict=True
    ):
        np.testing.assert_allclose(
            np.asarray(ours, np.float64), np.asarray(theirs, np.float64), rtol=1e-5, atol=1e-6
        )


def test_state_is_kept_as_in_the_archive(tmp_path):
    def step(w, x, state):
        state = jnp.tanh(state + x @ w)
        return state * 2, state

    bundle = deploy(step, (jnp.eye(3), jnp.ones(3), jnp.zeros(3)), state=("state",))
    library = bundle.export_c(tmp_path / "net", source=True)
    archive = bundle.export_c(tmp_path / "archive", name="net")
    for ours, theirs in zip(
        ExampleProgram(library, None).run(), ExampleProgram(archive, None).run(), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("core", "tools"),
    {
        "cortex-a7": ("arm-linux-gnueabihf-gcc", "qemu-arm"),
        "riscv64": ("riscv64-linux-gnu-gcc", "qemu-riscv64"),
        "cortex-m0plus": ("arm-none-eabi-gcc", "qemu-system-arm"),
        "cortex-m7": ("arm-none-eabi-gcc", "qemu-system-arm"),
        "riscv32": ("riscv64-unknown-elf-gcc", "qemu-system-riscv32"),
    }.items(),
)
def test_other_processors_compute_the_same_bits(core, tools, integer, tmp_path):
    require(*tools)
    bundle = deploy(*integer, target=core)
    library = bundle.export_c(tmp_path / "net", source=True)
    call(
        library.build[0],
        *(flag for flag in library.build if flag.startswith(("-m", "--specs=pico"))),
        *STRICT,
        "-O2",
        "-c",
        "net.c",
        folder=library.folder,
    )
    same_bits(library, core, *integer)


@pytest.mark.parametrize(
    "command",
    [
        ("avr-gcc", "-mmcu=atmega2560"),
        ("xtensa-lx106-elf-gcc", "-mlongcalls"),
        ("riscv64-unknown-elf-gcc", "-march=rv32e", "-mabi=ilp32e", "--specs=picolibc.specs"),
    ],
    ids=lambda command: command[0],
)
def test_processors_without_a_target_compile_it(command, source, tmp_path):
    """Eight bits, a core without a register file of LLVM's, sixteen registers."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} not found; Debian has it")
    headers = subprocess.run(
        [*command, "-E", "-x", "c", "-"], input="#include <math.h>", text=True, capture_output=True
    )
    if headers.returncode:
        pytest.skip(f"{command[0]} has no C library; Debian has one")
    made = tmp_path / "net.o"
    call(*command, *STRICT, "-Os", "-c", "net.c", "-o", made, folder=source.folder)
    assert made.stat().st_size


def test_integers_keep_their_bits_on_threads_and_with_a_file_of_parameters(integer, tmp_path):
    bundle = deploy(*integer)
    library = bundle.export_c(tmp_path / "net", source=True, threads=2, embed=False)
    assert "static const" not in (library.folder / "net.c").read_text()
    assert (library.folder / "net_parameters.bin").stat().st_size == library.sizes.parameters
    same_bits(library, None, *integer)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_products_and_sums_are_rounded_apart_under_any_standard(compiler, tmp_path):
    """Arduino's, Zephyr's and other builds take GNU C, which fuses them by itself."""
    require(compiler, "objdump")
    if platform.machine() != "x86_64":
        pytest.skip("the flag is that of x86-64")
    bundle = deploy(lambda w, x: x @ w + 1, (jnp.arange(64.0).reshape(8, 8), jnp.ones((1, 8))))
    folder = bundle.export_c(tmp_path / "net", source=True).folder
    gnu = ("-std=gnu11", "-O2", "-march=x86-64-v3")
    call(compiler, *gnu, *STRICT[1:], "-c", "net.c", "-o", "net.o", folder=folder)
    code = call("objdump", "-d", "net.o", folder=folder)
    assert "mulss" in code or "mulps" in code
    assert "vfm" not in code


def edges(p, x):
    """Exponentials, whose steps are exact only in their order, and NaN and infinity."""
    return jax.nn.softmax(x * p, 1), jax.nn.sigmoid(x), jnp.round(x * 3), jnp.maximum(x, -jnp.inf)


@pytest.fixture(scope="module")
def at_edges(tmp_path_factory):
    """Source of `edges` by processor, once each."""
    x = np.array(jax.random.normal(jax.random.key(0), (16, 8)) * 4)
    libraries = {}

    def library(core):
        if core not in libraries:
            bundle = deploy(edges, (jnp.float32(2), x), target=core or "host")
            folder = tmp_path_factory.mktemp("edges") / "net"
            libraries[core] = bundle.export_c(folder, source=True)
        return libraries[core]

    return library, x


FAST = [
    "-O3 -ffast-math",
    "-Ofast -std=gnu11",
    "-O0 -ffast-math",
    "-Os -funsafe-math-optimizations -freciprocal-math",
    "-O3 -fassociative-math -fno-signed-zeros -fno-trapping-math",
    "-O3 -ffinite-math-only -flto",
    "-O2 -ffast-math -fsanitize=undefined -fsanitize-undefined-trap-on-error",
    "-O2 -ffast-math -save-temps",
]


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [
        *((compiler, flags) for flags in FAST for compiler in ("gcc", "clang")),
        ("gcc", "-O2 -ffast-math -mfpmath=387 -std=gnu11"),
        ("gcc", "-O2 -ffast-math -fsingle-precision-constant -D_FORTIFY_SOURCE=2"),
        *((core, flags) for core in ("cortex-m4", "riscv32") for flags in FAST[:2]),
    ],
)
def test_fast_math_changes_nothing(compiler, flags, at_edges):
    """Exponentials were off by tenths, and NaN was lost: the flags are those of whole projects."""
    make, x = at_edges
    core = None if compiler in ("gcc", "clang") else compiler
    if "387" in flags and platform.machine() != "x86_64":
        pytest.skip("a unit of x86")
    library = make(core)
    require(library.build[0] if core else compiler)
    build = (library.build[0] if core else compiler, *library.build[1:], *flags.split())
    x = x.copy()
    x[3, 2], x[5, 1], x[6] = np.nan, np.inf, -np.inf
    results = ExampleProgram(dataclasses.replace(library, build=build), core).run([x])
    for ours, theirs in zip(results, jax.jit(edges)(2.0, x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_clang_refuses_fast_math_where_it_has_no_way_back(at_edges, tmp_path):
    require("clang", "arm-none-eabi-gcc")
    folder = at_edges[0](None).folder
    command = "clang --target=thumbv7em-none-eabihf -mcpu=cortex-m4 -fshort-enums -Wall -Werror"
    command += " -isystem /usr/lib/arm-none-eabi/include -O2 -c net.c -o"
    for flags, refused in (
        ("-ffast-math", True),
        ("-ffinite-math-only", True),
        ("-ffast-math -fno-fast-math -Wno-overriding-t-option", False),
        ("-fassociative-math -fno-trapping-math", False),
    ):
        build = [*command.split(), tmp_path / "net.o", *flags.split()]
        done = subprocess.run(build, cwd=folder, text=True, capture_output=True, check=False)
        assert bool(done.returncode) == refused, (flags, done.stderr)
        assert ("add -fno-fast-math" in done.stderr) == refused


def test_what_source_has_no_form_for_is_refused(integer, tmp_path, monkeypatch):
    bundle = deploy(*integer)
    for setting, message in (
        ({"threads": 0}, "there has to be one, the caller's"),
        ({"style": "arduino", "embed": False}, "leave embed=True"),
        ({"style": "zephyr", "threads": 2}, "leave threads at 1"),
    ):
        with pytest.raises(CLibraryError, match=message):
            bundle.export_c(tmp_path / "net", source=True, **setting)
    # Weights that were packed are kept as they were up to a limit.
    monkeypatch.setattr(building, "MOST_UNPACKED", 100)
    with pytest.raises(CLibraryError, match="packed for host alone"):
        deploy(*integer).export_c(tmp_path / "net", source=True)
