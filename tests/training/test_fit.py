"""`fit` and its pure core: a plain optax loop is the oracle; resuming is bit for bit."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from sklearn.datasets import load_digits

from jaxeff.core import InterruptedRun, functional
from jaxeff.nn import MLP
from jaxeff.training import (
    CheckpointError,
    DivergedError,
    cross_entropy,
    fit,
    init,
    make_epoch,
    run_epochs,
    save_pytree,
    stateless,
)

pytestmark = pytest.mark.promotes("dtype")  # optax does
KEY = jax.random.key(0)


@pytest.fixture
def data():
    x = jax.random.normal(jax.random.key(1), (50, 4))
    return x, (x.sum(-1) > 0).astype(jnp.int32)


@pytest.fixture
def plain():
    return functional(MLP((4, 8, 2), rngs=nnx.Rngs(0)))


class Stateful(nnx.Module):
    """Batch statistics and dropout's random counters."""

    def __init__(self, width, rngs):
        self.fc1 = nnx.Linear(4, width, rngs=rngs)
        self.bn1 = nnx.BatchNorm(width, rngs=rngs)
        self.drop1 = nnx.Dropout(0.1, rngs=rngs)
        self.fc2 = nnx.Linear(width, 2, rngs=rngs)

    def __call__(self, x):
        return self.fc2(self.drop1(jax.nn.relu(self.bn1(self.fc1(x)))))


@pytest.fixture
def with_state():
    return functional(Stateful(8, nnx.Rngs(0)), mutable=True)


def numbers(tree):
    """The tree as numpy arrays, random keys as their data."""
    is_key = lambda leaf: jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(
        lambda leaf: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf), tree
    )


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, numbers(a), numbers(b))


def noisy_loss(f):
    """A loss that uses everything it is given: key, state, batch and step."""

    def loss(key, params, state, batch, step):
        x, y = batch
        logits, state = f(params, state, x + 0.1 * jax.random.normal(key, x.shape))
        value = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return value * (1 + 0.01 * step), ({"step": 1.0 * step}, state)

    return loss


def run(tmp_path, f, params, state, data, name="run", **changes):
    arguments = dict(
        optimizer=optax.adamw(1e-2),
        epochs=5,
        batch_size=16,
        state=state,
        eval_fn=lambda now: {"norm": optax.tree.norm(now.params)},
        checkpoint=tmp_path / name,
        settings={"lr": 1e-2, "widths": (4, 8, 2)},
    )
    key = changes.pop("key", KEY)
    return fit(key, noisy_loss(f), params, data, **(arguments | changes))


@pytest.mark.slow
def test_epochs_equal_a_plain_optax_loop(with_state, data):
    f, params, state = with_state
    # Not Adam: it blows up the rounding of a bias before a batch norm, whose gradient is zero.
    loss, optimizer = noisy_loss(f), optax.sgd(0.1, momentum=0.9)
    result = fit(KEY, loss, params, data, optimizer=optimizer, epochs=2, batch_size=16, state=state)
    gradient = jax.jit(jax.value_and_grad(loss, argnums=1, has_aux=True))
    opt_state, step, losses = optimizer.init(params), 0, []
    for epoch in range(2):
        shuffle_key, loss_key = jax.random.split(jax.random.fold_in(KEY, epoch))
        order = np.asarray(jax.random.permutation(shuffle_key, 50))
        for i, key in enumerate(jax.random.split(loss_key, 3)):
            batch = tuple(np.asarray(leaf)[order[16 * i : 16 * (i + 1)]] for leaf in data)
            (value, (_, state)), grads = gradient(key, params, state, batch, step)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            step += 1
            losses.append(value)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)  # noqa: E731
    jax.tree.map(close, result.params, params)
    jax.tree.map(close, numbers(result.state), numbers(state))
    close([r["loss"] for r in result.history], np.reshape(losses, (2, 3)).mean(1))
    assert [r["step"] for r in result.history] == [1.0, 4.0]
    assert [r["epoch"] for r in result.history] == [0, 1]
    json.dumps(result.history)


