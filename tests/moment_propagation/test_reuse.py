"""Loops and blocks that apply random values to what these made before are named, and no others."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from jaxeff.moment_propagation import Gaussian, MomentsWarning, moments

UNITS = 8
KEYS = jax.random.split(jax.random.key(0), 3)
KERNELS = jax.random.normal(KEYS[0], (10, UNITS, UNITS)) / np.sqrt(UNITS)
NEW = jax.random.normal(KEYS[1], (10, 8, UNITS))
# Examples whose inputs are new at every step, and others whose inputs repeat.
INPUTS = jnp.concatenate([NEW, jnp.broadcast_to(NEW[:1], NEW.shape)], 1)


def random(w):
    """Noise of 5 % of a kernel's spread."""
    return Gaussian(w, jnp.full_like(w, (0.05 * float(jnp.std(w))) ** 2))


def loop(step):
    """The last state of a loop of one state, which begins at the first input."""
    return lambda w, x: lax.scan(lambda h, row: (step(h, row, w), None), x[0], x)[0]


def remembered(w, x):
    """The last of two states, as of an LSTM: the gate reads the other one."""

    def step(carry, x):
        c, h = carry
        c = nnx.sigmoid(h @ w) * c + jnp.tanh(h @ w + x)
        return (c, jnp.tanh(c)), None

    return lax.scan(step, (jnp.zeros_like(x[0]), jnp.zeros_like(x[0])), x)[0][1]


def carried(w, x):
    """Steps hand on the kernel in their state."""

    def step(state, row):
        w, h = state
        return (w, jnp.tanh(h @ w + row)), None

    return lax.scan(step, (w, x[0]), x)[0][1]


def averaged(w, x):
    """The mean of a recurrence's states."""

    def step(h, row):
        h = jnp.tanh(h @ w + row)
        return h, h

    return lax.scan(step, x[0], x)[1].mean(0)


def inner(w, x):
    """A loop of sums in another loop's steps."""

    def add(h, row):
        return h + nnx.sigmoid(row @ w), None

    return lax.scan(lambda h, _: (nnx.relu(h - lax.scan(add, h, x)[0]), None), x[0], x)[0]


def updated(h, x, w):
    """A gate decides how much of the state is kept, as in a GRU."""
    z = nnx.sigmoid(h @ w + x)
    return (1 - z) * jnp.tanh(h @ w) + z * h


NAMED = {
    "recurrence": loop(lambda h, x, w: jnp.tanh(h @ w + x)),
    "linear": loop(lambda h, x, w: 0.5 * h @ w + x),
    "rectified": loop(lambda h, x, w: nnx.leaky_relu(h @ w, 0.3) + x),
    "added": loop(lambda h, x, w: h + jnp.tanh(h @ w)),
    "kept in part": loop(lambda h, x, w: h + 0.2 * (jnp.tanh(h @ w + x) - h)),
    "inputs that fade": loop(lambda h, x, w: 0.5 * h + x @ w),
    "kept as inputs say": loop(lambda h, x, w: nnx.sigmoid(x) * h + x @ w),
    "entries": loop(lambda h, x, w: nnx.sigmoid(w[0]) * h + x),
    "updated": loop(updated),
    "remembered": remembered,
    "carried": carried,
    "averaged": averaged,
}
"""Loops that are off for some inputs."""

OTHERS = {
    "sum": loop(lambda h, x, w: h + x @ w),
    "sum of functions": loop(lambda h, x, w: h + jnp.tanh(x @ w)),
    "no memory": loop(lambda h, x, w: jnp.tanh(x @ w)),
    "average": lambda w, x: lax.map(lambda row: nnx.sigmoid(row @ w), x).mean(0),
}
"""Loops that are right whatever the inputs are."""


def ratio(oracle, f, w, x):
    """The propagated variances over those of 3,000 draws, whose standard error is 2.6 %."""
    weights = random(w)
    ours = moments(f)(weights, x).var
    return np.asarray(ours) / oracle.monte_carlo(f, (weights, x), count=3000, batch=500).var


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore::jaxeff.MomentsWarning")
@pytest.mark.parametrize("name", [*NAMED, *OTHERS])
def test_loops_are_named_that_are_off_for_some_inputs(name, oracle):
    f = {**NAMED, **OTHERS}[name]
    ratios = [ratio(oracle, f, KERNELS[0], INPUTS[:steps]) for steps in (2, 5, 10)]
    off = [max(np.quantile(r, 0.9), 1 / np.quantile(r, 0.1)) for r in ratios]
    assert (max(off) > 1.25) == (name in NAMED), off


@pytest.mark.parametrize("f", [*NAMED.values(), inner], ids=[*NAMED, "inner"])
def test_loops_that_meet_again_what_they_made_are_named_once(f):
    with pytest.warns(MomentsWarning, match="read the same random values") as caught:
        jax.eval_shape(moments(f), random(KERNELS[0]), NEW[:2])
    assert len(caught) == 1


def looked_up(w, x):
    """A kernel for each step, by a count."""
    return lax.fori_loop(0, 3, lambda i, h: h + jnp.tanh(h @ w[i]), x[0])


def stacked(w, x):
    """A kernel for each step, as rows."""
    return lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), x[0], w)[0]


