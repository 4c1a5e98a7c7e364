"""`noisy` as a transform: places, keys, sweeps, the source's slot counts, mistakes."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.core import functional
from jaxeff.nn import MLP, LeNet5
from jaxeff.noise import Additive, Mixed, Multiplicative, noisy
from jaxeff.program import site_key, trace
from tests.chains import two_layers as net

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def params():
    keys = jax.random.split(jax.random.key(7), 4)
    return {
        "fc1": {"kernel": jax.random.normal(keys[0], (5, 8)), "bias": jnp.ones(8)},
        "fc2": {"kernel": jax.random.normal(keys[1], (8, 3)), "bias": jnp.ones(3)},
    }


X = jax.random.normal(jax.random.key(2), (4, 5))


@dataclass(frozen=True)
class Recording:
    """Noise that changes nothing and lists the shapes it was given."""

    at: str
    seen: list

    def perturb(self, key, x):
        self.seen.append(x.shape)
        return x


def fold(f, params, site, i):
    layer = next(s for s in trace(f, params, X).sites if s.site == site)
    return jax.random.fold_in(site_key(KEY, layer), i)


@pytest.mark.promotes("rank")
def test_output_noise_by_hand(params):
    model = Additive(0.3)
    ours = noisy(net, {"fc1": model})(KEY, params, X)
    hidden = X @ params["fc1"]["kernel"] + params["fc1"]["bias"]
    hidden = jax.nn.relu(model.perturb(fold(net, params, "fc1", 0), hidden))
    by_hand = hidden @ params["fc2"]["kernel"] + params["fc2"]["bias"]
    np.testing.assert_allclose(ours, by_hand, rtol=1e-5, atol=1e-5)


@pytest.mark.oracle
@pytest.mark.parametrize("model", [Additive(0.3), Multiplicative(0.5), Mixed(0.1, 0.2, "add_mul")])
def test_weight_and_input_noise_by_monte_carlo(params, model):
    # With one linear layer the result is linear in what is perturbed: its variance is known.
    def f(params, x):
        with jax.numpy_rank_promotion("allow"):
            return x @ params["w"] + params["b"]

    w, b = params["fc1"]["kernel"], params["fc1"]["bias"]
    n = 20_000
    keys = jax.random.split(KEY, n)

    def variance(v):  # of one perturbed element, in closed form
        add = getattr(model, "add", model.sigma if isinstance(model, Additive) else 0.0)
        mul = getattr(model, "mul", model.sigma if isinstance(model, Multiplicative) else 0.0)
        return np.asarray(mul**2 * v**2 + add**2 * (1 + mul**2), np.float64)

    for place, expected in (
        ("weights", np.asarray(X) ** 2 @ variance(w)),
        ("input", variance(X) @ np.asarray(w) ** 2),
    ):
        placed = type(model)(**{**vars(model), "at": place})
        g = noisy(f, {"*:linear": placed})
        run = jax.jit(jax.vmap(lambda k, g=g: g(k, {"w": w, "b": b}, X)))
        samples = np.asarray(run(keys), np.float64)
        centred = (samples - samples.mean(0)) ** 2
        se = centred.std(0) / np.sqrt(n)
        np.testing.assert_array_less(np.abs(centred.mean(0) - expected), 5 * se)
        se = samples.std(0) / np.sqrt(n)
        np.testing.assert_array_less(np.abs(samples.mean(0) - f({"w": w, "b": b}, X)), 5 * se)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "shape", "slots"),
    [
        (lambda: LeNet5(rngs=nnx.Rngs(0), padding="VALID"), (2, 28, 28, 1), 12),
        (lambda: LeNet5(rngs=nnx.Rngs(0), padding="VALID", batch_norm=True), (2, 28, 28, 1), 16),
        (lambda: MLP((784, 64, 64, 64, 10), rngs=nnx.Rngs(0)), (2, 28, 28, 1), 8),
        (
            lambda: MLP((784, 64, 64, 64, 10), batch_norm=True, rngs=nnx.Rngs(0)),
            (2, 28, 28, 1),
            11,
        ),
    ],
)
def test_global_noise_has_the_source_number_of_slots(model, shape, slots):
    module = model()
    module.eval()
    f, params = functional(module)
    recording = Recording("output", [])
    x = jnp.ones(shape)
    y = noisy(f, {"*": recording})(KEY, params, x)
    assert len(recording.seen) == slots
    np.testing.assert_array_equal(y, f(params, x))


@pytest.mark.slow
def test_levels_layers_and_seeds_are_one_program(params):
    levels = jnp.array([0.0, 0.1, 1.0])

    @jax.jit
    def run(key, level):
        return noisy(net, {"fc1": Additive(level), "relu": Additive(0.1)})(key, params, X)

    keys = jax.random.split(KEY, 5)
    grid = jax.vmap(jax.vmap(run, (None, 0)), (0, None))(keys, levels)
    assert grid.shape == (5, 3, 4, 3)
    np.testing.assert_allclose(grid[2, 1], run(keys[2], 0.1), rtol=1e-5, atol=1e-5)
    # One noise level per layer, as a vector: a switched-off layer is the clean one.
    only_first = noisy(net, {"fc1": Additive(0.1), "fc2": Additive(0.0)})(KEY, params, X)
    np.testing.assert_allclose(
        only_first, noisy(net, {"fc1": Additive(0.1)})(KEY, params, X), rtol=1e-6
    )


def test_gradient_reaches_the_level_through_the_model(params):
    def loss(level):
        return noisy(net, {"fc1": Additive(level)})(KEY, params, X).sum()

    eps = 1e-2
    slope = (loss(0.5 + eps) - loss(0.5 - eps)) / (2 * eps)
    np.testing.assert_allclose(jax.grad(loss)(0.5), slope, rtol=2e-2)


def test_noise_depends_on_key_and_site_only(params):
    two_heads = {
        "a": {"kernel": params["fc1"]["kernel"]},
        "b": {"kernel": params["fc1"]["kernel"]},
    }

    def f(params, x):
        return x @ params["a"]["kernel"], x @ params["b"]["kernel"]

    a1, b1 = noisy(f, {"input": None, "*": Additive(0.3)})(KEY, two_heads, X)
    a2, b2 = noisy(f, {"b": Additive(0.3)})(KEY, two_heads, X)
    np.testing.assert_array_equal(b1, b2)
    assert (a1 != a2).any()
    assert (a1 != b1).any()


def test_weights_get_fresh_noise_in_every_scan_iteration():
    def f(params, x):
        def step(h, _):
            return h, h @ params["cell"]["kernel"]

        return jax.lax.scan(step, x, None, length=3)[1]

    params = {"cell": {"kernel": jnp.eye(5)}}
    outputs = noisy(f, {"cell": Additive(0.3, at="weights")})(KEY, params, X)
    assert (outputs[0] != outputs[1]).all()
    assert (outputs[1] != outputs[2]).all()


def test_integers_are_left_alone(params):
    def f(params, x):
        y = net(params, x)
        return y, y.argmax(-1)

    clean = f(params, X)
    y, label = noisy(f, {"argmax": Additive(10.0)})(KEY, params, X)
    np.testing.assert_array_equal(label, clean[1])
    assert label.dtype == clean[1].dtype
    np.testing.assert_array_equal(y, clean[0])


@pytest.mark.slow
def test_biases_and_normalization_stay_clean():
    recording = Recording("weights", [])
    module = LeNet5(rngs=nnx.Rngs(0), batch_norm=True)
    module.eval()
    f, params = functional(module)
    x = jnp.ones((1, 28, 28, 1))
    noisy(f, {"*": recording})(KEY, params, x)
    sizes = [np.prod(s) for s in recording.seen]
    assert sizes == [5 * 5 * 6, 5 * 5 * 6 * 16, 400 * 120, 120 * 84, 84 * 10]
    with pytest.raises(ValueError, match=r"bn1 \(normalization\), which has nothing"):
        noisy(f, {"bn1": recording})(KEY, params, x)


def test_running_statistics_are_no_signal():
    # They are those of what enters the normalization, whatever noise its result gets.
    model = MLP((5, 4, 4, 3), batch_norm=True, rngs=nnx.Rngs(0))
    f, params, state = functional(model, mutable=True)
    _, clean = f(params, state, X)
    _, found = noisy(f, {"bn1": Additive(1.0)})(KEY, params, state, X)
    np.testing.assert_array_equal(found["bn1"]["mean"], clean["bn1"]["mean"])
    np.testing.assert_array_equal(found["bn1"]["var"], clean["bn1"]["var"])
    assert not np.array_equal(found["bn2"]["mean"], clean["bn2"]["mean"])


def test_mistakes_are_named(params):
    with pytest.raises(TypeError, match=r"'fc1' must be a noise model .* not 0\.3"):
        noisy(net, {"fc1": 0.3})
    with pytest.raises(ValueError, match="'conv' matches no site"):
        noisy(net, {"conv": Additive(0.3)})(KEY, params, X)
    with pytest.raises(ValueError, match=r"was given to relu \(elementwise\), which has nothing"):
        noisy(net, {"relu": Additive(0.3, at="weights")})(KEY, params, X)
