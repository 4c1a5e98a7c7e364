"""Sessions: state that stays in a bundle, is updated in place, and is what JAX would have."""

import copy
import os
import pickle
import subprocess
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from damaged import reseal
from jaxeff_export import Bundle, BundleError, SignatureError, deploy, resolve_target
from jaxeff_export.bundle.files import MANIFEST

WORDS, WIDTH = 20, 8
HOST = {**resolve_target("host"), "num-cores": 1}


def weights(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"embed": (WORDS, WIDTH), "key": (WIDTH, WIDTH), "value": (WIDTH, WIDTH)}
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def empty(slots=16):
    return {"at": jnp.int32(0), "kv": jnp.zeros((2, slots, WIDTH))}


def attend(params, token, cache):
    """A decoder of one layer: two windows of a row each, and a counter."""
    at, slots = cache["at"], cache["kv"].shape[1]
    x = params["embed"][token]
    kv = jax.lax.dynamic_update_slice(cache["kv"], (x @ params["key"])[None, None], (0, at, 0))
    kv = jax.lax.dynamic_update_slice(kv, (x @ params["value"])[None, None], (1, at, 0))
    scores = jnp.where(jnp.arange(slots) <= at, kv[0] @ x, -jnp.inf)
    y = x + jax.nn.softmax(scores) @ kv[1]
    return y @ params["embed"].T, {"at": at + 1, "kv": kv}


@pytest.fixture(scope="module")
def decoder():
    return deploy(attend, (weights(), jnp.int32(3), empty()), HOST, state=("cache",))


def tokens(count, seed=0):
    return np.random.default_rng(seed).integers(0, WORDS, count).astype(np.int32)


def jax_steps(words, cache):
    results, step = [], jax.jit(attend)
    for word in words:
        result, cache = step(weights(), word, cache)
        results.append(np.asarray(result))
    return results, cache