@pytest.mark.parametrize(
    ("f", "w"),
    [*((f, KERNELS[0]) for f in OTHERS.values()), (looked_up, KERNELS[:3]), (stacked, KERNELS[:3])],
)
def test_other_loops_are_taken_without_a_word(f, w):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(moments(f), random(w), NEW[:5])
        jax.eval_shape(moments(f, shared=False), random(w), NEW[:5])


def test_what_is_named_may_be_left_so():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(moments(NAMED["recurrence"], shared=False), random(KERNELS[0]), NEW)
        # Noise of rows is another one at every step.
        jax.eval_shape(moments(NAMED["recurrence"]), KERNELS[0], random(NEW))


def repeated(times, block):
    """Blocks with one kernel, written one after the other."""

    def f(w, x):
        for _ in range(times):
            x = block(x, w)
        return x

    return f


LAYOUT = "NWC", "WIO", "NWC"


def convolved(x, w):
    return jnp.tanh(lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=LAYOUT))


IMAGE = jax.random.normal(KEYS[1], (4, 16, 4))
FILTER = jax.random.normal(KEYS[2], (3, 4, 4)) / np.sqrt(12)
BLOCKS = {
    "a stream": (repeated(2, lambda x, w: x + jnp.tanh(x @ w)), KERNELS[0], NEW[0]),
    "two layers": (repeated(2, lambda x, w: x + nnx.relu(x @ w.T) @ w), KERNELS[0], NEW[0]),
    "in a row": (repeated(3, lambda x, w: jnp.tanh(x @ w + NEW[0])), KERNELS[0], NEW[0]),
    "gated": (repeated(2, lambda x, w: updated(x, NEW[0], w)), KERNELS[0], NEW[0]),
    "stacked": (
        repeated(2, lambda x, w: x + jnp.tanh(x @ w[1])),
        KERNELS[:2],
        NEW[0],
    ),
    "convolutions": (repeated(2, lambda x, w: x + convolved(x, w)), FILTER, IMAGE),
    "convolutions in a row": (repeated(5, convolved), FILTER, IMAGE),
}
"""A function, a kernel and inputs."""


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore::jaxeff.MomentsWarning")
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_one_kernel_are_off(name, oracle):
    off = ratio(oracle, *BLOCKS[name])
    assert max(np.quantile(off, 0.9), 1 / np.quantile(off, 0.1)) > 1.25


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_one_kernel_are_named(name):
    f, w, x = BLOCKS[name]
    with pytest.warns(MomentsWarning, match="applied to its own results") as caught:
        jax.eval_shape(moments(f), random(w), x)
    assert len(caught) == 1


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("f", "w"),
    [
        (lambda w, x: jnp.tanh(x @ w) @ w.T, KERNELS[0]),
        (repeated(2, lambda x, w: jnp.tanh(x @ w)), KERNELS[0]),
        (lambda w, x: x + jnp.tanh(x @ w[0]) + jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]), KERNELS[:2]),
    ],
)  # fmt: skip
def test_a_kernel_twice_in_a_row_is_taken_without_a_word(f, w, oracle):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ratio(oracle, f, w, NEW[0])
    assert abs(np.median(found) - 1) < 0.1


def scanned(w, x, decay, new):
    """The last state of `h = a h + b`, whose a and b are made of rows before the scan."""
    a, b = decay(w, x), new(w, x)
    start = jnp.zeros(b[0].shape)
    return lax.scan(lambda h, row: (row[0] * h + row[1], None), start, (a, b))[0]


def _kept(w, x):
    return jnp.full(x.shape, 0.9)


SCANS = {
    "selective": lambda w, x: scanned(
        w, x, lambda w, x: jax.nn.sigmoid(x @ w[0]), lambda w, x: x @ w[1]
    ),
    "decay": lambda w, x: scanned(w, x, lambda w, x: jax.nn.sigmoid(x @ w[0] + 2), lambda w, x: x),
    "rows": lambda w, x: scanned(w, x, _kept, lambda w, x: jnp.tanh(x @ w[1])),
    "sum": lambda w, x: lax.scan(lambda h, row: (h + row, None), 0 * x[0], x @ w[1])[0],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCANS)
def test_scans_of_rows_that_share_their_weights_are_off_and_named(name):
    """A third of the variances or more are off by a quarter, beside 1,000 draws (4.5 % each)."""
    w, x = KERNELS[:2], INPUTS + 0.5
    weights = random(w)
    with pytest.warns(MomentsWarning, match="keeps what the same random weights make") as caught:
        ours = jax.jit(moments(SCANS[name]))(weights, x).var
    assert len(caught) == 1
    draws = weights.sample(jax.random.key(3), (1000,))
    ratio = ours / jax.jit(jax.vmap(SCANS[name], (0, None)))(draws, x).var(0)
    assert ((ratio < 0.8) | (ratio > 1.25)).mean() > 1 / 3
    # The delta method, which the warning's way out is, is right.
    linear = jax.jit(moments(SCANS[name], method="linear"))(weights, x).var
    assert abs(np.median(linear / ours * ratio) - 1) < 0.1


def test_scans_of_rows_with_noise_of_their_own_are_taken_without_a_word():
    w = KERNELS[:2]
    x = random(INPUTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MomentsWarning)
        # Certain weights; and a state that each row replaces.
        moments(lambda x: SCANS["rows"](w, x))(x)
        replaced = lambda w, x: lax.scan(lambda h, row: (row, None), 0 * x[0], x @ w[1])[0]  # noqa: E731
        moments(replaced)(random(w), INPUTS)
