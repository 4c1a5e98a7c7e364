"""A normalizing flow as guide: inverse autoregressive flow, as NumPyro's ``AutoIAFNormal``.

Independent Gaussian noise goes through autoregressive networks, each of which shifts and scales
every entry depending on the entries before it (Kingma et al. 2016, arXiv 1606.04934), and last
through the scales and means that every guide has. It starts as a mean field: the networks' last
layers are zero.

Sharp edge: the networks have four matrices of parameters squared for each flow, so this is for
small networks, or for a few random parameters of a large one.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.example_libraries import stax
from jaxtyping import PRNGKeyArray
from numpyro.distributions.flows import InverseAutoregressiveTransform
from numpyro.distributions.transforms import AffineTransform, PermuteTransform, Transform
from numpyro.nn import AutoregressiveNN

from jaxeff.bayes.variational._correlated import CorrelatedGuide, Vector
from jaxeff.bayes.variational._multivariate import check_size
from jaxeff.core import Count

MATRICES = 4  # of size x size in one network: two hidden layers, and a last one of double width


@dataclass(frozen=True)
class Flow(CorrelatedGuide):
    """An inverse autoregressive flow.

    Attributes:
        flows: Number of autoregressive networks; every second one sees the entries in reverse.
    """

    flows: Annotated[int, Count()] = 2

    def shape(self, key: PRNGKeyArray, size: int, dtype: Any) -> dict[str, Any]:
        """Implements `Family.shape`."""
        if size < 2:
            raise ValueError("a flow needs at least two random parameters: use 'mean_field'")
        matrices = MATRICES * self.flows
        check_size("a flow", size, matrices, matrices * size**2 * dtype.itemsize)
        init, _ = _network(size)
        networks = []
        for k in jax.random.split(key, self.flows):
            _, layers = init(k, (size,))
            # Last layers of zeros make the flow the identity, so the guide starts as a mean field.
            networks.append([*layers[:-1], jax.tree.map(jnp.zeros_like, layers[-1])])
        return {"networks": networks}

    def distribution(self, mean: Vector, std: Vector, shape: dict[str, Any]) -> dist.Distribution:
        """Implements `Family.distribution`."""
        _, apply = _network(len(mean))
        transforms: list[Transform] = []
        for layers in shape["networks"]:
            if transforms:
                transforms.append(PermuteTransform(jnp.arange(len(mean))[::-1]))
            # A draw and its density take one pass; other points would take one per entry.
            transforms.append(InverseAutoregressiveTransform(lambda x, n=layers: apply(n, x)))
        # Reversed an odd number of times so far: once more puts entries back under their means.
        if self.flows % 2 == 0:
            transforms.append(PermuteTransform(jnp.arange(len(mean))[::-1]))
        # As in every guide: starts and optimizers see the parameters' own units.
        transforms.append(AffineTransform(mean, std))
        noise = dist.Normal(jnp.zeros_like(mean), jnp.ones_like(mean)).to_event(1)
        return dist.TransformedDistribution(noise, transforms)


def _network(size: int) -> Any:
    return AutoregressiveNN(size, [size, size], nonlinearity=stax.Elu)
