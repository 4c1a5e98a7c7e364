"""A step of a stream is the whole window's function, in floats and bit for bit in codes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.compression import Int, calibrate
from jaxeff.program._streams import StreamError, streaming

WINDOW, HOP = 23, 2


class Net(nnx.Module):
    """Strides, dilation, depthwise, normalization, a frame's dense layer, pooling, a mean."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Conv(3, 8, (4, 1), strides=(2, 1), padding="VALID", rngs=rngs)
        self.bn = nnx.BatchNorm(8, use_running_average=True, rngs=rngs)
        self.depthwise = nnx.Conv(
            8, 8, (2, 1), kernel_dilation=(2, 1), feature_group_count=8, padding="VALID", rngs=rngs
        )
        self.frame = nnx.Linear(8, 6, rngs=rngs)
        self.head = nnx.Linear(6, 4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.bn(self.first(x)))
        x = nnx.relu(self.frame(nnx.relu(self.depthwise(x))))
        x = nnx.max_pool(x, (2, 1), strides=(1, 1))
        return self.head(x.mean((1, 2)))


def made():
    net = Net(nnx.Rngs(0))
    net.eval()
    sound = jax.random.normal(jax.random.key(0), (1, WINDOW + 12, 1, 3))
    return (*jaxeff.functional(net), sound)


def steps(step, params, sound, state):
    """What a stream makes of the frames after the first window."""
    call, found = jax.jit(step), []
    for at in range(WINDOW, sound.shape[1], HOP):
        result, state = call(params, sound[:, at : at + HOP], state)
        found.append(result)
    return np.stack(found)


def windows(f, params, sound):
    """The same by whole windows."""
    ends = range(WINDOW + HOP, sound.shape[1] + 1, HOP)
    call = jax.jit(f)
    return np.stack([call(params, sound[:, end - WINDOW : end]) for end in ends])


def test_floats_agree_and_only_windows_are_kept():
    f, params, sound = made()
    step, state = streaming(f, params, sound[:, :WINDOW], hop=HOP)
    np.testing.assert_allclose(
        steps(step, params, sound, state), windows(f, params, sound), rtol=1e-5, atol=1e-6
    )
    # Window less stride, and what is left over: 4 - 2 + 1 frames of 3; 3 - 1 of 8; 2 - 1 of 6 for
    # the maximum; 7 of the mean's 8 frames.
    assert [s.shape[1] for s in state] == [3, 2, 1, 6]


@pytest.mark.slow
def test_codes_have_the_same_bits():
    f, params, sound = made()
    spec = calibrate(f, params, [sound[:, :WINDOW]], {"*:linear": Int(8)}).spec
    g = jaxeff.integer(f, spec)
    codes = g.convert(params, sound[:, :WINDOW])
    step, state = streaming(g, codes, sound[:, :WINDOW], hop=HOP)
    np.testing.assert_array_equal(steps(step, codes, sound, state), windows(g, codes, sound))
    # Between layers of codes the state is codes.
    assert state[0].dtype == state[1].dtype == jnp.uint8


