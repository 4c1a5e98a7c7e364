"""C libraries whose loops threads share: bits, races, callers at the same time, what is refused."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import STRICT, call, instructions, require
from jaxeff_export import Bundle, CLibraryError, deploy, resolve_target
from jaxeff_export.cli import app
from jaxeff_export.clib import ExampleProgram
from typer.testing import CliRunner

CALLERS = """
#include "net.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLERS = 3, CALLS = 20, WORK = NET_WORKSPACE_BYTES, LINE = NET_WORKSPACE_ALIGNMENT };
static float x[NET_X_SIZE], expected[NET_RESULT_0_SIZE];
static net_threads threads;

static int run(net_threads *with, float *result)
{
    static const net_outputs none;
    net_outputs outputs = none;
    net_inputs inputs;
    unsigned char *workspace = aligned_alloc(LINE, WORK + LINE);
    float *sorted = malloc(sizeof(float) * NET_RESULT_1_SIZE);
    int code, i;
    memset(workspace + WORK, 0xAA, LINE);
    inputs.x = x;
    inputs.threads = with;
    outputs.result_0 = result;
    outputs.result_1 = sorted;
    code = net_run(&inputs, &outputs, workspace, WORK);
    for (i = 0; i < LINE; i++) /* what lies behind is untouched */
        if (workspace[WORK + i] != 0xAA)
            code = 100;
    free(workspace);
    free(sorted);
    return code;
}

/* A thread of the user's: returns the address of `fine` if all results are the expected ones. */
static int fine;

static void *caller(void *unused)
{
    float *result = malloc(sizeof expected);
    int i, bad = 0;
    for (i = 0; i < CALLS && !bad; i++)
        bad = run(&threads, result) != NET_OK || memcmp(result, expected, sizeof expected) != 0;
    free(result);
    (void)unused;
    return bad ? NULL : &fine;
}

int main(void)
{
    pthread_t callers[CALLERS];
    void *returned;
    int i, bad = 0;
    for (i = 0; i < NET_X_SIZE; i++)
        x[i] = (float)(i % 17) / 16 - 0.5f;
    if (net_start(NULL) != NET_NULL_POINTER || run(NULL, expected) != NET_OK)
        return 1;
    for (i = 0; i < 10; i++) { /* ended before they did anything */
        if (net_start(&threads) != NET_OK)
            return 2;
        net_stop(&threads);
    }
    if (net_start(&threads) != NET_OK)
        return 3;
    for (i = 0; i < CALLERS; i++)
        pthread_create(&callers[i], NULL, caller, NULL);
    for (i = 0; i < CALLERS; i++) {
        pthread_join(callers[i], &returned);
        bad |= returned != &fine;
    }
    net_stop(&threads);
    return bad ? 4 : 0;
}
"""


def function(w, x):
    """Loops that are worth a thread: products with scratch of their own, rows, elements."""
    y = jnp.tanh(x @ w)
    return jax.nn.softmax(y @ w.T), jnp.sort(y * 2, axis=1)


def deployed(path, target="host") -> Bundle:
    w, x = (jax.random.normal(jax.random.key(i), (64, 64)) for i in range(2))
    deploy(function, (w, x), target=target, path=path)
    return Bundle.load(path)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    """The function's bundle, which tests share and leave as it is."""
    return deployed(tmp_path_factory.mktemp("deployed") / "b")


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, 3])
def test_the_bits_of_the_bundle(bundle, tmp_path, threads):
    library = bundle.export_c(tmp_path / "net", threads=threads)
    assert "share(threads, 1, inputs, outputs, at);" in (library.folder / "net.c").read_text()
    with bundle.on("local") as runner:
        theirs = runner.run_leaves(bundle.recorded[0].inputs)
    shared = ExampleProgram(library, None).run()
    main = library.folder / "main.c"
    main.write_text(main.read_text().replace("inputs.threads = &threads", "inputs.threads = NULL"))
    for a, b, c in zip(shared, ExampleProgram(library, None).run(), theirs, strict=True):
        assert a.tobytes() == b.tobytes() == np.ascontiguousarray(c).tobytes()


@pytest.mark.slow
def test_threads_have_scratch_of_their_own(bundle, tmp_path):
    one, two, nine = (bundle.export_c(tmp_path / str(n), name="net", threads=n) for n in (1, 2, 9))
    assert "pthread" not in (one.folder / "net.h").read_text()
    assert one.sizes.workspace <= two.sizes.workspace < nine.sizes.workspace
    assert re.search(r"at \+ \d+ \+ \d+ \* task", (two.folder / "net.c").read_text())
    listed = call("size", nine.folder / "libnet.a", folder=nine.folder).splitlines()[1:]
    assert all(line.split()[1:3] == ["0", "0"] for line in listed)  # no state


