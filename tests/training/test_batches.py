"""Training on batches of iterables: the same batches of arrays are the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxeff.core import DataWarning, InterruptedRun, functional
from jaxeff.nn import MLP
from jaxeff.noise import Additive, noisy
from jaxeff.training import (
    Batches,
    CheckpointError,
    DivergedError,
    cross_entropy,
    fit,
    init,
    make_epoch,
    run_epochs,
)

pytestmark = pytest.mark.promotes("dtype")  # optax does
KEY, EXAMPLES, SIZE = jax.random.key(0), 50, 16
X = np.asarray(jax.random.normal(jax.random.key(1), (EXAMPLES, 4)))
Y = (X.sum(-1) > 0).astype(np.int32)
F, PARAMS = functional(MLP((4, 8, 2), rngs=nnx.Rngs(0)))
LOSS = cross_entropy(noisy(F, {"*": Additive(0.3)}), keyed=True)
RUN = {"optimizer": optax.adam(1e-2), "epochs": 4}


def rows_of(epoch):
    """The rows that `fit` draws from arrays in an epoch."""
    shuffle, _ = jax.random.split(jax.random.fold_in(KEY, epoch))
    return np.asarray(jax.random.permutation(shuffle, EXAMPLES))[:48].reshape(3, SIZE)


def as_drawn(epoch):
    for rows in rows_of(epoch):
        yield X[rows], Y[rows]


def pairs(count=3, size=SIZE):
    return [(X[i : i + size], Y[i : i + size]) for i in range(count)]


def same(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


def test_batches_that_arrays_would_be_cut_into_train_the_same():
    arrays = fit(KEY, LOSS, PARAMS, (X, Y), batch_size=SIZE, **RUN)
    batches = fit(KEY, LOSS, PARAMS, Batches(as_drawn), **RUN)
    same(batches.params, arrays.params, atol=1e-6)  # draws of noise as well
    same(batches.opt_state, arrays.opt_state, atol=1e-6)
    for one, other in zip(batches.history, arrays.history, strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def test_an_update_is_compiled_once_and_all_options_hold():
    traces, after = [], []

    def loss(params, batch):
        traces.append(batch[0].shape)
        return optax.softmax_cross_entropy_with_integer_labels(F(params, batch[0]), batch[1]).mean()

    def on_epoch(epoch, state, row):
        after.append(len(traces))
        assert row["seen"] == 3 * (epoch + 1)
        return epoch == 2

    options = {"eval_fn": lambda state: {"seen": state.step}, "on_epoch": on_epoch}
    result = fit(KEY, loss, PARAMS, Batches(pairs()), **RUN, **options)
    assert len(result.history) == 3  # it stopped
    assert after == [after[0]] * 3
    assert {shape for shape in traces} == {(SIZE, 4)}


class Loader:
    """As PyTorch's: batches are lists, each epoch is an iteration, the last batch is shorter."""

    def __len__(self):
        return 4

    def __iter__(self):
        return iter([list(pair) for pair in pairs()] + [[X[:5], Y[:5]]])


def test_loaders_and_generators_are_taken_as_they_are():
    listed = fit(KEY, LOSS, PARAMS, Batches(pairs()), **RUN)
    loaded = fit(KEY, LOSS, PARAMS, Loader(), batch_size=SIZE, **RUN)
    same(loaded.params, listed.params)
    endless = (pair for _ in iter(int, 1) for pair in pairs())
    read = fit(KEY, LOSS, PARAMS, Batches(endless, length=3), **RUN)
    same(read.params, listed.params)
    once = fit(KEY, LOSS, PARAMS, (pair for pair in pairs()), **RUN | {"epochs": 1})
    assert once.history == listed.history[:1]
    assert loaded.seen[0].high == pytest.approx(X[:SIZE].max())


def test_memory_that_an_iterator_uses_again_is_not_read_late():
    def reusing(epoch):
        x, y = np.empty((SIZE, 4), np.float32), np.empty(SIZE, np.int32)
        for new_x, new_y in pairs():
            x[:], y[:] = new_x, new_y
            yield x, y
        x[:], y[:] = np.nan, -1

    reused = fit(KEY, LOSS, PARAMS, Batches(reusing), **RUN)
    same(reused.params, fit(KEY, LOSS, PARAMS, Batches(pairs()), **RUN).params)


@pytest.mark.parametrize("kind", ["function", "iterator"])
def test_a_run_goes_on_with_the_batches_of_its_epoch(kind, tmp_path):
    asked = []

    def source(epoch):
        asked.append(epoch)
        return as_drawn(epoch)

    def data(name="digits"):
        if kind == "function":
            return Batches(source, name=name)
        every = (pair for epoch in range(4) for pair in as_drawn(epoch))
        return Batches(every, name=name, length=3)

    straight = fit(KEY, LOSS, PARAMS, data(), **RUN)
    asked.clear()
    file = tmp_path / "run"
    fit(KEY, LOSS, PARAMS, data(), checkpoint=file, **RUN | {"epochs": 2})
    resumed = fit(KEY, LOSS, PARAMS, data(), checkpoint=file, **RUN)
    same(resumed.params, straight.params, rtol=0)
    assert resumed.history == straight.history
    # Each run looks at the first batch; nothing is asked for twice in one.
    assert asked == ([0, 1, 0, 2, 3] if kind == "function" else [])

    with pytest.raises(CheckpointError, match="data's name is 'digits' there and 'other' here"):
        fit(KEY, LOSS, PARAMS, data("other"), checkpoint=file, **RUN | {"epochs": 5})
    with pytest.raises(ValueError, match=r"by a name: give training\.Batches"):
        fit(KEY, LOSS, PARAMS, data(None), checkpoint=tmp_path / "new", **RUN)