def test_an_epoch_sees_every_example_once(data):
    def loss(key, params, batch):
        return params * 0.0, {"seen": jnp.sum(batch)}

    epoch = make_epoch(stateless(loss), optax.sgd(1.0), 5)
    start = init(jnp.float32(1), optax.sgd(1.0))
    rows = jnp.arange(50.0)
    _, metrics = epoch(start, KEY, rows)
    assert metrics["seen"] * 10 == rows.sum()


def test_a_loss_takes_as_much_as_it_needs(data):
    """Every form is the same training; one of another number of arguments says the forms."""

    def of_batch(params, batch, scale=1.0):
        x, y = batch
        return scale * jnp.mean((x @ params["w"] - y) ** 2)

    forms = [
        of_batch,
        lambda params, batch: (of_batch(params, batch), {"double": 2.0 * of_batch(params, batch)}),
        lambda key, params, batch: of_batch(params, batch),
        lambda key, params, state, batch, step: (of_batch(params, batch), ({}, state)),
        stateless(of_batch),
    ]
    start = {"w": jnp.zeros(4)}
    arguments = {"optimizer": optax.sgd(0.1), "epochs": 2, "batch_size": 10}
    runs = [fit(KEY, loss, start, data, **arguments) for loss in forms]
    for run in runs[1:]:
        equal(run.params, runs[0].params)
    assert runs[1].history[0]["double"] == pytest.approx(2 * runs[1].history[0]["loss"], rel=1e-6)
    with pytest.raises(TypeError, match=r"this one takes \(key, params, state, batch\)"):
        fit(KEY, lambda key, params, state, batch: 0.0, start, data, **arguments)


def interrupt(epoch, train_state, record):
    if epoch == 1:
        raise KeyboardInterrupt


def test_ctrl_c_leaves_the_finished_epochs(data, tmp_path):
    start, arguments = {"w": jnp.zeros(4)}, {"optimizer": optax.sgd(0.1), "batch_size": 10}

    def loss(params, batch):
        return jnp.mean((batch[0] @ params["w"] - batch[1]) ** 2)

    two = fit(KEY, loss, start, data, epochs=2, **arguments)
    with pytest.raises(InterruptedRun, match=r"2 of 5 epochs; with a checkpoint.*result") as error:
        fit(KEY, loss, start, data, epochs=5, on_epoch=interrupt, **arguments)
    equal(error.value.result.params, two.params)
    assert error.value.result.history == two.history
    kept = arguments | {"checkpoint": tmp_path / "run"}
    with pytest.raises(InterruptedRun, match=r"the same call goes on from .*run"):
        fit(KEY, loss, start, data, epochs=5, on_epoch=interrupt, **kept)
    equal(
        fit(KEY, loss, start, data, epochs=5, **kept).params,
        fit(KEY, loss, start, data, epochs=5, **arguments).params,
    )

    def at_once(train_state):
        raise KeyboardInterrupt

    with pytest.raises(InterruptedRun, match="0 of 5 epochs") as error:
        fit(KEY, loss, start, data, epochs=5, eval_fn=at_once, **arguments)
    assert error.value.result is None


@pytest.mark.slow
def test_digits_are_learned():
    digits = load_digits()
    x, y = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target)
    f, params = functional(MLP((64, 32, 10), rngs=nnx.Rngs(0)))
    result = fit(
        KEY,
        cross_entropy(f),
        params,
        (x[:1500], y[:1500]),
        optimizer=optax.adam(1e-2),
        epochs=10,
        batch_size=50,
        eval_fn=lambda now: {"test": jnp.mean(f(now.params, x[1500:]).argmax(-1) == y[1500:])},
    )
    # Chance is 0.1; a linear model gets about 0.9 on these last rows.
    assert result.history[-1]["accuracy"] > 0.95
    assert result.history[-1]["test"] > 0.85


