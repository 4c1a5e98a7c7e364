"""Posteriors as files, and those that NumPyro and Pyro fitted: of NumPyro for the moment pass.

```python
import jax
import jax.numpy as jnp
import jaxeff
import numpyro
import numpyro.distributions as dist
from jaxeff.bayes import from_numpyro
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

def model(x, y=None):
    kernel = numpyro.sample("fc/kernel", dist.Normal(0, 1).expand([2, 3]).to_event(2))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Categorical(logits=x @ kernel), obs=y)

x, y, guide = jnp.ones((8, 2)), jnp.zeros(8, int), AutoNormal(model)
svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
run = svi.run(jax.random.key(0), 10, x, y, progress_bar=False)
posterior = from_numpyro(guide, run.params)          # {"fc": {"kernel": Gaussian(...)}}
logits = jaxeff.moments(lambda p, x: x @ p["fc"]["kernel"])(posterior, x)   # a Gaussian, too
```
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import IdentityTransform
from numpyro.infer import autoguide

from jaxeff import core
from jaxeff.bayes.posteriors import Draws, Likelihood, check_posterior, named_leaves
from jaxeff.bayes.variational import CorrelatedPosterior, Flow, FullRank, LowRank
from jaxeff.moment_propagation import Calibrated, Gaussian, is_gaussian
from jaxeff.store import (
    CheckpointError,
    load_metadata,
    load_pytree,
    reading_errors,
    save_pytree,
)
from jaxeff.weights import load_weights

_DRAWS, _GAUSSIANS, _JOINT, _CALIBRATED = "draws", "gaussians", "joint", "calibrated"
_GUIDES = {guide.__name__: guide for guide in (LowRank, FullRank, Flow)}


@core.validate(posterior=core.posterior_like)
def save_posterior(path: str | os.PathLike[str], posterior: Any) -> None:
    """Writes a posterior, replacing the file there in one step.

    It writes safetensors, so no pickle runs when a file is read:

    ```python
    import jax
    from jaxeff import Gaussian
    from jaxeff.bayes import save_posterior
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier(10)
    posterior = jax.tree.map(lambda w: Gaussian(w, 0.01 * w**2), params)
    save_posterior("posterior.safetensors", posterior)
    ```

    Args:
        path: The file; its folder is made when missing.
        posterior: `Draws`, a pytree of `Gaussian` and arrays, one that is `Calibrated`, or what a
            guide of `jaxeff.bayes.variational` found. The likelihood of draws and guides is kept by
            its name; one that is a function is not, and has to be named again.

    Raises:
        TypeError: It is another posterior, or none.
    """
    if isinstance(posterior, Draws):
        content = {"random": posterior.random, "params": named_leaves(posterior.params)}
        known = {"likelihood": _likelihood_name(posterior.likelihood)}
        save_pytree(path, content, {"posterior": _DRAWS} | known)
        return
    if isinstance(posterior, CorrelatedPosterior) and type(posterior.guide).__name__ in _GUIDES:
        numbers = posterior.numbers
        # The mean is nested like the parameters and goes by their paths, the rest by name.
        rest = {name: array for name, array in numbers.items() if name != "mean"}
        guide = {"name": type(posterior.guide).__name__, **dataclasses.asdict(posterior.guide)}
        known = {"likelihood": _likelihood_name(posterior.likelihood)}
        metadata = {"posterior": _JOINT, "guide": guide, "random": posterior.paths} | known
        save_pytree(path, {"numbers": rest, "mean": named_leaves(numbers["mean"])}, metadata)
        return
    if isinstance(posterior, Calibrated):
        factors = list(posterior.factors.values())
        content = {
            "posterior": posterior.posterior,
            # By number: names of sites hold slashes, which separate the paths of arrays.
            "factors": {str(i): f for i, f in enumerate(factors)},
        }
        about: dict[str, Any] = {
            "posterior": _CALIBRATED, "random": _random(posterior.posterior),
            "sites": list(posterior.factors), "errors": dict(posterior.errors),
            "unseen": posterior.unseen,
        }  # fmt: skip
        save_pytree(path, content, about)
        return
    core.check_params("posterior", posterior)
    random = _random(posterior)
    save_pytree(path, posterior, {"posterior": _GAUSSIANS, "random": random})


def _random(posterior: Any) -> list[str]:
    """Lists the paths of the random leaves of a pytree of `Gaussian` and arrays."""
    leaves = named_leaves(posterior, is_leaf=is_gaussian)
    if not any(is_gaussian(leaf) for leaf in leaves.values()):
        raise TypeError(
            "only draws, pytrees that hold a Gaussian and guides of jaxeff.bayes.variational have "
            f"a file, not {type(posterior).__name__}: draw from it, or hand over its `to_gaussians`"
        )
    return [name for name, leaf in leaves.items() if is_gaussian(leaf)]


@core.validate()
def load_posterior(path: str | os.PathLike[str], params: Any) -> Any:
    """Reads a posterior that `save_posterior` wrote.

    ```python
    import jax
    import jax.numpy as jnp
    from jaxeff import Gaussian
    from jaxeff.bayes import load_posterior, save_posterior
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier(10)
    posterior = jax.tree.map(lambda w: Gaussian(w, 0.01 * w**2), params)
    save_posterior("posterior.safetensors", posterior)
    again = load_posterior("posterior.safetensors", params)
    assert jnp.array_equal(again["fc1"]["kernel"].var, posterior["fc1"]["kernel"].var)
    ```

    Args:
        path: The file.
        params: The model's parameters, or their ``jax.ShapeDtypeStruct``.

    Returns:
        The posterior, with the structure of ``params``.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: The file is damaged, holds no posterior, or one of another model; then a
            parameter that doesn't fit is named.
    """
    with reading_errors(path):
        return _read_posterior(path, params)


def _read_posterior(path: str | os.PathLike[str], params: Any) -> Any:
    metadata, tree = load_metadata(path), load_pytree(path)
    kind = metadata.get("posterior")
    if kind == _DRAWS:
        random, leaves = named_leaves(tree["random"]), named_leaves(tree["params"])
        _check(path, Draws(random, leaves), params)
        return Draws(random, _arrange(leaves, params), metadata.get("likelihood"))
    if kind == _GAUSSIANS:
        return _gaussians(path, tree, metadata["random"], params)
    if kind == _CALIBRATED:
        posterior = _gaussians(path, tree["posterior"], metadata["random"], params)
        arrays = named_leaves(tree["factors"])
        factors = {site: arrays[str(i)] for i, site in enumerate(metadata["sites"])}
        errors = tuple(metadata["errors"].items())
        # Metadata has lists; static fields are compared and hashed.
        unseen = metadata.get("unseen")
        return Calibrated(posterior, factors, errors, unseen and tuple(unseen))
    if kind == _JOINT:
        # A guide's file: its settings are in the metadata, its numbers are the arrays.
        settings = dict(metadata["guide"])
        name = settings.pop("name")
        if name not in _GUIDES:
            raise CheckpointError(
                f"{path} holds a posterior of the guide {name!r}, which this version of jaxeff "
                f"doesn't know; it knows {', '.join(_GUIDES)}."
            )
        means, paths = named_leaves(tree["mean"]), tuple(metadata["random"])
        # Any variances do: what is checked are the paths and the shapes of what is random.
        _check(path, {p: Gaussian(m, m) if p in paths else m for p, m in means.items()}, params)
        guide = _GUIDES[name](**settings)
        stds = {p: jnp.ones(means[p].shape, tree["numbers"]["raw"].dtype) for p in paths}
        # The file holds paths; how the guide's numbers are nested, only the guide knows.
        like = jax.eval_shape(guide.start, jax.random.key(0), _arrange(means, params), stds)
        rest = {name: numbers for name, numbers in like.items() if name != "mean"}
        posterior = load_pytree(path, {"numbers": rest, "mean": named_leaves(like["mean"])})
        numbers = {"mean": _arrange(posterior["mean"], params), **posterior["numbers"]}
        return CorrelatedPosterior(numbers, guide, paths, metadata.get("likelihood"))
    raise CheckpointError(f"{path} is a checkpoint, but not one of a posterior.")


def _gaussians(path: str | os.PathLike[str], tree: Any, random: Sequence[str], params: Any) -> Any:
    arrays = named_leaves(tree)
    leaves = {
        name: Gaussian(arrays.pop(f"{name}/mean"), arrays.pop(f"{name}/var")) for name in random
    } | arrays
    _check(path, leaves, params)
    return _arrange(leaves, params)


def _likelihood_name(likelihood: Likelihood | None) -> str | None:
    return likelihood if isinstance(likelihood, str) else None


def _check(path: str | os.PathLike[str], posterior: Any, params: Any) -> None:
    try:
        check_posterior(posterior, params)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _arrange(leaves: dict[str, Any], params: Any) -> Any:
    """Arranges leaves by path in the structure of the parameters."""
    ordered = [leaves[name] for name in named_leaves(params)]
    return jax.tree.unflatten(jax.tree.structure(params), ordered)


_PYRO = re.compile(r"(?:.*\.)?(locs|scales)\.(.+)")
"""Names of an `AutoNormal`'s parameters in Pyro's store: `AutoNormal.locs.fc1.weight`."""


@core.validate(guide=core.instance_of(autoguide.AutoGuide), params=core.instance_of(Mapping),
          ignore=core.string_sequence, diagonal=core.boolean)  # fmt: skip
def from_numpyro(
    guide: autoguide.AutoGuide,
    params: Mapping[str, Any],
    like: Any = None,
    *,
    ignore: Sequence[str] = (),
    diagonal: bool = False,
) -> Any:
    """Reads the posterior of a NumPyro guide, for `jaxeff.moments` and `jaxeff.bayes.predict`.

    Sharp edge: a Gaussian guide is Gaussian where its parameters are unconstrained. What a model
    constrains, such as a positive scale, is refused; `ignore` leaves it out.

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
        return _as_parameters(
            {n: (_guide_parameter(params, f"{n}_{prefix}_loc"), None) for n in sites}, like
        )
    for name, site in sites.items():
        if not _unconstrained(site["fn"].support):
            raise ValueError(
                f"from_numpyro: site {name!r} is constrained ({site['fn'].support}): what is "
                f"Gaussian in the guide isn't in the model. ignore=[{name!r}] leaves it out"
            )
    if isinstance(guide, autoguide.AutoNormal):
        each = {
            n: (
                _guide_parameter(params, f"{n}_{prefix}_loc"),
                _guide_parameter(params, f"{n}_{prefix}_scale") ** 2,
            )
            for n in sites
        }
        return _as_parameters(each, like)
    mean, variance = _joint(guide, params, diagonal)
    return _as_parameters(_unravelled(guide, mean, variance, params, sites), like)


