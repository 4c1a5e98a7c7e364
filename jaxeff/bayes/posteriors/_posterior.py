"""Posteriors over the parameters of a function, and what can be done with any of them.

A posterior is one of

- a pytree with the structure of the parameters whose leaves are `Gaussian` (mean field), or plain
  arrays where a parameter is not random;
- `Draws`, what a sampler leaves behind;
- anything else that is a `Posterior`, such as the guides of `jaxeff.bayes.svi`.

```python
import jax

from jaxeff import Gaussian
from jaxeff.bayes import check_posterior, draw, sample, to_gaussians
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier(10)
posterior = jax.tree.map(lambda w: Gaussian(w, 0.01 * w**2), params)
check_posterior(posterior, params)                      # it has the structure of params
one = draw(jax.random.key(0), posterior)                # parameters, for f(one, x)
many = sample(jax.random.key(0), posterior, 5)          # a leading axis of five
assert many["fc1"]["bias"].shape == (5, *one["fc1"]["bias"].shape)
assert to_gaussians(posterior)["fc1"]["bias"].var.shape == one["fc1"]["bias"].shape
```
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxeff import core
from jaxeff.bayes.posteriors import _model as model
from jaxeff.moment_propagation import Calibrated, Gaussian, is_gaussian


@runtime_checkable
class Posterior(Protocol):
    """A distribution over pytrees of parameters.

    All three take `sample`, `jaxeff.bayes.predict` and `to_gaussians`. What the outputs of the
    function mean (its likelihood) travels with `Draws`, guides and every result of an inference; a
    pytree of `Gaussian` is one of parameters and knows nothing of outputs, so what needs it then
    has to be told.
    """

    def draws(self, key: PRNGKeyArray, n: int) -> tuple[Any, Callable[[Any], Any]]:
        """Prepares ``n`` draws.

        Returns:
            A pytree with a leading axis of ``n``, and a pure function from one entry along it to
            parameters: so that draws can be made one at a time where memory is short.
        """

    def to_gaussians(self, *, diagonal: bool = False) -> Any:
        """Computes the mean and variance of every parameter, as a pytree of `Gaussian`.

        Args:
            diagonal: Whether to give the variances of parameters as they are, even where their
                correlations matter to the outputs (`Laplace.to_gaussians`).
        """


@core.shown_as_table
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Draws:
    """Draws of a sampler: an empirical distribution over parameters.

    Attributes:
        random: The random parameters by path, ``[chains, draws, *shape]``.
        params: All parameters, one set of them; gives those that are not random their values.
        likelihood: Meaning of the outputs of the sampled function, as given to the sampler; None if
            unknown.
    """

    random: model.Random
    params: Any
    likelihood: model.Likelihood | None = field(default=None, metadata={"static": True})

    @property
    def chains(self) -> int:
        """The number of chains."""
        return next(iter(self.random.values())).shape[0]

    @property
    def draws_per_chain(self) -> int:
        """The number of draws of each chain."""
        return next(iter(self.random.values())).shape[1]

    def __len__(self) -> int:
        return self.chains * self.draws_per_chain

    def _table(self) -> core.Table:
        shapes = {path: np.shape(a) for path, a in self.random.items()}
        chains, draws, *_ = (*next(iter(shapes.values()), ()), 0, 0)
        drawn_shapes = {path: shape[2:] for path, shape in shapes.items()}
        return parameter_table(f"Draws: {chains} chains of {draws}", self.params, drawn_shapes)

    def at(self, index: Any) -> Any:
        """Selects the parameters of one draw, counted chain by chain."""
        flat = {path: a.reshape(-1, *a.shape[2:])[index] for path, a in self.random.items()}
        return model.with_random(self.params, flat)

    def draws(self, key: PRNGKeyArray, n: int) -> tuple[Any, Callable[[Any], Any]]:
        """Chooses ``n`` of the draws at random, no draw twice.

        Raises:
            ValueError: There are fewer.
        """
        if n > len(self):
            raise ValueError(
                f"the posterior holds {len(self)} draws ({self.chains} chains of "
                f"{self.draws_per_chain}), fewer than the {n} asked for: sample more, or ask for "
                "less"
            )
        return jax.random.permutation(key, len(self))[:n], self.at

    def to_gaussians(self, *, diagonal: bool = False) -> Any:
        """Computes mean and variance of every parameter over all draws; fixed ones stay.

        Sharp edge: two modes that are mirror images of each other, as hidden units that may be
        exchanged have them, average to a network that is neither.
        """
        gaussians = {
            path: Gaussian(a.mean((0, 1)), a.var((0, 1))) for path, a in self.random.items()
        }
        return model.with_random(self.params, gaussians)


def parameter_table(title: str, params: Any, random: Mapping[str, tuple[int, ...]]) -> core.Table:
    """Makes a table of the parameters that a posterior is over, random or not.

    Args:
        title: Title of the table.
        params: All parameters, or their shapes.
        random: The shapes of the random ones, by path.
    """
    leaves = {
        path: random.get(path, np.shape(leaf)) for path, leaf in model.named_leaves(params).items()
    }
    rows = [
        (path, "x".join(map(str, shape)), "random" if path in random else "fixed")
        for path, shape in leaves.items()
    ]
    count = sum(math.prod(shape) for shape in random.values())
    return core.Table(
        ("parameter", "shape", ""), rows, caption=f"{title}, {count:,} random numbers"
    )


@core.validate(diagonal=core.boolean)
def to_gaussians(posterior: Any, *, diagonal: bool = False) -> Any:
    """Hands a posterior over to `jaxeff.moments`: the mean and variance of every parameter.

    Args:
        posterior: Any posterior.
        diagonal: Whether to give the variances of parameters as they are, even where their
            correlations matter to the outputs (`Laplace.to_gaussians`).

    Returns:
        A pytree with the structure of the parameters, leaves `Gaussian` or, if a parameter is not
        random, a plain array. A pytree of `Gaussian` comes back as it is, and so does one with
        factors (`jaxeff.calibrate_moments`); others lose their correlations.
    """
    if isinstance(posterior, Posterior):
        return posterior.to_gaussians(diagonal=diagonal)
    return _checked(posterior)


def without_factors(posterior: Any, *, diagonal: bool = False) -> Any:
    """Returns the Gaussians of a posterior as a pytree like the parameters: see `to_gaussians`."""
    gaussians = to_gaussians(posterior, diagonal=diagonal)
    return gaussians.posterior if isinstance(gaussians, Calibrated) else gaussians


def prepare_draws(key: PRNGKeyArray, posterior: Any, n: int) -> tuple[Any, Callable[[Any], Any]]:
    """Prepares draws of any posterior.

    Returns what `Posterior.draws` does.

    Raises:
        TypeError: It is no posterior.
    """
    if isinstance(posterior, Posterior):
        return posterior.draws(key, n)
    _checked(posterior)
    return jax.random.split(key, n), lambda k: draw(k, posterior)


@core.validate(posterior=core.posterior_like, n=core.static_integer())
def sample(key: PRNGKeyArray, posterior: Any, n: int) -> Any:
    """Draws parameters.

    Args:
        key: Random key.
        posterior: Any posterior; a parameter that is not random is the same in each draw.
        n: Number of draws.

    Returns:
        Pytree of arrays with the structure of the parameters and a leading axis of ``n``. Draw
        ``i`` is what `predict` uses for its sample ``i``, given the same key and ``n``.
    """
    entries, at = prepare_draws(key, posterior, n)
    return jax.vmap(at)(entries)


@core.validate(posterior=core.posterior_like)
def draw(key: PRNGKeyArray, posterior: Any) -> Any:
    """Draws one set of parameters.

    Args:
        key: Random key.
        posterior: Any posterior.

    Returns:
        Pytree of arrays with the structure of the parameters.
    """
    if isinstance(posterior, Posterior):
        return jax.tree.map(lambda a: a[0], sample(key, posterior, 1))
    leaves, treedef = jax.tree.flatten(posterior, is_leaf=is_gaussian)
    # A key for every leaf, random or not: which ones are random changes no other's draw.
    keys = jax.random.split(key, max(len(leaves), 1))
    drawn = [
        leaf.sample(k) if is_gaussian(leaf) else jnp.asarray(leaf)
        for k, leaf in zip(keys, leaves, strict=False)
    ]
    return jax.tree.unflatten(treedef, drawn)


@core.validate()
def check_posterior(posterior: Any, params: Any) -> None:
    """Checks that a posterior is over the parameters of a model.

    Args:
        posterior: Any posterior.
        params: The model's parameters, or their ``jax.ShapeDtypeStruct``.

    Raises:
        ValueError: A parameter is missing, unexpected or of another shape; its path is named.
        TypeError: It is no posterior.
    """
    # Every kind of posterior has draws in the shape of parameters; none is computed.
    shapes = jax.eval_shape(lambda p: draw(jax.random.key(0), p), _checked(posterior))
    drawn, expected = model.named_leaves(shapes), model.named_leaves(params)
    for path in [*expected, *drawn]:
        if path not in drawn:
            raise ValueError(f"the posterior is of another model: it has no {path}")
        if path not in expected:
            raise ValueError(f"the posterior is of another model: the model has no {path}")
        if drawn[path].shape != np.shape(expected[path]):
            raise ValueError(
                f"the posterior is of another model: its {path} has shape {drawn[path].shape}, "
                f"the model's {np.shape(expected[path])}"
            )


def is_posterior(tree: Any) -> bool:
    """Returns whether a tree is a posterior rather than a pytree of plain arrays."""
    if isinstance(tree, Posterior):
        return True
    if hasattr(tree, "posterior"):  # a result, not its posterior
        return False
    leaves = jax.tree.leaves(tree, is_leaf=is_gaussian)
    return any(is_gaussian(leaf) for leaf in leaves)


def _checked(posterior: Any) -> Any:
    if not is_posterior(posterior):
        raise TypeError(
            f"the posterior, a {type(posterior).__name__}, holds no Gaussian: pass the `posterior` "
            "of a result (not the result itself, and not a pytree of arrays)"
        )
    return posterior


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class MixturePosterior:
    """A mixture of posteriors over the parameters of one function.

    `MixturePosterior` has several posteriors of one network, each with the same weight. That is
    what an ensemble of variational posteriors is: modes far apart, each with a width of its own.
    Plain parameters may stand for a posterior without width, so that a deep ensemble is one, too.

    ```python
    import jax

    from jaxeff import Gaussian
    from jaxeff.bayes import MixturePosterior, predict
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    around = lambda p: jax.tree.map(lambda w: Gaussian(w, 0.01 * w**2), p)
    other = jax.tree.map(lambda w: -w, params)
    posterior = MixturePosterior((around(params), around(other)))
    logits = predict(jax.random.key(0), f, posterior, x, samples=10)    # five of each member
    ```

    `jaxeff.ensembles.mixture_moments` has its predictions without samples.

    Attributes:
        members: Posteriors of one kind: pytrees with `Gaussian` leaves or plain parameters, or any
            `Posterior`, such as a guide's.

    Raises:
        ValueError: There are none, or two differ in structure.
    """

    members: tuple[Any, ...]

    def __post_init__(self) -> None:
        """Checks that members are of one kind."""
        if not isinstance(self.members, tuple):  # JAX rebuilds pytrees out of placeholders
            return
        if not self.members:
            raise ValueError("MixturePosterior: there are no members; give one posterior or more")
        structures: list[Any] = [jax.tree.structure(member) for member in self.members]
        first, *others = structures
        for i, other in enumerate(others, 1):
            if other != first:
                raise ValueError(
                    f"MixturePosterior: member {i} has another structure than member 0: {other} "
                    f"and {first}; give posteriors of one kind, of one network"
                )

    def __len__(self) -> int:
        return len(self.members)

    @property
    def likelihood(self) -> model.Likelihood | None:
        """The likelihood of the outputs, if a member has one."""
        return model.carried_likelihood(*self.members)

    def gaussians(self) -> Any:
        """Stacks every member's Gaussians into one pytree, with a first axis of members."""
        each = [
            without_factors(member) if isinstance(member, Posterior) else member
            for member in self.members
        ]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)

    def draws(self, key: PRNGKeyArray, n: int) -> tuple[Any, Callable[[Any], Any]]:
        """Prepares ``n`` draws, in turn from each member.

        Returns:
            As `jaxeff.bayes.Posterior.draws`.
        """
        # Stratified: equal shares of draws vary less than members chosen at random.
        entries = jnp.arange(n) % len(self), jax.random.split(key, n)
        drawn = [lambda k, member=member: _drawn(k, member) for member in self.members]
        # Members are of one structure, so one compiled function draws from any of them.
        return entries, lambda entry: jax.lax.switch(entry[0], drawn, entry[1])

    def to_gaussians(self, *, diagonal: bool = False) -> NoReturn:
        """Refuses to average members' weights.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"a mixture of {len(self)} members has no mean weights: the average of networks is "
            "none of them. Use jaxeff.ensembles.mixture_moments(f, posterior, x) or "
            "jaxeff.bayes.predict, or take one of posterior.members"
        )


def _drawn(key: PRNGKeyArray, member: Any) -> Any:
    leaves = jax.tree.leaves(member, is_leaf=is_gaussian)
    if isinstance(member, Posterior) or any(is_gaussian(leaf) for leaf in leaves):
        return draw(key, member)
    # Plain parameters are a posterior without width.
    return jax.tree.map(jnp.asarray, member)


@core.validate(args=core.input_batch)
def predict(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    posterior: Any,
    *args: Any,
    samples: int | None = None,
    chunk: int = 1,
) -> Any:
    """Computes outputs of ``f`` under weights drawn from a posterior.

    Compiled once for each ``f``, shape and number of samples.

    `predict` draws weights from a posterior and runs the function with each.

    Sharp edges: a mixture has no `to_gaussians`. The mean of two networks' weights is no network
    that anybody trained, and their variance says how far apart two modes are: averaging is refused.
    Memory of `predict` is that of ``chunk`` runs of the function on all inputs (LeNet-5: 24 MB for
    1,000 images, however many samples). A convolution with another kernel for each sample is also
    slow on a CPU and takes more memory than that, so for large batches one sample at a time (the
    default) is best; for a handful of inputs raise ``chunk``. Inputs that don't fit may be split:
    the same key and number of samples draw the same weights for each part.

    Args:
        key: Random key.
        f: ``f(params, *args)``; hashable, as every function is.
        posterior: Any posterior (see `jaxeff.bayes.posteriors`).
        *args: Inputs, passed on to ``f``.
        samples: Number of weight draws; each one is used for all inputs. If None: 30, or all that
            `Draws` hold, chain by chain.
        chunk: Weight draws evaluated together (vmapped); the chunks run one after another.

    Returns:
        The outputs of ``f`` with a leading axis: ``[samples, batch, classes]`` for a classifier.

    Raises:
        TypeError: It is no posterior, ``f`` a Flax model, or the key none.
        ValueError: ``samples`` or ``chunk`` is below 1, or ``f`` refuses the weights because the
            posterior belongs to another model.
    """
    for name, value in (("samples", samples), ("chunk", chunk)):
        if value is not None:
            core.check_count(name, value)
    return _predict(key, posterior, args, f=f, samples=samples, chunk=chunk)


@partial(jax.jit, static_argnames=("f", "samples", "chunk"))
def _predict(
    key: PRNGKeyArray,
    posterior: Any,
    args: tuple[Any, ...],
    *,
    f: Callable[..., Any],
    samples: int | None,
    chunk: int,
) -> Any:
    # All draws in their order, chain by chain: diagnostics take the result apart again.
    if samples is None and isinstance(posterior, Draws):
        entries: Any = jnp.arange(len(posterior))
        at: Callable[[Any], Any] = posterior.at
    else:
        entries, at = prepare_draws(key, posterior, 30 if samples is None else samples)
    count = len(jax.tree.leaves(entries)[0])
    # Mapped, not vmapped: memory is that of `chunk` networks, whatever the number of samples.
    return jax.lax.map(lambda entry: f(at(entry), *args), entries, batch_size=min(chunk, count))
