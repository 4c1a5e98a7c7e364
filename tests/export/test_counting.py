"""Instructions of C libraries, counted in the emulator: a kernel that got slower fails here."""

from __future__ import annotations

import functools
import re

import jax
import numpy as np
import pytest
from c_programs import call as program
from c_programs import instructions, require
from command_line import call
from flax import nnx
from jaxeff_export import BoardError, deploy, modelled_latency
from jaxeff_export.clib import ExampleProgram, count_instructions, model_calls

import jaxeff
from jaxeff.compression import Int, calibrate
from jaxeff.core import functional
from jaxeff.nn import small_classifier
from jaxeff.search import Candidate, Candidates, LatencyError, SearchSpace

MOST = {"cortex-m7": 134_300, "cortex-m4": 132_700}
"""Instructions of `Small`, one percent above what they are: another compiler's differ a little."""
BUFFERS = 1_400
"""Bytes of the workspace and of arrays on the stack."""
LOOPS = {"pairs_sliding_0": 4_420, "pairs_of_line": 670, "dot_3px_2ch": 1_920, "dot_1px_4ch": 40}
"""Instructions of the assembler, which no compiler chooses."""
SURROUNDED = 19_220
"""Of the whole call, one percent above what it is."""
ARM_TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm")
OTHERS = {
    **dict.fromkeys(
        ("cortex-m0plus", "cortex-m3", "cortex-m33", "cortex-m55", "cortex-m85"), ARM_TOOLS
    ),
    "riscv32": ("riscv64-unknown-elf-gcc", "qemu-system-riscv32"),
}