def test_run_epochs_takes_them_too(tmp_path):
    optimizer = optax.sgd(0.1)
    epoch, start = make_epoch(LOSS, optimizer, None), init(PARAMS, optimizer)
    run = {"data": Batches(pairs(), name="pairs"), "checkpoint": tmp_path / "run"}
    run_epochs(KEY, epoch, start, epochs=1, **run)
    state, history = run_epochs(KEY, epoch, start, epochs=2, **run)
    assert state.step == 6
    assert len(history) == 2
    with pytest.raises(TypeError, match=r"give make_epoch\(loss, optimizer, None\)"):
        run_epochs(KEY, make_epoch(LOSS, optimizer, 16), start, epochs=1, **run)


def test_batch_statistics_are_those_of_the_trained_network():
    class Normed(nnx.Module):
        def __init__(self, rngs):
            self.norm, self.last = nnx.BatchNorm(4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)

        def __call__(self, x):
            return self.last(self.norm(x))

    train, params, state = functional(Normed(nnx.Rngs(0)), mutable=True)
    loss = cross_entropy(train, mutable=True)
    result = fit(KEY, loss, params, Batches(pairs()), state=state, **RUN)
    means = np.mean([x.mean(0) for x, _ in pairs()], axis=0)
    np.testing.assert_allclose(result.state["norm"]["mean"], means, atol=1e-5)
    with pytest.warns(DataWarning, match="running statistics of the updates"):
        once = fit(KEY, loss, params, Batches(iter(pairs())), state=state, **RUN | {"epochs": 1})
    assert abs(once.state["norm"]["mean"] - means).max() > 1e-3


def bad(*batches):
    return Batches([*pairs(2), *batches])


WRONG = {
    "fewer than the last": (bad((X[:5], Y[:5]), *pairs(1)), ValueError, "batch 2 of epoch 0 has f"),
    "another shape": (bad((X[:SIZE, :2], Y[:SIZE])), ValueError, r"float32\[16, 2\], int32\[16\]"),
    "more examples": (bad((X[:20], Y[:20])), ValueError, "all must have one shape"),
    "none": (Batches([]), ValueError, "epoch 0 has no batches"),
    "examples one by one": (Batches(zip(X, Y, strict=True)), ValueError, "same number of examples"),
    "text": (Batches([(np.array(["a", "b"]), Y[:2])]), TypeError, "pytree of arrays"),
    "read already": (Batches(iter(pairs())), ValueError, "a function of the epoch"),
    "too few": (Batches(pairs(), length=5), ValueError, "3 batches .* its length of 5"),
    "labels of no class": (Batches([(X[:SIZE], Y[:SIZE] + 5)]), ValueError, "there are 2 classes"),
    "a list": (pairs(), (TypeError, ValueError), "pair"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_batches_is_said(name):
    data, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        fit(KEY, LOSS, PARAMS, data, batch_size=SIZE if name == "a list" else None, **RUN)


def test_a_batch_size_that_is_none_of_theirs_is_refused():
    with pytest.raises(ValueError, match="16 examples, not batch_size=32: leave it out"):
        fit(KEY, LOSS, PARAMS, Batches(pairs()), batch_size=32, **RUN)
    with pytest.raises(TypeError, match="batch_size is missing"):
        fit(KEY, LOSS, PARAMS, (X, Y), **RUN)
    for arguments, error in (({"source": 3}, "source must"), ({"length": 0}, "length must")):
        with pytest.raises(TypeError, match=error):
            Batches(**{"source": pairs()} | arguments)


def test_interrupted_and_diverged_runs_say_what_is_left():
    def stopping(epoch):
        yield from pairs()
        if epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRun, match="stopped after 1 of 4 epochs") as interrupted:
        fit(KEY, LOSS, PARAMS, Batches(stopping), **RUN)
    assert len(interrupted.value.result.history) == 1
    broken = Batches([*pairs(), (X[:SIZE], Y[:SIZE] - 7)])
    with pytest.raises(DivergedError, match="labels out of range"):
        fit(KEY, LOSS, PARAMS, broken, **RUN)


@pytest.mark.parametrize("length", [None, 3])
def test_progress_counts_batches(length, capsys, monkeypatch):
    monkeypatch.setattr("jaxeff.core._progress.LOG_SECONDS", 0.0)
    source = Batches(lambda epoch: iter(pairs()), length=length)
    fit(KEY, LOSS, PARAMS, source, progress=True, **RUN | {"epochs": 2})
    lines = capsys.readouterr().err
    assert ("batch 4/6 " if length else "batch 4 ") in lines
    assert "epoch 1  accuracy 0." in lines  # of the epoch before
    assert ("left" in lines) == bool(length)


def test_loaders_of_pytorch():
    torch = pytest.importorskip("torch", exc_type=ImportError)
    from torch.utils.data import DataLoader, TensorDataset

    tensors = TensorDataset(torch.from_numpy(X.copy()), torch.from_numpy(Y.astype(np.int64)))
    loaded = fit(KEY, LOSS, PARAMS, DataLoader(tensors, batch_size=SIZE), **RUN)
    cut = [(X[i : i + SIZE], Y[i : i + SIZE]) for i in range(0, 48, SIZE)]
    same(loaded.params, fit(KEY, LOSS, PARAMS, Batches(cut), **RUN).params)
    half = DataLoader(TensorDataset(torch.from_numpy(X.copy()).bfloat16()), batch_size=SIZE)
    assert next(Batches(half).epoch(0))[0].dtype == jnp.bfloat16
