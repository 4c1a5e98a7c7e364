"""Sweeps: every replicate is the training it would be alone, whatever it is trained beside."""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxeff
from jaxeff import store
from jaxeff.noise import Additive
from jaxeff.training import CheckpointError, cross_entropy, init, make_epoch, sweep
from jaxeff.training import _fit as training_loop
from jaxeff.training._replicates import replicate_keys

pytestmark = pytest.mark.promotes("dtype")  # optax does
KEY = jax.random.key(3)
LEVELS = jnp.array([0.0, 0.1, 0.5, 1.0, 2.0])


def fresh(key):
    return {"fc": jax.random.normal(key, (8, 3))}, None


def f(params, x):
    return x @ params["fc"]


@pytest.fixture(scope="module")
def data():
    x = jax.random.normal(jax.random.key(1), (40, 8))
    return x, jnp.argmax(x[:, :3], axis=-1)


@pytest.fixture(scope="module")
def problem(data):
    def loss_at(spec):
        return cross_entropy(jaxeff.noisy(f, spec), keyed=True)

    def score(key, params, state, spec):
        logits = jaxeff.noisy(f, spec)(key, params, data[0])
        return {"logits": logits[:2], "level": spec["*"].sigma, "rms": {"a/b": jnp.mean(logits)}}

    def run(levels=LEVELS, **changes):
        arguments = dict(
            optimizer=optax.adam(1e-2), epochs=3, batch_size=10, score=score, seeds=3, keep=True
        )
        return sweep(KEY, loss_at, fresh, data, {"*": Additive(levels)}, **arguments | changes)

    return run, loss_at


@pytest.fixture(scope="module")
def whole(problem):
    return problem[0]()


def assert_same(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), a, b)


@pytest.mark.slow
def test_shapes(whole):
    assert whole.scores["logits"].shape == (3, 5, 2, 3)
    np.testing.assert_array_equal(whole.scores["level"], np.tile(LEVELS, (3, 1)))
    assert whole.loss.shape == (3, 5, 3)
    assert whole.params["fc"].shape == (3, 5, 8, 3)
    assert whole.state is None
    assert not whole.diverged.any()


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 4])
def test_chunks_change_nothing(problem, whole, chunk):
    assert_same(problem[0](chunk=chunk)._asdict(), whole._asdict())


@pytest.mark.slow
def test_a_replicate_is_the_training_it_would_be_alone(problem, whole, data):
    _, loss_at = problem
    seed, setting = 2, 3
    keys = replicate_keys(KEY, seed)
    optimizer = optax.adam(1e-2)
    params, _ = fresh(keys.start)
    carry = init(params, optimizer)
    epoch = jax.jit(make_epoch(loss_at({"*": Additive(LEVELS[setting])}), optimizer, 10))
    for i in range(3):
        carry, _ = epoch(carry, jax.random.fold_in(keys.train, i), data)
    assert_same(carry.params, jax.tree.map(lambda p: p[seed, setting], whole.params))


@pytest.mark.slow
def test_start_epochs_and_score_have_keys_of_their_own(problem, data):
    """What each part is given, and the keys that one derives from it in JAX's ways."""
    seen = {"start": [], "train": [], "score": []}

    def record(part, key):
        numbers = (key, *jax.random.split(key, 4), *(jax.random.fold_in(key, i) for i in range(4)))
        note = lambda *keys: seen[part].append([tuple(map(int, k)) for k in keys])  # noqa: E731
        jax.debug.callback(note, *(jax.random.key_data(k) for k in numbers))

    def start(key):
        record("start", key)
        return fresh(key)

    def loss(key, params, state, batch, step):
        record("train", key)
        return jnp.sum(params["fc"] ** 2), ({}, state)

    def score(key, params, state, spec):
        record("score", key)
        return {"zero": jnp.zeros(())}

    sweep(
        KEY, lambda spec: loss, start, data, {"*": Additive(LEVELS[:1])}, score=score, seeds=2,
        optimizer=optax.sgd(0.1), epochs=3, batch_size=20, chunk=1,
    )  # fmt: skip
    jax.effects_barrier()
    flat = {part: {k for keys in found for k in keys} for part, found in seen.items()}
    assert all(flat.values())
    epochs = {
        tuple(map(int, jax.random.key_data(jax.random.fold_in(replicate_keys(KEY, s).train, i))))
        for s in range(2)
        for i in range(3)
    }
    assert flat["start"].isdisjoint(flat["train"] | flat["score"] | epochs)
    assert flat["score"].isdisjoint(flat["train"] | epochs)


@pytest.mark.slow
def test_settings_of_a_seed_share_random_numbers_and_seeds_do_not(problem):
    same = problem[0](levels=jnp.array([0.5, 0.5]), seeds=2)
    np.testing.assert_array_equal(same.loss[:, 0], same.loss[:, 1])
    assert not np.allclose(same.loss[0], same.loss[1])


@pytest.mark.slow
def test_what_is_random_is_drawn_once_for_all_settings(problem, data):
    """Else a sweep over levels would spend its time on drawing noise."""
    from jaxeff.training import epoch_function, start_function

    optimizer = optax.sgd(0.1)
    begin = start_function(fresh, optimizer)
    keys = jax.random.split(KEY, 1)
    carry = begin(keys, {"*": Additive(LEVELS)})
    text = jax.jit(epoch_function(problem[1], optimizer, 10, 1, 5)).lower(carry, keys, data)
    erfs = [line for line in text.as_text().splitlines() if "erf_inv" in line]
    assert erfs
    assert not any("tensor<5x10x" in line for line in erfs)