@pytest.mark.process
def test_a_killed_run_resumes_bit_for_bit(tmp_path, with_state, data):
    straight = run(tmp_path, *with_state, data, "straight")

    def kill(epoch, train_state, record):
        if epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, *with_state, data, on_epoch=kill, checkpoint_every=2)
    seen = []
    resumed = run(
        tmp_path,
        *with_state,
        data,
        checkpoint_every=2,
        on_epoch=lambda epoch, *_: seen.append(epoch),
    )
    assert seen == [2, 3, 4]
    equal(resumed._replace(history=()), straight._replace(history=()))
    assert resumed.history == straight.history
    assert (tmp_path / "run").read_bytes() == (tmp_path / "straight").read_bytes()
    # A finished run is only read, a longer one goes on from it.
    again = run(tmp_path, *with_state, data, on_epoch=lambda *_: pytest.fail("ran again"))
    equal(again.params, straight.params)
    longer = run(tmp_path, *with_state, data, epochs=6)
    assert longer.history[:5] == straight.history


@pytest.mark.slow
def test_an_early_stop_is_kept(tmp_path, with_state, data):
    first = run(tmp_path, *with_state, data, on_epoch=lambda epoch, *_: epoch == 1)
    assert len(first.history) == 2
    second = run(tmp_path, *with_state, data)
    assert second.history == first.history


@pytest.mark.slow
def test_resume_false_starts_over(tmp_path, with_state, data):
    run(tmp_path, *with_state, data, epochs=1)
    result = run(tmp_path, *with_state, data, epochs=1, key=jax.random.key(9), resume=False)
    other = run(tmp_path, *with_state, data, "other", epochs=1, key=jax.random.key(9))
    equal(result.params, other.params)


@pytest.mark.slow
def test_another_runs_checkpoint_is_refused_with_the_difference(tmp_path, with_state, data):
    f, params, state = with_state
    x, y = data
    run(tmp_path, f, params, state, data, epochs=2)
    cases = [
        (dict(settings={"lr": 2e-2, "widths": (4, 8, 2)}), r"setting 'lr' is 0.01 there and 0.02"),
        (dict(settings={}), r"setting 'lr' is 0.01 there and None here"),
        (dict(batch_size=8), r"setting 'batch_size' is 16 there and 8 here"),
        (dict(key=jax.random.key(5)), r"key is \[0, 0\] there and \[0, 5\] here"),
        (dict(data=(x[:40], y[:40])), r"data\[0\] has shape \[50, 4\] there and \[40, 4\] here"),
        (dict(data=(x, 1 - y)), r"data\[1\] has other values"),
        (dict(optimizer=optax.sgd(1e-2)), r"optimizer differs: it computes with 0\.1, 0\.9, "),
        (dict(epochs=1), r"already holds 2 epochs"),
    ]
    for changes, message in cases:
        changes = {"data": data, **changes}
        with pytest.raises(CheckpointError, match=message) as error:
            run(tmp_path, f, params, state, **changes)
        assert str(tmp_path / "run") in str(error.value)
    g, wider, wider_state = functional(Stateful(9, nnx.Rngs(0)), mutable=True)
    with pytest.raises(CheckpointError, match=r"\['bn1'\]\['bias'\] has shape \[8\] there"):
        run(tmp_path, g, wider, wider_state, data)


@jax.custom_jvp
def rounded(x, slope):
    return jnp.round(x)


@rounded.defjvp
def _(primals, tangents):
    x, slope = primals
    return jnp.round(x), slope * tangents[0]


X = np.linspace(-1, 1, 4000).reshape(1000, 4)
ONES = {"w": jnp.ones(4)}


def squares(scale=1.0, teacher=(0.0, 1.0, 2.0, 3.0), slope=1.0):
    teacher = np.array(teacher, np.float32)

    def loss(key, params, batch):
        return jnp.mean((scale * rounded(params["w"], slope)[None] * batch - teacher[None]) ** 2)

    return stateless(loss)


SQUARES = squares()


def of_scheduled(steps):
    return optax.sgd(optax.cosine_decay_schedule(0.1, steps))