class Small(nnx.Module):
    """What the networks of MLPerf Tiny are made of, small."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.depthwise = nnx.Conv(8, 8, (3, 3), feature_group_count=8, rngs=rngs)
        self.pointwise = nnx.Conv(8, 16, (1, 1), rngs=rngs)
        self.dense = nnx.Linear(16, 10, rngs=rngs)

    def __call__(self, x):
        for layer in (self.conv, self.depthwise, self.pointwise):
            x = nnx.relu(layer(x))
        return self.dense(x.mean((1, 2)))


@functools.cache
def small(bits=8):
    """The network with weights of so many bits, its parameters and an input."""
    f, params = functional(Small(nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (1, 10, 9, 3))
    g = jaxeff.integer(f, calibrate(f, params, [x], {"*:linear": Int(bits, 8)}).spec)
    return g, g.convert(params, x), x


@pytest.mark.process
def test_a_call_takes_no_more_instructions_than_it_did(tmp_path):
    """The loops that nearly all instructions are of, one call each: exact counts, on one core."""
    require("arm-none-eabi-gcc", "qemu-system-arm")

    def f(params, x):
        for w in params[:-1]:
            groups = x.shape[-1] // w.shape[2]
            axes = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": groups}
            x = jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", **axes))
        return x.mean((1, 2)) @ params[-1]

    rng = np.random.default_rng(0)
    shapes = (3, 3, 1, 8), (1, 1, 8, 8), (8, 4)  # depthwise, pointwise, dense
    params = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    x = rng.normal(size=(1, 5, 6, 8)).astype(np.float32)
    g = jaxeff.integer(f, calibrate(f, params, [x], {"*": Int(8)}).spec)
    codes = g.convert(params, x)
    library = deploy(g, (codes, x), target="cortex-m7").export_c(tmp_path / "net")
    counted = count_instructions(library, "cortex-m7")
    # What is ours to the last instruction: other compilers make others of what surrounds it.
    loops = {name: counted.by_function[name] for name in LOOPS}
    assert loops == LOOPS, counted.by_function
    assert counted.total <= SURROUNDED, counted.by_function


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "stride", "least"),
    [((25, 5, 64), 1, 0.5), ((24, 24, 32), 1, 0.5), ((24, 24, 32), 2, 0.34)],
)
def test_depthwise_products_of_an_instruction(shape, stride, least, tmp_path):
    """Of all that a layer of 3 by 3 executes: lines are copied, sums become codes."""
    require(*ARM_TOOLS)
    channels = shape[-1]

    def f(params, x):
        axes = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": channels}
        x = jax.lax.conv_general_dilated(x, params[0], (stride, stride), "SAME", **axes)
        return jax.nn.relu(x).reshape(-1, channels) @ params[1]

    rng = np.random.default_rng(0)
    sizes = (3, 3, 1, channels), (channels, 2)
    params = [rng.normal(size=size).astype(np.float32) for size in sizes]
    x = rng.normal(size=(1, *shape)).astype(np.float32)
    g = jaxeff.integer(f, calibrate(f, params, [x], {"*": Int(8)}).spec)
    library = deploy(g, (g.convert(params, x), x), target="cortex-m7").export_c(tmp_path / "net")
    counted = count_instructions(library, "cortex-m7")
    (layer,) = (i for i, step in enumerate(library.steps) if "conv2d" in step.kernel)
    rows, columns = (-(-n // stride) for n in shape[:2])
    products = 9 * rows * columns * channels
    assert products / counted.by_call[layer] >= least, counted.by_function


@pytest.mark.slow
@pytest.mark.parametrize("core", OTHERS)
def test_other_microcontrollers_compute_the_bits_of_xla(core, tmp_path):
    require(*OTHERS[core])
    g, codes, x = small()
    bundle = deploy(g, (codes, x), target=core, path=tmp_path / "b")
    np.testing.assert_array_equal(bundle.run(x, board="emulated"), jax.jit(g)(codes, x))
    if core != "riscv32":
        return
    # Its assembler, its compiler and its start are none of ARM's: all that reads them is asked.
    require("llvm-mca", "cmake", "clang")
    calls = bundle.model()
    assert sum(call.instructions for call in calls) < 1_800_000, calls
    # A core that begins an instruction a cycle, and waits for products.
    assert all(call.instructions <= call.cycles < 2 * call.instructions for call in calls)
    # What the command prints, and where those who want a time are sent to it.
    assert calls.instructions == sum(call.instructions for call in calls)
    assert calls.milliseconds(32) == pytest.approx(calls.cycles / 32e3)
    shown = call("model", bundle.folder, "--mhz", 32).stdout
    assert f"{calls.instructions:,}" in shown
    assert f"{float(f'{calls.cycles:.2g}'):,.0f}" in shown
    for refuse in (bundle.benchmark, bundle.profile):
        with pytest.raises(BoardError, match="jaxeff-export model"):
            refuse()
    facts = bundle.facts()
    assert [call["cycles"] for call in facts["calls"]] == [call.cycles for call in calls]
    assert facts["sizes"]["live"] == max(call["live"] for call in facts["calls"])
    assert "agrees with JAX" in facts["check"]
    library = bundle.export_c(tmp_path / "net")
    _, run = instructions(library.folder)
    program("cmake", "-S", ".", "-B", "build", folder=library.folder)
    program("cmake", "--build", "build", folder=library.folder)
    # What picolibc prints, qemu writes to the standard error.
    run = run.replace("example", "build/net_example") + " 2>&1"
    assert "as JAX computed" in program("sh", "-c", run, folder=library.folder)
    clang = re.findall(
        r"--target=\S+|-m\w+=\S+(?=[ `])|-isystem\s\S+(?=`)",
        (library.folder / "README.md").read_text().rpartition("clang")[2],
    )
    program("clang", *" ".join(clang).split(), "-c", "main.c", folder=library.folder)


@pytest.mark.slow
@pytest.mark.parametrize("core", MOST)
def test_instructions_of_a_small_network(core, tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    g, codes, x = small()
    library = deploy(g, (codes, x), target=core).export_c(tmp_path / "net")
    (result,) = ExampleProgram(library, core).run()
    np.testing.assert_array_equal(result, jax.jit(g)(codes, x))
    first, second = (count_instructions(library, core) for _ in range(2))
    assert first == second
    assert first.total <= MOST[core], first.by_function
    assert sum(first.by_call) <= first.total  # and what is done before the first kernel
    calls = model_calls(library, core)
    assert [call.kernel for call in calls] == [step.kernel for step in library.steps]
    assert tuple(call.instructions for call in calls) == first.by_call
    # Neither core begins more than two instructions a cycle, nor waits for long in these kernels.
    assert all(call.instructions / 2 <= call.cycles < 2 * call.instructions for call in calls)
    # What lives at once, and of a kernel's own arrays the small ones beside it.
    assert library.sizes.workspace + library.sizes.stack <= BUFFERS, library.steps
    # Each product is executed, in pairs at most.
    assert first.total > (27 * 8 + 9 * 8 + 8 * 16) * 90 / 2


@pytest.mark.slow
def test_weights_of_few_bits_lie_packed_and_keep_the_bits(tmp_path):
    """Four of two bits share a byte: what is left of a layer is its biases, scales and padding."""
    require("arm-none-eabi-gcc", "qemu-system-arm")
    parameters = {}
    for bits in (8, 2):
        g, codes, x = small(bits)
        library = deploy(g, (codes, x), target="cortex-m7").export_c(tmp_path / f"net{bits}")
        (result,) = ExampleProgram(library, "cortex-m7").run()
        np.testing.assert_array_equal(result, jax.jit(g)(codes, x))
        parameters[bits] = library.sizes.parameters
    # The depthwise layer's words of 16 bits stay; 27 * 8, 8 * 16 and 16 * 10 weights are packed.
    assert parameters[8] - parameters[2] >= (27 * 8 + 8 * 16 + 16 * 10) * 3 // 4


@pytest.mark.slow
def test_a_search_can_lower_instructions_cycles_and_memories():
    require("arm-none-eabi-gcc", "qemu-system-arm", "llvm-mca")
    f, params, (x, y) = small_classifier(32)
    space = SearchSpace.read(f, params, x[:1])
    candidates = Candidates(f, params, (x, y), (x, y), space, steps=0, batch_size=32)
    candidate = Candidate(space.uncompressed, space, candidates.smaller)
    latencies = {
        of: modelled_latency(x[:1], target="cortex-m4", of=of)(candidate)
        for of in ("cycles", "instructions", "ram", "flash")
    }
    assert latencies["instructions"] / 2 < latencies["cycles"] < 2 * latencies["instructions"]
    weights = sum(w.size for w in jax.tree.leaves(params))
    assert latencies["flash"] > weights > 0
    assert latencies["ram"] >= x[0].nbytes
    with pytest.raises(LatencyError, match="are counted on microcontrollers"):
        modelled_latency(x[:1], target="host", of="instructions")(candidate)