def test_a_diverged_replicate_is_marked_and_the_others_go_on(problem, whole):
    accuracies = problem[0](levels=LEVELS.at[1].set(1e38))
    np.testing.assert_array_equal(accuracies.diverged, np.tile(np.arange(5) == 1, (3, 1)))
    assert_same(accuracies.loss[:, 2:], whole.loss[:, 2:])


@pytest.mark.process
def test_a_killed_sweep_goes_on_with_the_same_numbers(problem, whole, tmp_path, monkeypatch):
    run, _ = problem
    saves = []
    save = store.save_pytree

    def dying(*args):
        save(*args)
        saves.append(1)
        if len(saves) == 4:  # in the middle of the second chunk
            raise KeyboardInterrupt

    # What a chunk's loop keeps; the sweep keeps finished chunks by itself.
    dying_store = SimpleNamespace(**{**vars(store), "save_pytree": dying})
    monkeypatch.setattr(training_loop, "store", dying_store)
    arguments = dict(chunk=5, checkpoint=tmp_path, checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        run(**arguments)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "0-0.safetensors", "running-1-0.safetensors"
    ]  # fmt: skip
    resumed = run(**arguments)
    assert len(saves) == 4 + 2 + 3
    assert_same(resumed._asdict(), whole._asdict())
    assert_same(run(**arguments)._asdict(), whole._asdict())
    assert len(saves) == 4 + 2 + 3  # all of it kept


def test_a_folder_of_another_sweep_is_refused(problem, tmp_path):
    run, _ = problem
    run(epochs=1, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="another sweep: setting 'epochs' is 1 there and 2"):
        run(epochs=2, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="other values"):
        run(LEVELS + 1, epochs=1, checkpoint=tmp_path)


@pytest.mark.slow
def test_a_folder_of_other_functions_is_refused(data, tmp_path):
    """A learning rate, a loss, a start and a score are numbers inside of functions."""

    def run(rate=0.1, scale=1.0, offset=0.0, weight=1.0, **changes):
        def loss_at(level):
            def loss(key, params, state, batch, step):
                return scale * level * jnp.sum(params["fc"] ** 2), ({}, state)

            return loss

        return sweep(
            KEY, loss_at, lambda key: ({"fc": offset + fresh(key)[0]["fc"]}, None), data,
            LEVELS[:2],
            score=lambda key, params, state, level: {"sum": weight * params["fc"].sum()},
            optimizer=optax.sgd(rate), epochs=1, batch_size=40, checkpoint=tmp_path, **changes,
        )  # fmt: skip

    first = run()
    cases = [
        (dict(rate=0.2), "the optimizer differs: it computes with -0.1 only there, with -0.2 only"),
        (dict(scale=3.0), "the loss differs: it computes with "),
        (dict(offset=0.375), "the init differs: it computes with "),
        (dict(weight=0.25), "the score differs: it computes with "),
    ]
    for changes, message in cases:
        with pytest.raises(CheckpointError) as error:
            run(**changes)
        assert message in str(error.value)
    np.testing.assert_array_equal(run(rate=0.2, resume="force").loss, first.loss)
    again = run(scale=3.0, resume=False)
    np.testing.assert_allclose(again.loss, 3 * first.loss, rtol=1e-5)


def test_bad_arguments_are_named(problem):
    run, _ = problem
    with pytest.raises(ValueError, match="chunk must be at least 1"):
        run(chunk=0)
    with pytest.raises(ValueError, match=r"common first axis.*\(\)"):
        run(levels=0.1)


SHARDED = """
import sys
import jax, jax.numpy as jnp, numpy as np, optax
import jaxeff
from jaxeff.noise import Additive
from jaxeff.training import cross_entropy, sweep
module = sys.modules["jaxeff.training._sweep"]
f = lambda params, x: x @ params["fc"]
x = jax.random.normal(jax.random.key(1), (40, 8))
seen = []
run_epochs = module.run_epochs
def watched(keys, train, carry, *args, **kwargs):
    seen.append(carry.params["fc"].sharding.num_devices)
    return run_epochs(keys, train, carry, *args, **kwargs)
module.run_epochs = watched
def run(n, seeds):
    return sweep(
        jax.random.key(3), lambda spec: cross_entropy(jaxeff.noisy(f, spec), keyed=True),
        lambda key: ({"fc": jax.random.normal(key, (8, 3))}, None),
        (x, jnp.argmax(x[:, :3], -1)), {"*": Additive(jnp.linspace(0, 1, n))},
        optimizer=optax.adam(1e-2), epochs=2, batch_size=10, seeds=seeds,
    ).loss
a, b, c, d = run(16, 1), run(5, 8), run(5, 1), run(1, 1)
assert seen == [8, 8, 8, 1], seen
np.testing.assert_allclose(a[0, 0], c[0, 0], rtol=1e-4)
assert c.shape == (1, 5, 2)
np.testing.assert_allclose(b[:1], c, rtol=1e-4)
np.testing.assert_allclose(d, c[:, :1], rtol=1e-4)
"""


@pytest.mark.process
def test_replicates_are_spread_over_eight_devices():
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", SHARDED], check=True, env=environment, timeout=300)
