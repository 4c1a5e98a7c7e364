"""C libraries for this machine: the bits of their bundles, strict C, planned memory, bad input."""

from __future__ import annotations

import json
import re
import shutil

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from c_programs import STRICT, arguments, call, everything, instructions, require
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from jaxeff_export import Bundle, CLibraryError, TargetError, deploy, resolve_target
from jaxeff_export.cli import app
from jaxeff_export.clib import CLibrary, ExampleProgram, bytes_of, draw_steps
from jaxeff_export.clib._objects import archive, compile_c, require_self_contained
from jaxeff_export.clib._program import Piece, place, program_of
from jaxeff_export.clib.codegen import identifier
from jaxeff_export.clib.codegen._rendering import render
from jaxeff_export.targets import find_c_toolchain
from small_network import inputs
from tvm import relax
from typer.testing import CliRunner

import jaxeff
from jaxeff.core import functional
from jaxeff.ensembles import Members
from jaxeff.nn import MLP

USER = """
#include "net.h"
#include <stdlib.h>
#include <string.h>

static float x[16], mean[8], var[8], hidden[32], sum[1];
static unsigned char space[NET_WORKSPACE_BYTES + 2 * NET_WORKSPACE_ALIGNMENT];

int main(void)
{
    unsigned char *workspace = space;
    net_inputs inputs;
    net_outputs outputs;
    int i, code;
    while ((size_t)workspace % NET_WORKSPACE_ALIGNMENT)
        workspace++;
    for (i = 0; i < 16; i++)
        x[i] = (float)i / 16;
    memset(space, 0xAA, sizeof space);
    inputs.x = x;
    outputs.result_hidden_0 = hidden;
    outputs.result_hidden_1_0 = sum;
    outputs.result_logits_mean = mean;
    outputs.result_logits_var = var;
    code = net_run(&inputs, &outputs, workspace, NET_WORKSPACE_BYTES);
    if (code != NET_OK)
        return 1;
    for (i = 0; i < NET_WORKSPACE_ALIGNMENT; i++) /* what lies behind is untouched */
        if (workspace[NET_WORKSPACE_BYTES + i] != 0xAA)
            return 2;
    if (net_run(&inputs, &outputs, workspace, NET_WORKSPACE_BYTES - 1) != NET_WORKSPACE_TOO_SMALL)
        return 3;
#ifndef NDEBUG
    if (net_run(&inputs, &outputs, workspace + 1, NET_WORKSPACE_BYTES) != NET_MISALIGNED)
        return 4;
    inputs.x = (const float *)(const void *)((const char *)x + 2);
    if (net_run(&inputs, &outputs, workspace, NET_WORKSPACE_BYTES) != NET_MISALIGNED)
        return 5;
    inputs.x = x;
    outputs.result_logits_var = NULL;
    if (net_run(&inputs, &outputs, workspace, NET_WORKSPACE_BYTES) != NET_NULL_POINTER)
        return 6;
#endif
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(deployed_mlp, tmp_path_factory) -> CLibrary:
    """A small network as a C library, not to be damaged."""
    return deployed_mlp.export_c(tmp_path_factory.mktemp("c") / "net")


@pytest.fixture(scope="module")
def all_of_it(tmp_path_factory) -> Bundle:
    """A function of loops, branches, noise and most dtypes."""
    params, *data = arguments()
    path = tmp_path_factory.mktemp("deployed") / "everything"
    return deploy(everything, (params, *data), path=path)


def assert_same_bits(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert a.tobytes() == np.ascontiguousarray(b).tobytes()


def test_the_bits_of_the_bundle(deployed_mlp, library):
    program = ExampleProgram(library, None)
    for seed in (1, 5):
        given_now = [np.asarray(inputs(seed))]
        with deployed_mlp.on("local") as runner:
            assert_same_bits(program.run(given_now), runner.run_leaves(given_now))


@pytest.mark.slow
def test_loops_branches_noise_and_dtypes_too(all_of_it, tmp_path):
    library = all_of_it.export_c(tmp_path / "c", name="everything")
    recorded = all_of_it.recorded[0].inputs
    with all_of_it.on("local") as runner:
        assert_same_bits(ExampleProgram(library, None).run(), runner.run_leaves(recorded))
    said = call(*library.build, "-o", "example", folder=library.folder)
    said = call("./example", folder=library.folder)
    assert "as JAX computed" in said
    assert said.count("the same") == 4  # integers and booleans


def test_an_example_that_differs_says_so(library, tmp_path):
    shutil.copytree(library.folder, tmp_path / "c")
    recorded = bytearray((tmp_path / "c/recorded.bin").read_bytes())
    recorded[-1] ^= 0x40  # the exponent of a result
    (tmp_path / "c/recorded.bin").write_bytes(recorded)
    call(*library.build, "-o", "example", folder=tmp_path / "c")
    with pytest.raises(AssertionError, match="DIFFERENT"):
        call("./example", folder=tmp_path / "c")


@pytest.mark.slow
def test_an_example_differs_where_only_the_record_is_not_a_number(library, tmp_path):
    shutil.copytree(library.folder, tmp_path / "c")
    recorded = bytearray((tmp_path / "c/recorded.bin").read_bytes())
    recorded[-4:] = np.float32(np.nan).tobytes()
    (tmp_path / "c/recorded.bin").write_bytes(recorded)
    call(*library.build, "-o", "example", folder=tmp_path / "c")
    with pytest.raises(AssertionError, match="DIFFERENT"):
        call("./example", folder=tmp_path / "c")


@pytest.mark.parametrize("compiler", ["gcc", "clang", "g++", "clang++"])
@pytest.mark.parametrize("debug", [True, False])
def test_strict_c_and_cpp(library, tmp_path, compiler, debug):
    require(compiler)
    kind, standard = (".cpp", "c++17") if "+" in compiler else (".c", "c11")
    (tmp_path / f"user{kind}").write_text(USER)
    flags = (f"-std={standard}", *STRICT, "-I", library.folder, *(() if debug else ("-DNDEBUG",)))
    files = (f"user{kind}", library.folder / "libnet.a", "-lm")
    call(compiler, *flags, *files, "-o", "user", folder=tmp_path)
    call("./user", folder=tmp_path)
    if kind == ".c":
        for source in ("net.c", "main.c"):
            call(compiler, *flags, "-c", library.folder / source, "-o", "x.o", folder=tmp_path)


def test_nothing_but_code_and_constants(library):
    """No state: nothing that can be written to. No runtime: nothing from elsewhere but libm's."""
    for line in call("size", library.folder / "libnet.a", folder=library.folder).splitlines()[1:]:
        _, data, bss, *_ = line.split()
        assert (data, bss) == ("0", "0"), line
    assert set(library.needs) <= {"memcpy", "memset", "expf"}
    listed = call("objdump", "-h", library.folder / "libnet.a", folder=library.folder)
    assert ".rodata.net_parameters" in listed


