"""The transforms of this project over its reference networks, forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

import jaxeff
from jaxeff import Additive, ChaoticLight, Gaussian, Int, Mixed, Multiplicative
from jaxeff.bayes import predict, sample
from jaxeff.nn import MLP, LeNet5, TransformerEncoder
from tests.conformance.programs.family import KEY, Family, normal
from tests.conformance.programs.networks import linen, network

FAMILY = Family("transforms")


class _Residual(nn.Module):
    """A residual block between a stem and a classifier."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3), name="stem")(x))
        y = nn.relu(nn.Conv(8, (3, 3), name="conv1")(x))
        x = nn.relu(x + nn.Conv(8, (3, 3), name="conv2")(y))
        return nn.Dense(10, name="fc")(x.mean((1, 2)))


def mlp():
    """A small MLP and a batch for it."""
    return network(MLP((64, 32, 10), rngs=nnx.Rngs(0)), 4, 64)


def lenet(pool="max"):
    """LeNet-5 and a batch for it."""
    return network(LeNet5(pool=pool, rngs=nnx.Rngs(0)), 2, 28, 28, 1)


def resnet():
    """A small residual network and a batch for it."""
    x = np.random.RandomState(0).standard_normal((2, 8, 8, 3)).astype(np.float32)
    _, (variables, _) = linen(_Residual(), x)
    f, params = jaxeff.functional(_Residual(), variables)
    return f, (params, x)


def transformer():
    """A small transformer and a batch for it."""
    return network(TransformerEncoder(depth=1, rngs=nnx.Rngs(0)), 2, 8, 8)


NETWORKS = {"an MLP": mlp, "LeNet-5": lenet, "a residual network": resnet}


def gradient(g, at=0):
    """The value of a function's squares and the gradient for one argument."""

    def loss(*arguments):
        return jnp.mean(jnp.square(g(*arguments)))

    return jax.value_and_grad(loss, at)


def _add(name, build):
    build.__name__ = name
    FAMILY.built(build)


def _add_all(transform, apply, networks=NETWORKS):
    """Adds a transform over networks, forward and backward."""
    for name, make in networks.items():

        def forward(make=make):
            f, arguments = make()
            g, extra = apply(f)
            return g, (*extra, *arguments)

        def backward(make=make):
            f, arguments = make()
            g, extra = apply(f)
            return gradient(g, len(extra)), (*extra, *arguments)

        _add(f"{transform} {name}", forward)
        _add(f"gradient of {transform} {name}", backward)


_add_all(
    "noisy",
    lambda f: (jaxeff.noisy(f, {"*:linear": Additive(0.1), "relu*": Multiplicative(0.05)}), (KEY,)),
)
_add_all("quantized", lambda f: (jaxeff.quantized(f, {"*:linear": Int(8)}), ()))


@FAMILY.built
def _noisy_transformer():
    f, arguments = transformer()
    return jaxeff.noisy(f, {"*:linear": Mixed(0.1, 0.05)}), (KEY, *arguments)


@FAMILY.built
def _quantized_transformer_with_four_bit_weights():
    f, arguments = transformer()
    return jaxeff.quantized(f, {"*:linear": Int(4, 8)}), arguments


@FAMILY.built
def _quantized_and_noisy_lenet_5():
    f, arguments = lenet()
    g = jaxeff.noisy(jaxeff.quantized(f, {"*:linear": Int(4)}), {"*:linear": Additive(0.1)})
    return g, (KEY, *arguments)


@FAMILY.built
def _sweep_of_noise_levels():
    f, arguments = mlp()

    def accuracy(key, level, params, x):
        return jaxeff.noisy(f, {"*:linear": Additive(level)})(key, params, x).argmax(-1)

    sweep = jax.vmap(accuracy, (None, 0, None, None))
    return sweep, (KEY, np.linspace(0, 1, 5, dtype=np.float32), *arguments)


def posterior(params):
    """Gaussians around parameters."""
    return jax.tree.map(lambda w: Gaussian(w, 1e-4 + 1e-2 * w * w), params)


for _form in ("variance", "raw"):
    for _name, _make in {**NETWORKS, "a transformer": transformer}.items():

        def _moments(make=_make, form=_form):
            f, (params, x) = make()
            return jaxeff.moments(f, form=form, method="diagonal"), (posterior(params), x)

        _add(f"moments in the form of {_form} of {_name}", _moments)


@FAMILY.built
def _gradient_of_moments_of_an_MLP():
    f, (params, x) = mlp()
    g = jaxeff.moments(f, method="diagonal")

    def loss(params, x):
        y = g(params, x)
        return jnp.mean(y.mean**2 + jnp.log(y.var))

    return jax.value_and_grad(loss), (posterior(params), x)


@FAMILY.built
def _moments_of_random_inputs():
    f, (params, x) = mlp()
    return jaxeff.moments(f, method="diagonal"), (params, Gaussian(x, np.full_like(x, 0.1)))


@FAMILY.built
def _moments_of_lenet_5_with_average_pools():
    f, (params, x) = lenet("avg")
    return jaxeff.moments(f, method="diagonal"), (posterior(params), x)


PHOTONIC = {"avg_pool*": ChaoticLight(0.5, cap=2.0)}
_add_all(
    "photonic",
    lambda f: (jaxeff.photonic(f, PHOTONIC), (KEY,)),
    {"LeNet-5 in training": lambda: lenet("avg")},
)


@FAMILY.built
def _photonic_LeNet_5_as_it_is_measured():
    f, arguments = lenet("avg")
    light = ChaoticLight(0.5, cap=2.0, levels=16, saturation=5.0, model="physical")
    return jaxeff.photonic(f, {"avg_pool*": light}), (KEY, *arguments)


@FAMILY.built
def _predictions_of_a_bayesian_MLP():
    f, (params, x) = mlp()
    return lambda key, p, x: predict(key, f, p, x, samples=6), (KEY, posterior(params), x)


@FAMILY.built
def _predictions_of_a_bayesian_LeNet_5_in_chunks():
    f, (params, x) = lenet()
    g = lambda key, p, x: predict(key, f, p, x, samples=4, chunk=2)  # noqa: E731
    return g, (KEY, posterior(params), x)


@FAMILY.built
def _samples_of_a_posterior():
    _, (params, _) = mlp()
    return lambda key, p: sample(key, p, 3), (KEY, posterior(params))


@FAMILY.program(normal(6, 3, 10))
def _uncertainty_of_sampled_logits(logits):
    p = jax.nn.softmax(logits).mean(0)
    total = -jnp.sum(jax.scipy.special.xlogy(p, p), -1)
    each = jax.nn.softmax(logits)
    aleatoric = -jnp.sum(jax.scipy.special.xlogy(each, each), -1).mean(0)
    return total, aleatoric, total - aleatoric


@FAMILY.program(KEY, normal(4, 12), normal(12, 10), normal(12, 10, scale=0.1))
def _gradient_of_an_evidence_lower_bound(key, x, mean, raw):
    def objective(mean, raw):
        scale = jax.nn.softplus(raw - 3)
        w = mean + scale * jax.random.normal(key, mean.shape)
        likelihood = jax.nn.log_softmax(x @ w)[:, 0].sum()
        divergence = 0.5 * jnp.sum(scale**2 + mean**2 - 1 - 2 * jnp.log(scale))
        return divergence - likelihood

    return jax.value_and_grad(objective, (0, 1))(mean, raw)
