"""Posteriors on disk: one safetensors file, without pickle.

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
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxeff.bayes.posteriors import Draws, Likelihood, check_posterior, named_leaves
from jaxeff.bayes.variational import CorrelatedPosterior, Flow, FullRank, LowRank
from jaxeff.core import check_params, posterior_like, validate
from jaxeff.moment_propagation import Calibrated, Gaussian, is_gaussian
from jaxeff.store import CheckpointError, load_metadata, load_pytree, save_pytree

_DRAWS, _GAUSSIANS, _JOINT, _CALIBRATED = "draws", "gaussians", "joint", "calibrated"
_GUIDES = {guide.__name__: guide for guide in (LowRank, FullRank, Flow)}


@validate(posterior=posterior_like)
def save_posterior(path: str | os.PathLike[str], posterior: Any) -> None:
    """Writes a posterior, replacing the file there in one step.

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
        known = {"likelihood": _name(posterior.likelihood)}
        save_pytree(path, content, {"posterior": _DRAWS} | known)
        return
    if isinstance(posterior, CorrelatedPosterior) and type(posterior.guide).__name__ in _GUIDES:
        numbers = posterior.numbers
        # The mean is nested like the parameters and goes by their paths, the rest by name.
        rest = {name: array for name, array in numbers.items() if name != "mean"}
        guide = {"name": type(posterior.guide).__name__, **dataclasses.asdict(posterior.guide)}
        known = {"likelihood": _name(posterior.likelihood)}
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
    check_params("posterior", posterior)
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


@validate()
def load_posterior(path: str | os.PathLike[str], params: Any) -> Any:
    """Reads a posterior that `save_posterior` wrote.

    Args:
        path: The file.
        params: The model's parameters, or their ``jax.ShapeDtypeStruct``.

    Returns:
        The posterior, with the structure of ``params``.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: The file is damaged, holds no posterior, or one of another model; a
            parameter that tells is named.
    """
    metadata, tree = load_metadata(path), load_pytree(path)
    kind = metadata.get("posterior")
    if kind == _DRAWS:
        random, leaves = named_leaves(tree["random"]), named_leaves(tree["params"])
        _check(path, Draws(random, leaves), params)
        return Draws(random, _arrange(leaves, params), metadata.get("likelihood"))
    if kind == _GAUSSIANS:
        return _gaussians(path, tree, metadata["random"], params)
    if kind == _CALIBRATED:
        found = _gaussians(path, tree["posterior"], metadata["random"], params)
        arrays = named_leaves(tree["factors"])
        factors = {site: arrays[str(i)] for i, site in enumerate(metadata["sites"])}
        errors = tuple(metadata["errors"].items())
        # Metadata has lists; static fields are compared and hashed.
        unseen = metadata.get("unseen")
        return Calibrated(found, factors, errors, unseen and tuple(unseen))
    if kind == _JOINT:
        settings = dict(metadata["guide"])
        name = settings.pop("name")
        if name not in _GUIDES:
            raise CheckpointError(
                f"{path} holds a posterior of the guide {name!r}, which this version of jaxeff "
                f"doesn't know; it knows {', '.join(_GUIDES)}."
            )
        means, paths = named_leaves(tree["mean"]), tuple(metadata["random"])
        _check(path, {p: Gaussian(m, m) if p in paths else m for p, m in means.items()}, params)
        guide = _GUIDES[name](**settings)
        stds = {p: jnp.ones(means[p].shape, tree["numbers"]["raw"].dtype) for p in paths}
        # The file holds paths; how the guide's numbers are nested, only the guide knows.
        like = jax.eval_shape(guide.start, jax.random.key(0), _arrange(means, params), stds)
        rest = {name: numbers for name, numbers in like.items() if name != "mean"}
        found = load_pytree(path, {"numbers": rest, "mean": named_leaves(like["mean"])})
        numbers = {"mean": _arrange(found["mean"], params), **found["numbers"]}
        return CorrelatedPosterior(numbers, guide, paths, metadata.get("likelihood"))
    raise CheckpointError(f"{path} is a checkpoint, but not one of a posterior.")


def _gaussians(path: str | os.PathLike[str], tree: Any, random: Sequence[str], params: Any) -> Any:
    arrays = named_leaves(tree)
    leaves = {
        name: Gaussian(arrays.pop(f"{name}/mean"), arrays.pop(f"{name}/var")) for name in random
    } | arrays
    _check(path, leaves, params)
    return _arrange(leaves, params)


def _name(likelihood: Likelihood | None) -> str | None:
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