def test_readme_cmake_and_sizes(library, tmp_path):
    facts = json.loads((library.folder / "library.json").read_text())
    assert facts["sizes"] == library.sizes.to_json()
    assert library.sizes.live <= library.sizes.workspace
    shutil.copytree(library.folder, tmp_path / "c")
    build, run = instructions(tmp_path / "c")
    call(*build.split(), folder=tmp_path / "c")
    assert "as JAX computed" in call(*run.split(), folder=tmp_path / "c")
    require("cmake")
    call("cmake", "-S", ".", "-B", "build", folder=tmp_path / "c")
    call("cmake", "--build", "build", folder=tmp_path / "c")
    assert "as JAX computed" in call("build/net_example", folder=tmp_path / "c")


@pytest.mark.slow
def test_steps_add_up_to_the_sizes(library):
    steps, sizes = library.steps, library.sizes
    assert max(step.live for step in steps) == sizes.live
    # Every bound array is read somewhere; some by several kernels.
    assert sum(step.parameters for step in steps) >= sizes.parameters - 16 * len(steps)
    assert json.loads((library.folder / "library.json").read_text())["steps"] == [
        json.loads(json.dumps(step.to_json())) for step in steps
    ]
    figure, axis = plt.subplots()
    draw_steps(axis, steps)
    assert [label.get_text() for label in axis.get_yticklabels()] == [s.kernel for s in steps]
    plt.close(figure)


def test_what_is_held_for_later_calls_is_named(tmp_path):
    def twice(params, x):
        a = jnp.tanh(x @ params)
        b = jnp.sin(a @ params)
        return jnp.exp(b @ params) @ params + a

    bundle = deploy(twice, (jnp.eye(8), jnp.ones((2, 8))))
    steps = bundle.export_c(tmp_path / "c", name="net").steps
    first = steps[0]
    # The shortcut lies in the workspace until the last product reads it.
    assert any((first.kernel, 64) in step.held for step in steps[1:])
    assert all(step.live >= step.scratch + sum(size for _, size in step.held) for step in steps)


def test_parameters_in_a_file(deployed_mlp, library, tmp_path):
    blob = deployed_mlp.export_c(tmp_path / "blob", name="net", embed=False)
    size = (blob.folder / "net_parameters.bin").stat().st_size
    assert size == blob.sizes.parameters == library.sizes.parameters
    code = blob.sizes.code  # parameters that are elsewhere take no flash
    deployed_mlp.export_c(tmp_path / "blob", name="net", embed=False, flash=code)
    assert_same_bits(ExampleProgram(blob, None).run(), ExampleProgram(library, None).run())