@pytest.mark.parametrize("reader", ["flatten", "swapped", "last", "segments", "looked up"])
def test_other_readers_of_time(reader):
    w = jax.random.normal(jax.random.key(0), (WINDOW * 3, 2))

    def f(w, x):
        if reader == "flatten":
            return x.reshape(len(x), -1) @ w
        if reader == "swapped":
            return jnp.swapaxes(jnp.tanh(x), 1, 2).max((1, 2))
        if reader == "segments":
            return jax.ops.segment_sum(x.transpose(2, 0, 1), jnp.array([1, 0, 1]), 2).max(2).T
        if reader == "looked up":
            return jnp.take(jnp.tanh(x), jnp.array([2, 0]), 2).max(1)
        return jnp.concatenate([x, 2 * x], -1)[..., 1:].sum((1, 2))

    sound = jax.random.normal(jax.random.key(1), (2, WINDOW + 6, 3))
    step, state = streaming(f, w, sound[:, :WINDOW], hop=HOP)
    np.testing.assert_allclose(
        steps(step, w, sound, state), windows(f, w, sound), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "f",
    [
        lambda w, x: jax.nn.softmax(x, 1).max(1),
        lambda w, x: jnp.cumsum(x, 1)[:, -1],
        lambda w, x: jnp.sort(jnp.cumsum(x, 2), 1)[:, 3] + jnp.sort(x, 2).mean(1),
        lambda w, x: jnp.square(x - x.mean(1, keepdims=True)).mean(1),
        lambda w, x: jnp.squeeze(jax.lax.conv_general_dilated(
            x, w, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
        ), 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("hop", [1, HOP])
def test_what_a_window_decides_is_of_that_window(f, hop):
    """Frames of before are normalized by the newest window, not by those that they came with."""
    w = jax.random.normal(jax.random.key(0), (WINDOW, 3, 2))
    sound = (
        jax.random.normal(jax.random.key(1), (2, WINDOW + hop, 3))
        * jnp.linspace(1, 9, WINDOW + hop)[None, :, None]
    )
    step, state = streaming(f, w, sound[:, :WINDOW], hop=hop)
    result, _ = step(w, sound[:, WINDOW:], state)
    np.testing.assert_allclose(result, f(w, sound[:, hop:]), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("frames", [1, 5])
def test_frames_that_are_not_a_hop_are_refused(frames):
    step, state = streaming(lambda w, x: x.mean(1), (), jnp.ones((1, WINDOW, 3)), hop=HOP)
    with pytest.raises(ValueError, match=rf"shape \(1, {frames}, 3\); a step takes \(1, 2, 3\)"):
        step((), jnp.ones((1, frames, 3)), state)


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda w, x: nnx.max_pool(x, (3,), (1,), "SAME").mean(1), "padded over time.*'VALID'"),
        (lambda w, x: nnx.max_pool(x, (3,), (3,)).mean(1), "stride of 3 over 2 new frames"),
        (lambda w, x: jnp.pad(x, ((0, 0), (1, 1), (0, 0))).mean(1), "frames after each other"),
        (
            lambda w, x: jax.lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c), x).mean(1),
            "scan.*isn't known to be the same at all times",
        ),
        (lambda w, x: (x * w).mean(1), "numbers that differ along time"),
        (lambda w, x: (x[:, 1:] - x[:, :-1]).mean(1), "part of the frames, by their place"),
        (lambda w, x: x[:, ::2].mean(1), "part of the frames, by their place"),
        (lambda w, x: jnp.concatenate([x, x], 1).mean(1), "frames after each other"),
        (lambda w, x: jnp.tanh(x), "has an axis of time still"),
    ],
)
def test_what_differs_over_time_is_refused_by_name(f, message):
    w, x = jnp.ones((1, WINDOW, 3)), jnp.ones((1, WINDOW, 3))
    with pytest.raises(StreamError, match=message):
        streaming(f, w, x, hop=HOP)


@pytest.mark.parametrize(("axis", "time"), [(0, 0), (-1, 2), (-3, 0)])
def test_time_is_any_axis_of_the_window(axis, time):
    sound = jnp.moveaxis(jax.random.normal(jax.random.key(0), (WINDOW + HOP, 2, 3)), 0, time)
    frames = partial(jax.lax.slice_in_dim, sound, axis=time)

    # The newest frames move the maximum or not, wherever time stands.
    def f(w, x):
        return jnp.tanh(w * x).max(time)

    step, state = streaming(f, 0.5, frames(0, WINDOW), axis=axis, hop=HOP)
    result, _ = step(0.5, frames(WINDOW, WINDOW + HOP), state)
    np.testing.assert_allclose(result, f(0.5, frames(HOP, WINDOW + HOP)), rtol=1e-6)


def test_axes_and_hops_that_are_not_there_are_refused():
    f, x = (lambda w, x: x.mean(1)), jnp.ones((1, WINDOW, 3))
    for axis in (3, -4):
        with pytest.raises(ValueError, match=r"axis -?\d of a window of shape \(1, 23, 3\)"):
            streaming(f, (), x, axis=axis)
    with pytest.raises(ValueError, match="hop=24 of a window of 23 frames"):
        streaming(f, (), x, hop=24)