def with_rate(rate):
    return optax.inject_hyperparams(optax.sgd)(learning_rate=rate)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            dict(optimizer=optax.adam(1e-2)), dict(optimizer=optax.adam(2e-2)),
            "the optimizer differs: it computes with -0.01 only there, with -0.02 only here",
        ),
        (
            dict(optimizer=of_scheduled(10)), dict(optimizer=of_scheduled(20)),
            "the optimizer differs: it computes with 10 only there, with 20 only here",
        ),
        (
            dict(optimizer=with_rate(0.1)), dict(optimizer=with_rate(0.2)),
            "start.opt_state.hyperparams['learning_rate'] is 0.1 there and 0.2 here",
        ),
        (
            dict(), dict(optimizer=optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1))),
            "the optimizer differs: it computes with 0.1 only here",
        ),
        (
            dict(loss=squares(1.0)), dict(loss=squares(1.5)),
            "the loss differs: it computes with 1.5 only here",
        ),
        (
            dict(), dict(loss=squares(teacher=(0.0, 1.0, 2.0, 4.0))),
            "the loss differs: it computes something else",
        ),
        (
            dict(), dict(loss=squares(slope=0.5)),
            "the loss differs: it computes with 0.5 only here",
        ),
        (dict(), dict(params={"w": jnp.ones(4).at[2].set(2)}), "start.params['w'] has other"),
        (dict(), dict(data=X + 1e-3 * (np.arange(1000) == 501)[:, None]), "data has other values"),
    ],
)  # fmt: skip
def test_another_runs_numbers_are_refused(tmp_path, old, new, message):
    def train(epochs, params=ONES, data=X, loss=SQUARES, **changes):
        options = dict(optimizer=optax.sgd(0.1), batch_size=500, checkpoint=tmp_path / "run")
        return fit(KEY, loss, params, data, epochs=epochs, **(options | changes)).history

    first = train(1, **old)
    before = (tmp_path / "run").read_bytes()
    with pytest.raises(CheckpointError) as error:
        train(2, **new)
    assert message in str(error.value)
    assert (tmp_path / "run").read_bytes() == before
    forced = train(2, **new, resume="force")
    assert forced[:1] == first
    assert len(forced) == 2
    assert train(2, **new) == forced  # it is this run's now


@pytest.mark.slow
def test_arrays_of_the_same_values_are_the_same_run(tmp_path):
    def train(epochs, data, params):
        options = dict(optimizer=optax.sgd(0.1), batch_size=500, checkpoint=tmp_path / "run")
        return fit(KEY, SQUARES, params, data, epochs=epochs, **options).history

    first = train(1, X, {"w": np.ones(4)})
    assert train(2, jnp.asarray(X), ONES)[:1] == first
    assert train(3, X.astype(np.float32), ONES)[:1] == first


SCRIPT = """
import jax, jax.numpy as jnp, optax
import jaxeff
from jaxeff.compression import Uniform
from jaxeff.noise import Additive
from jaxeff.training import cross_entropy, fit
x = jax.random.normal(jax.random.key(1), (8, 4))
params = {"a": jnp.ones((4, 3)), "b": jnp.ones((3, 2))}
f = lambda params, x: jax.nn.relu(x @ params["a"]) @ params["b"]
f = jaxeff.noisy(jaxeff.quantized(f, {"*": Uniform(4)}), {"*": Additive(0.1)})
rate = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)
decayed = optax.masked(optax.add_decayed_weights(1e-2), {"a": True, "b": False})
epochs = []
fit(
    jax.random.key(0), cross_entropy(f, keyed=True), params, (x, jnp.arange(8) % 2), epochs=EPOCHS,
    optimizer=optax.chain(optax.clip_by_global_norm(1.0), decayed, optax.adam(rate)),
    batch_size=8, checkpoint=PATH, on_epoch=lambda i, *_: epochs.append(i),
)
"""


@pytest.mark.process
def test_the_same_script_goes_on_in_a_new_process(tmp_path):
    """Whatever differs between processes: addresses, and the order of sets of strings."""
    path = tmp_path / "run"
    exec(SCRIPT, {"PATH": path, "EPOCHS": 1})
    script = f"PATH, EPOCHS = {str(path)!r}, 2\n{SCRIPT}\nprint(epochs)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[1]"