@pytest.mark.slow
def test_what_does_not_fit_is_said_with_sizes(deployed_mlp, tmp_path):
    with pytest.raises(CLibraryError, match=r"flash: [\d,]+ bytes are needed .* 1,024 are there"):
        deployed_mlp.export_c(tmp_path / "c", flash="1k")
    with pytest.raises(CLibraryError, match=r"RAM: [\d,]+ bytes are needed .* 16 are there"):
        deployed_mlp.export_c(tmp_path / "c", ram=16)
    with pytest.raises(CLibraryError, match="'much' is no number of bytes"):
        deployed_mlp.export_c(tmp_path / "c", ram="much")
    assert not (tmp_path / "c").exists()
    assert bytes_of("2M") == 2 << 20


@pytest.mark.slow
def test_bad_input(deployed_mlp, library, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("mine")
    with pytest.raises(FileExistsError):
        deployed_mlp.export_c(tmp_path / "mine")
    (library.folder / "example").write_text("built")
    again = deployed_mlp.export_c(library.folder)  # a library's own folder is replaced
    assert again.sizes == library.sizes
    varying = deploy(lambda x: x * 2, (np.ones((2, 3), np.float32),), parameters=0, any_batch=True)
    with pytest.raises(CLibraryError, match="deploy for a fixed batch"):
        varying.export_c(tmp_path / "c")
    m23 = {"kind": "llvm", "mtriple": "thumbv8m.base-none-eabi", "mcpu": "cortex-m23"}
    with pytest.raises(TargetError, match="cortex-m23 has no floating-point unit"):
        find_c_toolchain(resolve_target(m23))
    soft = {"kind": "llvm", "mtriple": "riscv64-linux-gnu", "mcpu": "generic-rv64", "mabi": "lp64"}
    with pytest.raises(TargetError, match="soft-float"):
        find_c_toolchain(resolve_target(soft))


def test_an_operation_without_a_kernel(tmp_path):
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType([2], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.sort(x))
        builder.emit_func_output(y)
    with pytest.raises(CLibraryError, match=r"computed by relax\.sort, which has no static kernel"):
        program_of(builder.get(), 0)
    (tmp_path / "x.c").write_text("void TVMRun(void);\nvoid f(void);\nvoid f(void) { TVMRun(); }\n")
    tools = find_c_toolchain(resolve_target("host"))
    compile_c(tools, tmp_path / "x.c", tmp_path / "x.o")
    archive(tools, [tmp_path / "x.o"], tmp_path / "libx.a")
    with pytest.raises(CLibraryError, match="the kernels call TVMRun, which no C library has"):
        require_self_contained(tools, tmp_path / "libx.a")


def test_arrays_of_no_bytes(tmp_path):
    bundle = deploy(lambda x: (x[:0] @ x, x.sum()), (np.ones((3, 3), np.float32),), parameters=0)
    empty, total = ExampleProgram(bundle.export_c(tmp_path / "c"), None).run()
    assert empty.shape == (0, 3)
    assert total == 9


def test_the_time_of_a_call(library, tmp_path):
    flags = ("-DNDEBUG", "-DREPLAY_TIMES=100", "-o", tmp_path / "timed")
    call(*library.build, *flags, folder=library.folder)
    assert "ns a call" in call(tmp_path / "timed", folder=tmp_path)


def test_the_command(deployed_mlp, tmp_path):
    command = ["c", str(deployed_mlp.folder), str(tmp_path / "net"), "--blob"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "workspace:" in result.output
    assert (tmp_path / "net/net_parameters.bin").exists()
    result = CliRunner().invoke(app, [*command[:2], str(tmp_path / "other"), "--flash", "1k"])
    assert result.exit_code == 1


PIECES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 6), st.integers(0, 3)).map(
        lambda t: Piece(16 * t[0], t[1], t[1] + t[2])
    ),
    max_size=12,
)


@given(PIECES)
def test_what_is_needed_at_the_same_time_lies_apart(pieces):
    offsets = place(pieces)
    spans = [(o, o + p.size, p) for o, p in zip(offsets, pieces, strict=True)]
    for i, (start, end, piece) in enumerate(spans):
        for other_start, other_end, other in spans[:i]:
            if piece.meets(other):
                assert end <= other_start or other_end <= start
    most = max((p.size for p in pieces), default=0)
    assert most <= max((end for _, end, _ in spans), default=0) <= sum(p.size for p in pieces)


def test_names_in_c():
    assert identifier("params['a'].mean") == "params_a_mean"
    assert identifier("float") == "float_"
    assert identifier("x[0]", {"x_0"}) == "x_0_2"
    assert identifier("3d") == "n_3d"
    assert identifier("ü") == "value"