@pytest.mark.slow
def test_a_padded_image_is_a_threads_own(tmp_path):
    def convolution(w, x):
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims)

    keys, target = jax.random.split(jax.random.key(0)), {**resolve_target("host"), "num-cores": 2}
    w = jax.random.normal(keys[0], (3, 3, 64, 16))
    x = jax.random.normal(keys[1], (4, 64, 64, 64))
    bundle = deploy(convolution, (w, x), target=target, path=tmp_path / "b")
    library = bundle.export_c(tmp_path / "net", threads=2)
    assert library.sizes.workspace < x.nbytes  # two images, not four
    with bundle.on("local") as runner:
        theirs = runner.run_leaves(bundle.recorded[0].inputs)
    for ours, other in zip(ExampleProgram(library, None).run(), theirs, strict=True):
        assert ours.tobytes() == np.ascontiguousarray(other).tobytes()


@pytest.mark.parametrize("source", [False, True], ids=["archive", "source"])
def test_callers_at_the_same_time_under_the_thread_sanitizer(bundle, tmp_path, source):
    require("gcc")
    library = bundle.export_c(tmp_path / "net", threads=3, source=source)
    (tmp_path / "user.c").write_text(CALLERS)
    archives = [] if source else [library.folder / "libnet.a"]
    files = ("user.c", library.folder / "net.c", *archives, "-lm", "-pthread")
    flags = ("-std=c11", *STRICT, "-g", "-O1", "-fsanitize=thread", "-I", library.folder)
    call("gcc", *flags, *files, "-o", "user", folder=tmp_path)
    call("./user", folder=tmp_path)


@pytest.mark.slow
def test_threads_of_c99_source(bundle, tmp_path):
    one, two = (
        bundle.export_c(tmp_path / str(n), name="net", threads=n, source=True) for n in (1, 2)
    )
    assert "share(threads, 1, inputs, outputs, at);" in (two.folder / "net.c").read_text()
    for a, b in zip(ExampleProgram(one, None).run(), ExampleProgram(two, None).run(), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("source", [False, True], ids=["archive", "source"])
def test_readme_cmake_and_cpp(bundle, tmp_path, source):
    library = bundle.export_c(tmp_path / "net", threads=2, embed=False, source=source)
    build, run = instructions(library.folder)
    call(*build.split(), folder=library.folder)
    assert "as JAX computed" in call(*run.split(), folder=library.folder)
    for compiler in ("gcc", "clang"):
        require(compiler)
        for file, standard in (
            ("net.c", "-std=c99" if source else "-std=c11"),
            ("main.c", "-std=c11"),
        ):
            call(compiler, standard, *STRICT, "-c", file, folder=library.folder)
    (tmp_path / "user.cpp").write_text('#include "net.h"\n')
    call("g++", *STRICT, "-I", library.folder, "-c", "user.cpp", folder=tmp_path)
    require("cmake")
    call("cmake", "-S", ".", "-B", "build", folder=library.folder)
    call("cmake", "--build", "build", folder=library.folder)
    assert "as JAX computed" in call("build/net_example", folder=library.folder)


@pytest.mark.slow
def test_nothing_to_share(tmp_path):
    bundle = deploy(lambda x: x * 2, (np.ones(3, np.float32),), parameters=0)
    (twice,) = ExampleProgram(bundle.export_c(tmp_path / "net", threads=2), None).run()
    np.testing.assert_array_equal(twice, [2, 2, 2])
    bundle = deploy(lambda x: (x[:0] @ x, x.sum()), (np.ones((3, 3), np.float32),), parameters=0)
    empty, total = ExampleProgram(bundle.export_c(tmp_path / "empty", threads=2), None).run()
    assert (empty.shape, total) == ((0, 3), 9)


def test_the_command(bundle, tmp_path):
    command = ["c", str(bundle.folder), str(tmp_path / "net"), "--threads", "2"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "#define NET_THREADS 2" in (tmp_path / "net/net.h").read_text()


def test_an_argument_of_the_same_name(tmp_path):
    bundle = deploy(lambda threads: threads * 2, (np.ones(3, np.float32),), parameters=0)
    library = bundle.export_c(tmp_path / "net", threads=2)
    assert "const float *threads_2;" in (library.folder / "net.h").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("core", "tools"),
    [
        ("cortex-a7", ("arm-linux-gnueabihf-gcc", "qemu-arm")),
        ("riscv64", ("riscv64-linux-gnu-gcc", "qemu-riscv64")),
    ],
)
def test_other_processors(tmp_path, core, tools):
    require(*tools)
    bundle = deployed(tmp_path / "b", core)
    one, two = (
        ExampleProgram(bundle.export_c(tmp_path / str(n), name="net", threads=n), core).run()
        for n in (1, 2)
    )
    for a, b in zip(one, two, strict=True):
        assert a.tobytes() == b.tobytes()


def test_what_is_refused(bundle, tmp_path):
    with pytest.raises(CLibraryError, match="threads=0: there has to be one, the caller's"):
        bundle.export_c(tmp_path / "net", threads=0)
    require("arm-none-eabi-gcc", "qemu-system-arm")
    board = deploy(lambda x: x * 2, (np.ones(3, np.float32),), parameters=0, target="cortex-m7")
    with pytest.raises(CLibraryError, match="threads=2: cortex-m7 has no operating system"):
        board.export_c(tmp_path / "net", threads=2)
    assert not (tmp_path / "net").exists()
