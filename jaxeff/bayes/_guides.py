"""Posteriors of NumPyro and of Pyro, for the moment pass.

```python
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

import jaxeff
from jaxeff.bayes import from_numpyro

def model(x, y=None):
    kernel = numpyro.sample("fc/kernel", dist.Normal(0, 1).expand([2, 3]).to_event(2))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Categorical(logits=x @ kernel), obs=y)

x, y = jnp.ones((8, 2)), jnp.zeros(8, int)
guide = AutoNormal(model)
run = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO()).run(
    jax.random.key(0), 10, x, y, progress_bar=False
)
posterior = from_numpyro(guide, run.params)          # {"fc": {"kernel": Gaussian(...)}}
logits = jaxeff.moments(lambda p, x: x @ p["fc"]["kernel"])(posterior, x)   # a Gaussian, too
```

Of Pyro the parameters suffice: `dict(pyro.get_param_store().items())`, or arrays of these names.

```python
from jaxeff.bayes import from_pyro

store = {"AutoNormal.locs.fc.weight": jnp.ones((3, 2)),   # as PyTorch has them: outputs first
         "AutoNormal.scales.fc.weight": jnp.full((3, 2), 0.1)}
posterior = from_pyro(store, {"fc": {"kernel": jnp.zeros((2, 3))}})
```

Sharp edges:
    A Gaussian guide is Gaussian where its parameters are unconstrained. What a model constrains,
    such as a positive scale, has another distribution and is refused; `ignore` leaves it out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import IdentityTransform
from numpyro.infer import autoguide

from jaxeff.core import boolean, instance_of, parameter_tree, string_sequence, validate
from jaxeff.moment_propagation import Gaussian
from jaxeff.weights import load_weights

_PYRO = re.compile(r"(?:.*\.)?(locs|scales)\.(.+)")
"""Names of an `AutoNormal`'s parameters in Pyro's store: `AutoNormal.locs.fc1.weight`."""


@validate(guide=instance_of(autoguide.AutoGuide), params=instance_of(Mapping),
          ignore=string_sequence, diagonal=boolean)  # fmt: skip
def from_numpyro(
    guide: autoguide.AutoGuide,
    params: Mapping[str, Any],
    like: Any = None,
    *,
    ignore: Sequence[str] = (),
    diagonal: bool = False,
) -> Any:
    """Reads the posterior of a NumPyro guide, for `jaxeff.moments` and `jaxeff.bayes.predict`.

    Args:
        guide: `AutoNormal`, `AutoDiagonalNormal` or `AutoDelta`, once called or trained; with
            `diagonal` also `AutoMultivariateNormal` and `AutoLowRankMultivariateNormal`.
        params: Parameters of the guide, such as `SVIRunResult.params`.
        like: Network parameters whose structure the result takes; sites are matched to them as by
            `jaxeff.load_weights`. If None, sites are nested by the slashes in their names.
        ignore: Sites that the network doesn't have, such as a noise scale.
        diagonal: Whether the correlations of a multivariate guide may be left out.

    Returns:
        A pytree of `Gaussian`; of plain arrays for `AutoDelta`.

    Raises:
        TypeError: The guide is of another kind.
        ValueError: The guide wasn't called yet; its correlations would be lost; a site is
            constrained; or parameters are missing.
        WeightsError: Sites and `like` don't match.
    """
    if guide.prototype_trace is None:
        raise ValueError("from_numpyro: the guide wasn't called yet; train it, or call it once")
    sites = {
        name: site for name, site in guide.prototype_trace.items()
        if site["type"] == "sample" and not site["is_observed"] and name not in ignore
        and not site["infer"].get("_guide_only", False)
    }  # fmt: skip
    prefix = guide.prefix
    if isinstance(guide, autoguide.AutoDelta):
        return _placed({n: (_of(params, f"{n}_{prefix}_loc"), None) for n in sites}, like)
    for name, site in sites.items():
        if not _unconstrained(site["fn"].support):
            raise ValueError(
                f"from_numpyro: site {name!r} is constrained ({site['fn'].support}): what is "
                f"Gaussian in the guide isn't in the model. ignore=[{name!r}] leaves it out"
            )
    if isinstance(guide, autoguide.AutoNormal):
        each = {
            n: (_of(params, f"{n}_{prefix}_loc"), _of(params, f"{n}_{prefix}_scale") ** 2)
            for n in sites
        }
        return _placed(each, like)
    mean, variance = _joint(guide, params, diagonal)
    return _placed(_unravelled(guide, mean, variance, params, sites), like)


@validate(params=instance_of(Mapping), like=parameter_tree, ignore=string_sequence)
def from_pyro(params: Mapping[str, Any], like: Any, *, ignore: Sequence[str] = ()) -> Any:
    """Reads the posterior of Pyro's `AutoNormal` (PyTorch), the source's road to the moment pass.

    Args:
        params: `dict(pyro.get_param_store().items())` with arrays or tensors, which has standard
            deviations, not what they are made of: `AutoNormal.locs.fc1.weight` and
            `AutoNormal.scales.fc1.weight`.
        like: Network parameters whose structure the result takes; names and layouts are matched
            as by `jaxeff.load_weights`.
        ignore: Sites that the network doesn't have.

    Returns:
        A pytree of `Gaussian` like `like`.

    Raises:
        ValueError: There is no such pair, a site lacks one of its two, or a scale isn't positive.
        WeightsError: Sites and `like` don't match.
    """
    halves: dict[str, dict[str, np.ndarray]] = {"locs": {}, "scales": {}}
    for name, value in params.items():
        if found := _PYRO.fullmatch(name):
            tensor = value.detach().cpu().numpy() if hasattr(value, "detach") else value
            halves[found[1]][found[2]] = np.asarray(tensor)
    names = halves["locs"].keys() ^ halves["scales"].keys()
    if names or not halves["locs"]:
        lacking = f"{sorted(names)} have only one of the two" if names else f"{sorted(params)}"
        raise ValueError(
            f"from_pyro: params of an AutoNormal are *.locs.NAME and *.scales.NAME, but {lacking}"
        )
    for name, scale in halves["scales"].items():
        if not (scale > 0).all():
            raise ValueError(
                f"from_pyro: the scale of {name!r} isn't positive: it may be unconstrained. Pass "
                "pyro.get_param_store().items(), not its state"
            )
    each = {
        name: (jnp.asarray(mean), jnp.asarray(halves["scales"][name]) ** 2)
        for name, mean in halves["locs"].items() if name not in ignore
    }  # fmt: skip
    return _placed(each, like)


def _joint(guide: Any, params: Mapping[str, Any], diagonal: bool) -> tuple[Any, Any]:
    """Mean and variances of a guide of all sites at once, along one axis."""
    if isinstance(guide, autoguide.AutoDiagonalNormal):
        return _of(params, f"{guide.prefix}_loc"), _of(params, f"{guide.prefix}_scale") ** 2
    kinds = (autoguide.AutoMultivariateNormal, autoguide.AutoLowRankMultivariateNormal)
    if not isinstance(guide, kinds):
        raise TypeError(
            f"from_numpyro: a {type(guide).__name__} isn't Gaussian or a point; there are "
            "AutoNormal, AutoDiagonalNormal, AutoDelta, AutoMultivariateNormal and "
            "AutoLowRankMultivariateNormal"
        )
    if not diagonal:
        raise ValueError(
            f"from_numpyro: the moment pass takes independent parameters, and a "
            f"{type(guide).__name__} has correlations; diagonal=True leaves them out"
        )
    posterior = guide.get_posterior(dict(params))
    return posterior.mean, posterior.variance


def _unravelled(
    guide: Any, mean: jax.Array, variance: jax.Array, params: Mapping[str, Any], sites: Any
) -> dict[str, tuple[Any, Any]]:
    """Cuts a guide's single axis into its sites.

    The guide knows their places: its median is where its location is, at sites without constraints,
    whatever the location is made to be.
    """
    name = f"{guide.prefix}_loc"
    means, variances = (guide.median({**params, name: axis}) for axis in (mean, variance))
    return {site: (means[site], variances[site]) for site in sites}


def _unconstrained(support: Any) -> bool:
    if support is constraints.real or support is constraints.real_vector:
        return True
    transform = biject_to(support)
    while hasattr(transform, "base_transform"):
        transform = transform.base_transform
    return isinstance(transform, IdentityTransform)


def _of(params: Mapping[str, Any], name: str) -> jax.Array:
    if name not in params:
        raise ValueError(
            f"from_numpyro: params have no {name!r}, but {', '.join(sorted(params)) or 'nothing'}; "
            "pass those of this guide, such as SVI.run(...).params"
        )
    return jnp.asarray(params[name])


def _placed(each: Mapping[str, tuple[Any, Any]], like: Any) -> Any:
    """Gives sites the structure of a network's parameters, means and variances alike."""
    point = all(variance is None for _, variance in each.values())
    if like is not None:
        halves = [
            load_weights(like, {name: np.asarray(pair[i]) for name, pair in each.items()}).params
            for i in range(1 if point else 2)
        ]
        return halves[0] if point else jax.tree.map(Gaussian, *halves)
    nested: dict[str, Any] = {}
    for name, (mean, variance) in each.items():
        *folders, last = name.split("/")
        place = nested
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = mean if variance is None else Gaussian(mean, variance)
    return nested