def assert_same_tree(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_steps_are_those_of_jax_and_a_session_begins_with_the_example(decoder):
    words = tokens(16)
    expected, cache = jax_steps(words, empty())
    assert decoder.check()
    session = decoder.session()
    for word, result in zip(words, expected, strict=True):
        np.testing.assert_allclose(session.step(word), result, rtol=0, atol=1e-6)
    assert_same_tree(session.state()["cache"], cache)
    session.reset()
    assert_same_tree(session.state()["cache"], empty())
    np.testing.assert_allclose(session.step(words[0]), expected[0], rtol=0, atol=1e-6)


def test_a_loaded_bundle_has_sessions_and_a_call_with_all_arguments(decoder, tmp_path):
    decoder.save(tmp_path / "copy")
    loaded = Bundle.load(tmp_path / "copy")
    assert loaded.manifest.state == ("cache",)
    (first, second), _ = jax_steps(tokens(2), empty())
    session = loaded.session()
    np.testing.assert_allclose(session.step(tokens(2)[0]), first, rtol=0, atol=1e-6)
    # `run` is given the state, and leaves the caller's arrays as they are.
    given = jax.tree.map(np.asarray, empty())
    result, cache = loaded.run(tokens(2)[0], given)
    np.testing.assert_allclose(result, first, rtol=0, atol=1e-6)
    assert_same_tree(given, empty())
    np.testing.assert_allclose(loaded.run(tokens(2)[1], cache)[0], second, rtol=0, atol=1e-6)


def test_state_is_saved_restored_and_refused_by_name(decoder, tmp_path):
    session, other = decoder.session(), decoder.session()
    words = tokens(6)
    for word in words[:4]:
        session.step(word)
    session.save(tmp_path / "state.npz")
    other.load(tmp_path / "state.npz")
    kept = session.state()
    expected = [session.step(word) for word in words[4:]]
    np.testing.assert_array_equal([other.step(word) for word in words[4:]], expected)
    other.restore(kept)
    np.testing.assert_array_equal([other.step(word) for word in words[4:]], expected)
    with pytest.raises(SignatureError, match="the state is cache, what was given kache"):
        other.restore({"kache": kept["cache"]})
    with pytest.raises(SignatureError, match=r"cache\['kv'\] has shape \(2, 4, 8\)"):
        other.restore({"cache": {**kept["cache"], "kv": kept["cache"]["kv"][:, :4]}})
    (tmp_path / "state.npz").write_bytes(b"no arrays")
    with pytest.raises(BundleError, match="no state of this bundle"):
        other.load(tmp_path / "state.npz")
    with pytest.raises(BundleError, match="cannot be read"):
        other.load(tmp_path / "absent.npz")


def one_and_two(x, a, b):
    return x, a + 1, b + 2


def two_and_one(x, b, a):
    return x, b + 2, a + 1


@pytest.mark.slow
def test_what_is_no_state_session_or_file_is_refused_in_words(decoder, tmp_path):
    session = decoder.session()
    kept = session.state()
    for state in (None, [1], "cache"):
        with pytest.raises(TypeError, match=r"the state is a mapping of \w+.* not a \w+; reset"):
            session.restore(state)
    with pytest.raises(TypeError, match=r"session of another bundle, not a int"):
        decoder.session(shared=3)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"a Bundle is a folder.* Bundle.load"):
            copied(decoder)
        with pytest.raises(TypeError, match=r"a Session is arrays on a board.* save and load"):
            copied(session)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a pipe, not a regular file"):
        session.save(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    jax.tree.map(np.testing.assert_array_equal, session.state(), kept)


def test_a_file_of_other_names_is_refused_though_its_arrays_fit(tmp_path):
    sessions = [
        deploy(f, (1.0, np.zeros(3), np.ones(3)), HOST, parameters=0, state=state).session()
        for f, state in ((one_and_two, ("a", "b")), (two_and_one, ("b", "a")))
    ]
    sessions[0].save(tmp_path / "state.npz")
    with pytest.raises(BundleError, match="another bundle: this one's is, in this order, b, a"):
        sessions[1].load(tmp_path / "state.npz")
    sessions[1].restore(sessions[0].state())
    np.testing.assert_array_equal(sessions[1].state()["b"], np.ones(3))


def summed(x, total):
    return x - total, total + x.sum(0)


@pytest.mark.slow
def test_data_of_a_session_may_have_any_batch():
    example = np.ones((2, 3), np.float32), np.zeros(3, np.float32)
    bundle = deploy(summed, example, HOST, parameters=0, state=("total",), any_batch=["x"])
    session, total = bundle.session(), example[1]
    for rows in (2, 5, 5, 1, 2):
        x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_array_equal(session.step(x), x - total)
        total = total + x.sum(0)
        np.testing.assert_array_equal(session.state()["total"], total)


def test_threads_have_sessions_of_their_own(decoder):
    texts = [tokens(16, seed) for seed in range(4)]
    expected = [jax_steps(words, empty())[0] for words in texts]
    found = [None] * 4
    with decoder.on("local") as runner:

        def speak(i):
            session = runner.session()
            found[i] = [session.step(word) for word in texts[i]]

        speakers = [threading.Thread(target=speak, args=(i,)) for i in range(4)]
        for thread in speakers:
            thread.start()
        for thread in speakers:
            thread.join()
        session = runner.session()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    with pytest.raises(Exception, match="was left"):
        session.step(tokens(1)[0])


def address(session, number):
    return np.from_dlpack(session._memory.state[number]).__array_interface__["data"][0]


def row(token, cache):
    """Writes a row and reads it: what it costs must not depend on how many there are."""
    new = jax.lax.dynamic_update_slice(cache, jnp.full((1, 64), token, jnp.float32), (token, 0))
    return jax.lax.dynamic_slice(new, (token, 0), (1, 64)).sum(), new


@pytest.mark.slow
def test_arrays_stay_where_they_are_and_only_windows_are_written(tmp_path):
    example = jnp.int32(1), jnp.zeros((65_536, 64))
    bundle = deploy(row, example, HOST, parameters=0, state=("cache",))
    large = bundle.session()
    before = address(large, 0)
    marked = np.from_dlpack(large._memory.state[0])
    assert large.step(np.int32(7)) == 7 * 64
    assert address(large, 0) == before
    np.testing.assert_array_equal(marked[6:9, 0], [0, 7, 0])  # the same memory has the new row
    # Of 16 MB that were copied a second array would be needed.
    assert bundle.export_c(tmp_path, name="net").sizes.workspace < 64 * 64


def read_later(token, a, b, still):
    """Reads and returns what an update replaces, and leaves a state as it is."""
    new = jax.lax.dynamic_update_slice(a, token[None], (1,))
    return (new * a).sum(), a, new, b + token, still


def swapped(token, a, b):
    return a[0] + token, b, a


@pytest.mark.slow
@pytest.mark.parametrize(
    ("f", "state", "example"),
    [
        (swapped, ("a", "b"), (np.zeros(4, np.float32), np.ones(4, np.float32))),
        (
            read_later,
            ("a", "b", "still"),
            (np.arange(4, dtype=np.float32), np.ones(4, np.float32), np.ones((), np.float32)),
        ),
        (
            # A state of another array's content, and one in two windows through a reshape.
            lambda token, a, b: (
                b.sum(),
                jax.lax.dynamic_update_slice(a.reshape(2, 2), token[None, None], (1, 1)).reshape(4),
                a * 2.0,
            ),
            ("a", "b"),
            (np.arange(4, dtype=np.float32), np.ones(4, np.float32)),
        ),
        (
            # The old content in another shape.
            lambda token, a: (
                a.reshape(2, 2),
                a[None],
                jax.lax.dynamic_update_slice(a, token[None], (1,)),
            ),
            ("a",),
            (np.arange(4, dtype=np.float32),),
        ),
    ],
    ids=["swapped", "read-later", "reshaped", "views"],
)
def test_state_that_is_no_plain_update_is_still_right(f, state, example):
    bundle = deploy(f, (np.float32(0.5), *example), HOST, parameters=0, state=state)
    assert bundle.check()
    session, jitted, now = bundle.session(), jax.jit(f), example
    for i in range(4):
        token = np.float32(i + 1)
        result = jitted(token, *now)
        now = result[-len(state) :]
        expected = result[: -len(state)]
        assert_same_tree(session.step(token), expected if len(expected) > 1 else expected[0])
        assert_same_tree(tuple(session.state().values()), tuple(now))


@pytest.mark.slow
def test_two_bundles_share_the_state_of_a_session(decoder):
    def prefill(params, words, cache):
        def one(cache, word):
            result, cache = attend(params, word, cache)
            return cache, result

        cache, results = jax.lax.scan(one, cache, words)
        return results[-1], cache

    words = tokens(9)
    reader = deploy(prefill, (weights(), jnp.asarray(words[:8]), empty()), HOST, state=("cache",))
    session = decoder.session()
    both = reader.session(shared=session)
    expected, _ = jax_steps(words, empty())
    np.testing.assert_allclose(both.step(words[:8]), expected[7], rtol=0, atol=1e-6)
    assert session.state()["cache"]["at"] == 8
    np.testing.assert_allclose(session.step(words[8]), expected[8], rtol=0, atol=1e-6)
    other = deploy(row, (jnp.int32(1), jnp.zeros((4, 64))), HOST, parameters=0, state=("cache",))
    with pytest.raises(BundleError, match="the shared session has other state"):
        other.session(shared=session)


@pytest.mark.parametrize(
    ("state", "f", "said"),
    [
        (("kache",), attend, "state names kache, which is no argument that is data"),
        (("cache", "cache"), attend, "state names cache, which is twice"),
        (("params",), attend, "state names params, which is no argument that is data"),
        (("cache",), lambda p, token, cache: p["embed"], "returns a tuple"),
        (
            ("cache",),
            lambda p, token, cache: (token, {**cache, "kv": cache["kv"][:, :3]}),
            r"cache\['kv'\] is float32\[2, 16, 8\], what replaces it .* float32\[2, 3, 8\]",
        ),
        (("cache",), lambda p, token, cache: (token, {"at": cache["at"]}), "2 arrays"),
        (
            ("cache",),
            lambda p, token, cache: (token, {"at": cache["at"], "vk": cache["kv"]}),
            r"cache\['kv'\] is replaced by result\[1\]\['vk'\]",
        ),
    ],
)
def test_wrong_state_is_refused_by_name(state, f, said):
    with pytest.raises(SignatureError, match=said):
        deploy(f, (weights(), jnp.int32(3), empty()), HOST, state=state)


def test_a_manifest_whose_state_is_another_is_refused(decoder, tmp_path):
    folder = decoder.save(tmp_path / "copy").folder
    reseal(folder, state=[])
    with pytest.raises(BundleError, match="keeps no state"):
        Bundle.load(folder).session()
    reseal(folder, state=["token"])
    with pytest.raises(BundleError, match=f"{MANIFEST}.*the state token has 1 arrays"):
        Bundle.load(folder)


@pytest.mark.process
def test_a_c_library_keeps_state_in_a_struct_of_the_callers(decoder, tmp_path):
    library = decoder.export_c(tmp_path / "lib", name="net")
    header = (library.folder / "net.h").read_text()
    assert "void net_init(net_state *state);" in header
    words = tokens(5)
    calls = "\n".join(
        f"token = {word}; if (net_run(&inputs, &outputs, workspace, NET_WORKSPACE_BYTES)) return 1;"
        'for (i = 0; i < NET_RESULT_0_SIZE; i++) printf("%.9g\\n", (double)logits[i]);'
        for word in words
    )
    (library.folder / "speak.c").write_text(f"""
#include "net.h"
#include <stdio.h>
static _Alignas(NET_WORKSPACE_ALIGNMENT) unsigned char workspace[NET_WORKSPACE_BYTES + 1];
static net_state state, other;
int main(void)
{{
    static float logits[NET_RESULT_0_SIZE];
    int32_t token = 0;
    int i;
    net_inputs inputs = {{&token, &other}};
    net_outputs outputs = {{logits}};
    net_init(&other);
    net_init(&state);
    if (net_run(&inputs, &outputs, workspace, NET_WORKSPACE_BYTES))
        return 1;
    inputs.state = &state; /* what another session did leaves this one as it is */
    {calls}
    inputs.state = NULL;
    return net_run(&inputs, &outputs, workspace, NET_WORKSPACE_BYTES) != NET_NULL_POINTER;
}}
""")
    build = [part.replace("main.c", "speak.c") for part in library.build]
    subprocess.run([*build, "-o", "speak"], cwd=library.folder, check=True)
    said = subprocess.run(["./speak"], cwd=library.folder, check=True, capture_output=True)
    ours = np.array(said.stdout.split(), np.float32).reshape(len(words), WORDS)
    np.testing.assert_allclose(ours, jax_steps(words, empty())[0], rtol=0, atol=1e-6)


@pytest.mark.arm
def test_a_board_that_keeps_nothing_has_sessions(tmp_path):
    bundle = deploy(attend, (weights(), jnp.int32(3), empty(4)), "cortex-m4", state=("cache",))
    with bundle.on("emulated:cortex-m4") as runner:
        session = runner.session()
        words = tokens(2)
        ours = [session.step(word) for word in words]
    np.testing.assert_allclose(ours, jax_steps(words, empty(4))[0], rtol=0, atol=1e-5)
