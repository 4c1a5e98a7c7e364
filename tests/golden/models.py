"""The networks whose programs are kept: those of the laws, and the zoo's tiny ones."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

import jaxeff
from experiments.beyond.zoo.models import catalogue
from tests.golden.programs import Model


class Small(nnx.Module):
    """Convolution, ReLU, average pooling, dense: a site for every transform."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(1, 3, (3, 3), rngs=rngs)
        self.fc = nnx.Linear(48, 5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[n, 8, 8, 1]` to `[n, 5]`."""
        x = nnx.avg_pool(nnx.relu(self.conv(x)), (2, 2), strides=(2, 2))
        return self.fc(x.reshape(x.shape[0], -1))


def _small() -> Model:
    f, params = jaxeff.functional(Small(nnx.Rngs(0)))
    return Model(f, params, (jax.random.normal(jax.random.key(1), (4, 8, 8, 1)),))


def _recurrent() -> Model:
    def f(params, x):
        def step(state, row):
            return jnp.tanh(row @ params["w"] + state @ params["u"]), None

        return jax.lax.scan(step, jnp.zeros((x.shape[0], 8)), x.swapaxes(0, 1))[0]

    keys = jax.random.split(jax.random.key(2), 3)
    params = {"w": 0.3 * jax.random.normal(keys[0], (4, 8))}
    params["u"] = 0.3 * jax.random.normal(keys[1], (8, 8))
    return Model(f, params, (jax.random.normal(keys[2], (2, 5, 4)),))


def _of_zoo(name: str) -> Callable[[], Model]:
    def build() -> Model:
        subject = catalogue.subject(name)
        return Model(subject.f, subject.params, subject.args)

    return build


MODELS: dict[str, Callable[[], Model]] = {
    "small": _small,
    "recurrent": _recurrent,
    **{name: _of_zoo(name) for name in catalogue.ZOO if name not in catalogue.REAL},
}
"""By name: builds the model."""
