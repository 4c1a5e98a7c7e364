"""Learning in a library of C: the state is JAX's, and is kept, loaded and reset as bytes."""

import jax
import numpy as np
import optax
import pytest
from c_programs import call, require
from flax import nnx
from jaxeff_export import deploy
from jaxeff_export.clib import ExampleProgram

import jaxeff
from jaxeff.adapters import learner
from jaxeff.compression import Int, calibrate

F, PARAMS = jaxeff.functional(
    nnx.Sequential(
        nnx.Linear(6, 12, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(12, 3, rngs=nnx.Rngs(1))
    )
)
X = jax.random.normal(jax.random.key(0), (24, 6))
Y = jax.random.randint(jax.random.key(1), (24,), 0, 3)


def deployed(dtype=None, **options):
    spec = calibrate(F, PARAMS, [X], {"*:linear": Int(8)}).spec
    step, codes, state = learner(F, PARAMS, X[:1], spec, optimizer=optax.sgd(0.1), dtype=dtype)
    return (
        step,
        codes,
        state,
        deploy(step, (codes, X[:1], Y[:1], state), state=("state",), **options),
    )


def equal_leaves(ours, theirs):
    """Holds the leaves of two trees to be the same; a session's have classes of its own."""
    for pair in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
        np.testing.assert_array_equal(*pair)


@pytest.mark.slow
def test_a_host_library_learns_what_jax_learns(tmp_path):
    """Every step's logits and state, and the state's bytes kept, loaded and reset in C."""
    step, codes, state, bundle = deployed()
    library = bundle.export_c(tmp_path / "net", name="net", source=True)
    calls, expected, jitted = [], [], jax.jit(step)
    for x, y in zip(X[:, None], Y[:, None], strict=True):
        calls.append([np.asarray(leaf) for leaf in jax.tree.leaves((x, y, state))])
        logits, state = jitted(codes, x, y, state)
        expected.append((logits, state))
    for ours, theirs in zip(ExampleProgram(library, None).run_all(calls), expected, strict=True):
        for a, b in zip(ours, jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    text = (library.folder / "net.h").read_text()
    assert "keep its bytes" in text
    code = KEPT.replace("LABELS", ", ".join(map(str, Y.tolist())))
    code = code.replace("INPUTS", ", ".join(f"{v:.9g}f" for v in np.ravel(X)))
    (library.folder / "kept.c").write_text(code)
    call("gcc", "-O2", "-o", "kept", "kept.c", "net.c", "-lm", folder=library.folder)
    last, again, anew = (
        np.array(line.split(), np.float32)
        for line in call("./kept", folder=library.folder).splitlines()
    )
    np.testing.assert_allclose(last, expected[-1][0][0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(again, last)
    np.testing.assert_allclose(anew, expected[0][0][0], rtol=1e-5, atol=1e-6)


KEPT = """#include <stdio.h>
#include <string.h>
#include "net.h"
static _Alignas(NET_WORKSPACE_ALIGNMENT) unsigned char workspace[NET_WORKSPACE_BYTES];
static net_state state;
static unsigned char kept[sizeof(net_state)];
static const float xs[] = {INPUTS};
static const int32_t ys[] = {LABELS};
static float logits[3];
static void step(int i) {
    const net_inputs in = {.x = xs + 6 * i, .y = ys + i, .state = &state};
    const net_outputs out = {.result_0 = logits};
    if (net_run(&in, &out, workspace, sizeof workspace) != NET_OK) printf("failed\\n");
}
static void told(void) { printf("%.9g %.9g %.9g\\n", logits[0], logits[1], logits[2]); }
int main(void) {
    net_init(&state);
    for (int i = 0; i < 23; i++) step(i);
    memcpy(kept, &state, sizeof state);
    step(23); told();
    net_init(&state);
    memcpy(&state, kept, sizeof state);
    step(23); told();
    net_init(&state);
    step(0); told();
    return 0;
}
"""


@pytest.mark.slow
def test_an_emulated_core_learns_with_the_same_bits():
    require("arm-none-eabi-gcc", "qemu-system-arm")
    step, codes, state, bundle = deployed(target="cortex-m4")
    args = X[:1], Y[:1], state
    ours = bundle.run(*args, board="emulated")
    for a, b in zip(
        jax.tree.leaves(ours), jax.tree.leaves(jax.jit(step)(codes, *args)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_16_bits_on_an_emulated_core_have_the_same_bits():
    """All of 24 states are JAX's; logits are floats, up to their last bits."""
    require("arm-none-eabi-gcc", "qemu-system-arm")
    step, codes, state, bundle = deployed("int16", target="cortex-m4")
    jitted = jax.jit(step)
    begin = state
    for x, y in zip(X[:, None], Y[:, None], strict=True):
        logits, after = jitted(codes, x, y, state)
        ours = bundle.run(x, y, state, board="emulated")
        np.testing.assert_allclose(ours[0], logits, rtol=1e-6, atol=1e-7)
        jax.tree.map(np.testing.assert_array_equal, ours[1], after)
        state = after
    pairs = zip(*map(jax.tree.leaves, (state, begin)), strict=True)
    moved = [np.abs(a - b.astype(int)).max() for a, b in pairs]
    assert min(moved) >= len(X)


@pytest.mark.slow
def test_a_session_keeps_and_loads_16_bits(tmp_path):
    step, codes, state, bundle = deployed("int16")
    session = bundle.session()
    for x, y in zip(X[:12, None], Y[:12, None], strict=True):
        session.step(x, y)
        _, state = jax.jit(step)(codes, x, y, state)
    equal_leaves(session.state(), state)
    session.save(tmp_path / "learnt.npz")
    logits = session.step(X[12:13], Y[12:13])
    other = bundle.session()
    other.load(tmp_path / "learnt.npz")
    np.testing.assert_array_equal(other.step(X[12:13], Y[12:13]), logits)
    equal_leaves(other.state(), session.state())