def clashing(x, X, errno, out_x, inputs, linux, out_, NULL, y1, xor):
    """Names that differ by capitals alone, of C, of C++, of headers, and of the library's own."""
    total = x + X[:3] + errno + out_x + inputs + linux + out_ + NULL + y1 + xor
    return {"x": total, "X": total[:1], "out_x": total * 2, "workspace": total - 1, "not": total}


@pytest.mark.slow
def test_names_that_clash(tmp_path):
    values = [np.full(4 if i == 1 else 3, 2.0**i, np.float32) for i in range(10)]
    folder = tmp_path / "a folder"
    for source in (False, True):
        library = deploy(clashing, tuple(values), parameters=0).export_c(
            folder / "net", source=source, style="arduino"
        )
        for ours, theirs in zip(
            ExampleProgram(library, None).run(),
            jax.tree.leaves(jax.jit(clashing)(*values)),
            strict=True,
        ):
            np.testing.assert_array_equal(ours, theirs)
        header = (library.folder / "net.h").read_text()
        macros = re.findall(r"#define (\w+)", header)
        assert sorted(macros) == sorted(set(macros))
        assert "NET_X_SIZE 3 " in header
        assert "NET_X_2_SIZE 4 " in header
        user = '#include "net.h"\n#include "net.hpp"\nstatic net::Model model;\nint main() {'
        user += "float a[3] = {0}, b[4] = {0}, c[1] = {0};\n"
        numbers = ", ".join("b" if i == 1 else "a" for i in range(10))
        user += f"return model.run({numbers}, c, a, a, a, a) != net::Status::ok; }}\n"
        (tmp_path / "user.cpp").write_text("#include <cmath>\n#include <cstring>\n" + user)
        flags = ("-std=gnu++17", *STRICT, "-I", library.folder)
        for compiler in ("g++", "clang++"):
            call(compiler, *flags, "-c", "user.cpp", "-o", "user.o", folder=tmp_path)
        for standard in ("-std=c11", "-std=gnu11"):
            for file in ("net.c", "main.c"):
                call("gcc", standard, *STRICT, "-c", library.folder / file, folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("main", r"a file of the library's own, main\.c; give one such as name='main_net'"),
        ("Recorded", r"recorded\.c"),
        ("startup", r"startup\.c"),
        ("math", r"its math\.h would be included"),
        ("index", "a name of C's library"),
        ("int", "is no name in C; give one such as name='int_'"),
        ("my net", "'my_net'"),
        ("größe", "'gr_e'"),
        ("3d", "'n_3d'"),
        ("", "'value'"),
        ("a" * 300, "has 300 letters.*at most 64"),
    ],
)
def test_names_that_would_be_taken_for_something_else(deployed_mlp, tmp_path, name, message):
    for more in ({}, {"source": True}):
        with pytest.raises(CLibraryError, match=message):
            deployed_mlp.export_c(tmp_path / "net", name=name, **more)
    assert not (tmp_path / "net").exists()


def test_a_folder_gives_the_name_where_it_can(deployed_mlp, tmp_path):
    assert deployed_mlp.export_c(tmp_path / "my net (2)").name == "my_net_2"
    with pytest.raises(CLibraryError, match=r"main\.c"):
        deployed_mlp.export_c(tmp_path / "main")


@pytest.mark.slow
def test_moments_of_an_ensemble_are_the_same_bits(tmp_path):
    f, params = functional(MLP((6, 12, 3), rngs=nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (4, 6))
    g, params = jaxeff.ensemble(jax.random.key(0), f, params, {"fc2": Members(3)})
    random = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
    bundle = deploy(jaxeff.moments(g, method="diagonal"), (random, x), path=tmp_path / "b")
    program = ExampleProgram(bundle.export_c(tmp_path / "c"), None)
    with bundle.on("local") as runner:
        assert_same_bits(program.run(), runner.run_leaves(bundle.recorded[0].inputs))


def test_templates_drop_empty_blocks_and_miss_no_value():
    number = {"dtype": "float32", "element": "float", "kind": "uint32_t", "size": 4}
    text = render("not_a_number.c", **number, magnitude="0x7fffffffu", infinity="0x7f800000u")
    assert "$" not in text
    assert "memcpy(&bits, values + (i), 4);" in text
    with pytest.raises(KeyError, match="magnitude"):
        render("not_a_number.c", **number, infinity="0x7f800000u")

    def step(parameters):
        return render("threads.c", name="n", NAME="N", parameters=parameters, cases="    case 0:")

    without, alone = step([]).splitlines(), step(["    only;"]).splitlines()
    assert [line for line in alone if line != "    only;"] == without