@pytest.mark.slow
def test_damaged_and_foreign_checkpoints_are_refused(tmp_path, with_state, data):
    run(tmp_path, *with_state, data, epochs=1)
    path = tmp_path / "run"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match="run is damaged"):
        run(tmp_path, *with_state, data)
    save_pytree(path, {"w": jnp.ones(3)})
    with pytest.raises(CheckpointError, match="not one of a training run"):
        run(tmp_path, *with_state, data)


@pytest.mark.slow
def test_divergence_names_the_epoch_and_keeps_the_last_good_state(tmp_path):
    def loss(key, params, batch):
        return jnp.mean((params["w"] * batch) ** 2)

    arguments = dict(optimizer=optax.sgd(20.0), batch_size=1, checkpoint=tmp_path / "run")
    start = {"w": jnp.float32(1)}
    data = jnp.ones(8)
    # w grows by a factor of -39 per update: its square leaves float32 after 13 updates, the
    # second epoch.
    with pytest.raises(DivergedError, match=r"diverged in epoch 1.*after 1 good") as error:
        fit(KEY, stateless(loss), start, data, epochs=4, **arguments)
    good = fit(KEY, stateless(loss), start, data, epochs=1, **arguments)
    np.testing.assert_allclose(good.params["w"], 39.0**8, rtol=1e-5)
    equal(error.value.train_state.params, good.params)
    assert error.value.history == good.history


@pytest.mark.slow
def test_a_parameter_that_is_not_finite_is_divergence():
    def loss(key, params, batch):
        return jnp.sqrt(params["w"])  # its derivative at 0 is infinite, its value is not

    with pytest.raises(DivergedError, match=r"epoch 0.*parameter 'w'"):
        fit(
            KEY,
            stateless(loss),
            {"w": jnp.float32(0)},
            jnp.ones(1),
            optimizer=optax.sgd(1.0),
            epochs=1,
            batch_size=1,
        )


@pytest.mark.slow
def test_whole_trainings_are_vmapped(plain, data):
    f, params = plain

    def train(key, noise):
        def loss(key, params, batch):
            x, y = batch
            x = x + noise * jax.random.normal(key, x.shape)
            return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()

        epoch = make_epoch(stateless(loss), optax.adam(1e-2), 10)
        keys = jax.random.split(key, 3)
        return jax.lax.scan(lambda c, k: epoch(c, k, data), init(params, optax.adam(1e-2)), keys)

    keys, levels = jax.random.split(KEY, 3), jnp.array([0.0, 0.1, 1.0])
    many, metrics = jax.jit(jax.vmap(train))(keys, levels)
    assert metrics["loss"].shape == (3, 3)
    one, _ = jax.jit(train)(keys[1], levels[1])
    np.testing.assert_allclose(
        many.params["fc1"]["kernel"][1], one.params["fc1"]["kernel"], rtol=1e-4, atol=1e-5
    )
    assert not np.allclose(many.params["fc1"]["kernel"][0], one.params["fc1"]["kernel"])


@pytest.mark.slow
def test_replicates_run_with_checkpoints_and_may_diverge(tmp_path, plain, data):
    f, params = plain
    optimizer = optax.adam(1e-2)
    epoch = make_epoch(cross_entropy(f), optimizer, 10)

    def replicated(carry, key, data):
        return jax.vmap(epoch, in_axes=(0, 0, None))(carry, jax.random.split(key, 3), data)

    def start():
        copies = jax.tree.map(lambda p: jnp.stack([p, 2 * p, jnp.nan * p]), params)
        return jax.vmap(lambda p: init(p, optimizer))(copies)

    first = start()
    arguments = dict(epochs=3, on_nan="keep", checkpoint=tmp_path / "run")
    final, history = run_epochs(KEY, replicated, first, data, **arguments)
    equal(first, start())  # the caller's arrays are never given away
    losses = np.array([record["loss"] for record in history])
    assert losses.shape == (3, 3)
    np.testing.assert_array_equal(np.isnan(losses), [[False, False, True]] * 3)
    resumed, _ = run_epochs(KEY, replicated, first, data, **arguments)
    equal(resumed, final)
    with pytest.raises(DivergedError):
        run_epochs(KEY, replicated, first, data, epochs=1)