@core.validate(
    params=core.instance_of(Mapping), like=core.parameter_tree, ignore=core.string_sequence
)
def from_pyro(params: Mapping[str, Any], like: Any, *, ignore: Sequence[str] = ()) -> Any:
    """Reads the posterior of Pyro's `AutoNormal` (PyTorch).

    Pyro needn't be installed: its parameters suffice, or arrays of the same names.

    ```python
    import jax.numpy as jnp
    from jaxeff.bayes import from_pyro

    store = {"AutoNormal.locs.fc.weight": jnp.ones((3, 2)),   # as PyTorch has them: outputs first
             "AutoNormal.scales.fc.weight": jnp.full((3, 2), 0.1)}
    posterior = from_pyro(store, {"fc": {"kernel": jnp.zeros((2, 3))}})
    ```

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
        if match := _PYRO.fullmatch(name):
            tensor = value.detach().cpu().numpy() if hasattr(value, "detach") else value
            halves[match[1]][match[2]] = np.asarray(tensor)
    unpaired = halves["locs"].keys() ^ halves["scales"].keys()
    if unpaired or not halves["locs"]:
        lacking = (
            f"{sorted(unpaired)} have only one of the two" if unpaired else f"{sorted(params)}"
        )
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
    return _as_parameters(each, like)


def _joint(guide: Any, params: Mapping[str, Any], diagonal: bool) -> tuple[Any, Any]:
    """Reads mean and variances of a guide whose sites lie behind each other along one axis."""
    if isinstance(guide, autoguide.AutoDiagonalNormal):
        return _guide_parameter(params, f"{guide.prefix}_loc"), _guide_parameter(
            params, f"{guide.prefix}_scale"
        ) ** 2
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


def _guide_parameter(params: Mapping[str, Any], name: str) -> jax.Array:
    if name not in params:
        raise ValueError(
            f"from_numpyro: params have no {name!r}, but {', '.join(sorted(params)) or 'nothing'}; "
            "pass those of this guide, such as SVI.run(...).params"
        )
    return jnp.asarray(params[name])


def _as_parameters(each: Mapping[str, tuple[Any, Any]], like: Any) -> Any:
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