@pytest.mark.slow
def test_the_loss_is_traced_no_more_often_for_more_epochs(plain, data):
    f, params = plain
    traces = []

    def loss(key, params, batch):
        traces.append(1)
        x, y = batch
        return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()

    counts = []
    for epochs in (1, 4):
        traces.clear()
        fit(
            KEY,
            stateless(loss),
            params,
            data,
            optimizer=optax.sgd(0.1),
            epochs=epochs,
            batch_size=10,
        )
        counts.append(len(traces))
    assert counts[1] <= counts[0]  # the second call takes what the first one compiled


@pytest.mark.slow
def test_sharpness_aware_minimization_gets_its_gradient_function(plain, data):
    f, params = plain
    adversary = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
    sam = optax.contrib.sam(optax.sgd(0.1), adversary, sync_period=2, opaque_mode=True)
    losses = fit(
        KEY, cross_entropy(f), params, data, optimizer=sam, epochs=5, batch_size=10
    ).history
    assert losses[-1]["loss"] < losses[0]["loss"]


@pytest.mark.slow
def test_cross_entropy_of_keyed_and_stateful_functions(plain, with_state, data):
    f, params = plain
    x, y = data
    noisy = cross_entropy(lambda key, p, x: f(p, x + jax.random.normal(key, x.shape)), keyed=True)
    value, (metrics, _) = noisy(KEY, params, None, data, 0)
    logits = f(params, x + jax.random.normal(KEY, x.shape))
    want = -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(50), y])
    np.testing.assert_allclose(value, want, rtol=1e-5)
    assert metrics["accuracy"] == jnp.mean(logits.argmax(-1) == y)
    g, params, state = with_state
    _, (_, new) = cross_entropy(g, mutable=True)(KEY, params, state, data, 0)
    equal(new, g(params, state, x)[1])


def test_wrong_losses_and_data_are_clear_errors(plain, data):
    f, params = plain
    x, y = data

    def attempt(loss, data=data, **changes):
        arguments = dict(optimizer=optax.sgd(0.1), epochs=1, batch_size=10) | changes
        return fit(KEY, loss, params, data, **arguments)

    good = cross_entropy(f)
    cases = [
        (TypeError, "return the loss alone", dict(loss=lambda *_: jnp.float32(0))),
        (TypeError, r"shape \[2\]", dict(loss=lambda *_: (jnp.ones(2), ({}, None)))),
        (TypeError, "dict of metrics", dict(loss=lambda *_: (jnp.float32(0), (1.0, None)))),
        (TypeError, "structure", dict(loss=lambda *_: (jnp.float32(0), ({}, {"a": 1.0})))),
        (
            ValueError,
            "called 'loss'",
            dict(loss=lambda *_: (jnp.float32(0), ({"loss": 0.0}, None))),
        ),
        (ValueError, "same number of examples", dict(loss=good, data=(x, y[:3]))),
        (ValueError, "less than one batch of 64", dict(loss=good, batch_size=64)),
        (ValueError, "batch_size must be at least 1", dict(loss=good, batch_size=0)),
        (ValueError, "epochs must be at least 1", dict(loss=good, epochs=0)),
    ]
    for kind, message, arguments in cases:
        with pytest.raises(kind, match=message):
            attempt(**arguments)
    epoch = make_epoch(good, optax.sgd(0.1), 10)
    with pytest.raises(ValueError, match="on_nan"):
        run_epochs(KEY, epoch, init(params, optax.sgd(0.1)), data, epochs=1, on_nan="ignore")


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_on_a_terminal_only(plain, data, capsys, monkeypatch, terminal):
    monkeypatch.setattr("rich.console.Console.is_terminal", terminal)
    f, params = plain
    fit(
        KEY,
        cross_entropy(f),
        params,
        data,
        optimizer=optax.sgd(0.1),
        epochs=2,
        batch_size=10,
    )
    shown = capsys.readouterr().err
    assert ("2/2" in shown and "accuracy" in shown) == terminal
