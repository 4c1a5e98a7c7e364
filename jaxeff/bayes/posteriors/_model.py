"""A Bayesian model: priors of parameters, likelihoods of targets, and their joint density.

Priors are Gaussian, with a standard deviation for each parameter array, by name or by rule. The
default, ``"fan_in"``, gives a weight array that feeds ``n`` inputs into each output the standard
deviation ``sqrt(2 / n)``, and one that no product reads (a bias, a scale) 1. It keeps the prior
variance of a layer's output the same whatever its width (Neal 1996; He et al. 2015 for the 2, which
ReLU asks for); under a unit prior it grows with the width, so that the KL term pulls a wide layer
towards weights that drown its inputs in noise. ``n`` is what the function's products sum over
(`jaxeff.program.costs`), whatever the layout of the array. A table of embeddings gets 1: a look-up
takes one row as it is, so its entries have variance 1 whatever the vocabulary; one that is also the
last layer's kernel gets that layer's ``sqrt(2 / n)``.

```python
from jaxeff.bayes import prior_scales
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier(4)
scales = prior_scales({"fc2/*": 0.1, "*/bias": None}, params, f, x)
assert scales["fc2/kernel"] == 0.1 and scales["fc1/bias"] is None
assert scales["conv1/kernel"] == (2 / 25) ** 0.5         # of a window of 5 x 5 pixels
```
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import (
    check_examples,
    check_labels,
    kept_program,
    parameter_tree,
    span_processes,
    validate,
    warn_of_one_class,
)
from jaxeff.program import Target, deciding_patterns, trace
from jaxeff.program.costs import fan_ins

Prior = float | str | Mapping[str, float | str | None]


@validate(args=parameter_tree)
def prior_scales(
    prior: Prior, params: Any, f: Callable[..., Any] | None = None, *args: Any
) -> dict[str, float | None]:
    """Finds the prior standard deviation of every parameter array.

    A rule of None makes a parameter a point estimate: it is not random, and has no prior (partial
    Bayes).

    A mapping's patterns are globs over parameter paths, of which the most specific one decides, in
    any order (`jaxeff.program`).

    Sharp edge: `prior_scales` without the function knows shapes alone, and takes arrays for laid
    out and named as Flax does: ``[in, out]``, ``[height, width, in, out]``, ``embedding``.

    Args:
        prior: ``"fan_in"``, one standard deviation for all, or a mapping from patterns over
            parameter paths (``"conv*/kernel"``; the most specific one decides) to either, or to
            None for parameters that are not random. Parameters that no pattern matches get
            ``"fan_in"``.
        params: Pytree of parameters.
        f: ``f(params, *args)``, whose products tell fan-ins; without it shapes do.
        *args: The inputs; shapes are enough.

    Returns:
        Standard deviations by parameter path (``"conv1/kernel"``), in the order of the leaves;
        None for those that are not random.

    Raises:
        ValueError: A standard deviation is not a positive number, a rule is unknown, a pattern
            matches or decides no parameter, two are equally specific for one, no parameter is
            random, or a fan-in can't be inferred.
    """
    leaves = named_leaves(params)
    rules: dict[str, Any] = dict.fromkeys(leaves, "fan_in")
    if isinstance(prior, Mapping):
        decided = deciding_patterns(prior, [Target(path) for path in leaves], what="parameter")
        rules |= {path: prior[pattern] for path, pattern in decided.items()}
    else:
        rules = dict.fromkeys(leaves, prior)
    # A function is traced only where some fan-in is asked for.
    asked = any(isinstance(rule, str) and rule == "fan_in" for rule in rules.values())
    fan_in = _fan_ins(params, f, args) if asked and f is not None else {}
    scales = {
        path: _scale(rules[path], path, jnp.shape(leaf), fan_in.get(path))
        for path, leaf in leaves.items()
    }
    if all(scale is None for scale in scales.values()):
        raise ValueError("the prior leaves no parameter random: give at least one a scale")
    return scales


def _fan_ins(params: Any, f: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, float | None]:
    program = trace(f, params, *args)
    fan_in = fan_ins(program)
    # A program's inputs are the parameters first, leaf by leaf.
    return {
        path: fan_in.get(value.path)
        for path, value in zip(named_leaves(params), program.inputs, strict=False)
    }


def named_leaves(tree: Any, is_leaf: Any = None) -> dict[str, Any]:
    """Names the leaves of a pytree by path, path parts joined by slashes."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    return {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in leaves}


def _scale(rule: Any, path: str, shape: tuple[int, ...], fan_in: float | None) -> float | None:
    if rule is None:
        return None
    if isinstance(rule, str) and rule == "fan_in":
        n = _fan_in_of_layout(path, shape) if fan_in is None else fan_in
        # Variance 1 / n keeps outputs at one scale (Neal); ReLU halves it (He et al.).
        return float(np.sqrt(2 / n)) if n else 1.0
    if isinstance(rule, str) or not np.isscalar(rule) or not 0 < float(rule) < np.inf:  # type: ignore[arg-type]
        raise ValueError(
            f"the prior of {path} must be a positive standard deviation, 'fan_in' or None, "
            f"not {rule!r}"
        )
    return float(rule)  # type: ignore[arg-type]


def _fan_in_of_layout(path: str, shape: tuple[int, ...]) -> float:
    """Infers the fan-in of an array in Flax's layout from its name and shape."""
    if len(shape) < 2 or path.rpartition("/")[2] == "embedding":
        return 0.0
    if len(shape) == 3:
        raise ValueError(
            f"the fan-in of {path} can't be told from its shape {list(shape)}, which is that of an "
            "attention kernel as well as of a convolution: give prior_scales the function and its "
            "inputs, or this parameter a standard deviation"
        )
    # Outputs are last in Flax's layout; a product sums over all other axes.
    return float(np.prod(shape[:-1]))


Likelihood = str | Callable[[Any], Any] | Mapping[str, Any]


class _Joint:
    """Independent targets of several outputs, by the outputs' names."""

    def __init__(self, parts: Mapping[str, dist.Distribution]) -> None:
        self.parts = parts

    def log_prob(self, targets: Mapping[str, Any]) -> Array:
        """Computes the log-likelihood of each example, ``[examples]``."""
        each = [part.log_prob(targets[name]) for name, part in self.parts.items()]
        return functools.reduce(operator.add, (one.reshape(len(one), -1).sum(-1) for one in each))

    def shape(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the targets."""
        return {name: part.shape() for name, part in self.parts.items()}


@dataclasses.dataclass(frozen=True)
class PerOutput:
    """A likelihood for each of several outputs, hashable as compiled functions need it.

    Attributes:
        parts: Names of outputs, each with its likelihood.
    """

    parts: tuple[tuple[str, Any], ...]

    def __call__(self, outputs: Mapping[str, Any]) -> _Joint:
        """Makes the distribution of the targets."""
        if not isinstance(outputs, Mapping) or any(name not in outputs for name, _ in self.parts):
            has = ", ".join(outputs) if isinstance(outputs, Mapping) else "none by name"
            names = ", ".join(name for name, _ in self.parts)
            raise ValueError(f"the likelihood is one of outputs {names}, but f has {has}")
        return _Joint({name: resolve_likelihood(each)(outputs[name]) for name, each in self.parts})


def hashable_likelihood(likelihood: Likelihood) -> Any:
    """Makes a mapping from outputs to likelihoods hashable; any other stays as it is."""
    if not isinstance(likelihood, Mapping):
        return likelihood
    if not likelihood:
        raise ValueError("the likelihood has no outputs; name those of f, {'class': 'categorical'}")
    for each in likelihood.values():
        resolve_likelihood(each)
    return PerOutput(tuple(likelihood.items()))


def require_one_output(where: str, likelihood: Any) -> None:
    """Refuses a likelihood of several outputs where one array of them is needed."""
    if isinstance(likelihood, PerOutput | Mapping):
        names = likelihood if isinstance(likelihood, Mapping) else dict(likelihood.parts)
        raise ValueError(
            f"{where} takes one output, and the likelihood is of {', '.join(names)}: give a "
            f"function of one, lambda params, x: f(params, x)[{next(iter(names))!r}], and its "
            "likelihood"
        )


def resolve_likelihood(likelihood: Likelihood) -> Callable[[Any], dist.Distribution]:
    """Looks up a likelihood.

    Args:
        likelihood: ``"categorical"`` (outputs are logits, targets integer classes), ``"gaussian"``
            (see `heteroscedastic`), a function from the outputs to a NumPyro distribution whose
            batch shape begins with the examples, or a mapping from names of outputs to these.

    Returns:
        A function from the outputs to a distribution of the targets.

    Raises:
        ValueError: The name is unknown.
    """
    likelihood = hashable_likelihood(likelihood)
    if callable(likelihood):
        return likelihood
    named = {"categorical": _categorical, "gaussian": heteroscedastic}
    if likelihood in named:
        return named[likelihood]
    raise ValueError(
        f"unknown likelihood {likelihood!r}: use 'categorical', 'gaussian', or a function from the "
        "outputs to a NumPyro distribution, such as lambda mean: dist.Normal(mean, 0.1)"
    )


def carried_likelihood(*sources: Any) -> Likelihood | None:
    """Returns the likelihood of the first of posteriors or results that carries one."""
    likelihoods = (getattr(source, "likelihood", None) for source in sources)
    return next((each for each in likelihoods if each is not None), None)


def require_likelihood(where: str, requested: Likelihood | None, *sources: Any) -> Likelihood:
    """Chooses the likelihood that was given, or that posteriors carry.

    Args:
        where: Name of the function in error messages.
        requested: Likelihood that the caller named, if any.
        sources: Posteriors or results of an inference, which may carry one.

    Raises:
        ValueError: There is none, or the one given contradicts the one carried.
    """
    carried = carried_likelihood(*sources)
    if requested is None and carried is None:
        raise ValueError(
            f"{where}: say what f's outputs mean, likelihood='categorical' (logits) or 'gaussian' "
            "(mean and log-variance) or a function to a NumPyro distribution, or pass the result "
            "of an inference, which knows; arrays and pytrees of Gaussian don't"
        )
    if isinstance(requested, str) and isinstance(carried, str) and requested != carried:
        raise ValueError(
            f"{where}: likelihood={requested!r} was given, but the posterior is one of a "
            f"{carried!r} likelihood; leave it out"
        )
    likelihood = carried if requested is None else requested
    assert likelihood is not None
    return likelihood


def likelihood_name(likelihood: Likelihood) -> str:
    """Names a likelihood for a checkpoint, which can't see inside a function."""
    if isinstance(likelihood, PerOutput):
        return ", ".join(f"{name}: {likelihood_name(each)}" for name, each in likelihood.parts)
    return likelihood if isinstance(likelihood, str) else "custom"


def heteroscedastic(outputs: Float[Array, "*batch two_k"]) -> dist.Normal:
    """Makes Gaussian targets whose variance the network predicts.

    A likelihood leads from a network's outputs to the distribution of the targets. A
    heteroscedastic Gaussian reads an *aleatoric head*: the network predicts its own noise level
    (Kendall and Gal 2017, arXiv 1703.04977; Klein's thesis, section 7.4.1).

    Args:
        outputs: The first half of the last axis is the mean, the second half the logarithm of the
            variance (squared units of the target).

    Returns:
        A distribution over targets ``[*batch, k]``, or ``[*batch]`` where k is 1.

    Raises:
        ValueError: The number of outputs is odd.
    """
    if outputs.ndim < 2 or outputs.shape[-1] % 2:
        raise ValueError(
            "a Gaussian likelihood needs a mean and a log-variance for each target, so outputs "
            f"[batch, 2 * targets]; f gives {list(outputs.shape)}"
        )
    mean, log_var = jnp.split(outputs, 2, axis=-1)
    if outputs.shape[-1] == 2:
        mean, log_var = mean[..., 0], log_var[..., 0]
    # Halved first: the root of exp(log_var) would overflow, and lose its gradient, earlier.
    return dist.Normal(mean, jnp.exp(log_var / 2))


def _categorical(logits: Float[Array, "*batch classes"]) -> dist.Distribution:
    return dist.Categorical(logits=logits)


def check_data(params: Any, data: tuple[Any, ...]) -> None:
    """Checks parameters and data for what every inference needs.

    Args:
        params: The parameters to start from.
        data: ``(*inputs, targets)``.

    Raises:
        ValueError: There are no targets, or something isn't finite.
        TypeError: A parameter isn't of a floating-point dtype.
    """
    check_examples("data", data)
    for path, leaf in named_leaves(params).items():
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise TypeError(f"parameter {path} has dtype {jnp.result_type(leaf)}, not a float")
    for name, tree in (("parameter", params), ("data", data)):
        for path, leaf in named_leaves(tree).items():
            # What lies on several processes, they look at together.
            numbers: Any = jnp if span_processes(leaf) else np
            is_real = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
            if is_real and not numbers.isfinite(leaf).all():
                raise ValueError(f"{name} {path} holds values that are NaN or infinite")


def check_likelihood(
    f: Callable[..., Any], params: Any, data: tuple[Any, ...], likelihood: Likelihood, batch: int
) -> None:
    """Checks a function and its likelihood on the data, at the starting parameters.

    Args:
        f: ``f(params, *inputs) -> outputs``.
        params: The parameters to start from.
        data: ``(*inputs, targets)``.
        likelihood: Likelihood, as `resolve_likelihood` takes it.
        batch: Number of examples to evaluate.

    Raises:
        ValueError: Outputs or likelihood are not finite, labels are out of range, or outputs and
            targets don't go together.
        TypeError: A label has the wrong dtype.
    """
    check_targets(f, params, data, likelihood)
    *inputs, targets = jax.tree.map(lambda leaf: jnp.asarray(leaf[:batch]), data)
    shape_of = resolve_likelihood(likelihood)

    # Compiled, since NumPyro's own checks of concrete numbers don't say where these came from.
    def evaluate(params: Any, inputs: Any, targets: Any) -> tuple[Any, Any]:
        outputs = f(params, *inputs)
        return outputs, shape_of(outputs).log_prob(targets)

    values, log_likelihood = kept_program(evaluate)(params, inputs, targets)
    for path, leaf in named_leaves(values).items():
        if bad := int((~jnp.isfinite(leaf)).sum()):
            raise ValueError(
                f"f gives {bad} of {leaf.size} values {path} that are NaN or infinite at the "
                "starting parameters, for the first batch of data"
            )
    if bad := int((~jnp.isfinite(log_likelihood)).sum()):
        raise ValueError(
            f"the likelihood of {bad} of the first {log_likelihood.size} targets is NaN or zero at "
            "the starting parameters: check the parameters of its distribution, and that the "
            "targets lie in its support"
        )


def check_targets(
    f: Callable[..., Any], params: Any, data: tuple[Any, ...], likelihood: Likelihood
) -> None:
    """Checks targets against what a function and its likelihood predict; runs neither.

    Args:
        f: ``f(params, *inputs) -> outputs``.
        params: The parameters.
        data: ``(*inputs, targets)``.
        likelihood: Likelihood, as `resolve_likelihood` takes it.

    Raises:
        ValueError: Labels are out of range, or outputs and targets don't go together.
        TypeError: A label has the wrong dtype.
    """
    *inputs, targets = data
    outputs = jax.eval_shape(f, params, *inputs)
    likelihood = hashable_likelihood(likelihood)
    distribution = resolve_likelihood(likelihood)
    if not isinstance(likelihood, PerOutput):
        _check_one(likelihood, outputs, targets, "")
        return
    jax.eval_shape(lambda each: dict(distribution(each).shape()) and None, outputs)  # names
    for name, each in likelihood.parts:
        if not isinstance(targets, Mapping) or name not in targets:
            raise ValueError(
                f"the likelihood of {name} has no targets: data's last part is a dictionary of "
                "targets by output"
            )
        _check_one(each, outputs[name], targets[name], f"{name}: ")


def _check_one(likelihood: Likelihood, outputs: Any, targets: Any, where: str) -> None:
    if likelihood == "categorical":
        told = f"data: {where}the targets of a categorical likelihood"
        check_labels(told, targets, outputs.shape[-1], positions=outputs.shape[1:-1])
        warn_of_one_class(told, targets)
    _check_shapes(resolve_likelihood(likelihood), outputs, targets, where)


def _check_shapes(likelihood: Callable[..., Any], outputs: Any, targets: Any, where: str) -> None:
    """Refuses targets of another shape, as ``[n, 1]`` and ``[n]`` would silently broadcast."""
    # Noted while tracing: a distribution is no array that `eval_shape` could return.
    shape: list[tuple[int, ...]] = []

    def describe(outputs: Any) -> None:
        shape.append(likelihood(outputs).shape())

    jax.eval_shape(describe, outputs)
    if np.shape(targets) != shape[0]:
        raise ValueError(
            f"{where}the likelihood is one of targets {list(shape[0])}, but "
            f"{list(np.shape(targets))} came: make outputs and targets agree, one row per example"
        )


Scales = Mapping[str, float | None]
Random = dict[str, Array]
"""The random parameters by path, such as ``{"fc1/kernel": ...}``: where a sampler is."""


def random_part(params: Any, scales: Scales) -> Random:
    """Selects the parameters that have a prior.

    Args:
        params: Pytree of parameters.
        scales: Prior standard deviations by path (`prior_scales`), None for a fixed parameter.

    Returns:
        Arrays by path. They are never weakly typed, so that a sampler compiles once.
    """
    leaves = named_leaves(params)
    return {
        path: jnp.asarray(leaf, jnp.result_type(leaf))
        for path, leaf in leaves.items()
        if scales[path] is not None
    }


def with_random(params: Any, random: Mapping[str, Any]) -> Any:
    """Replaces random parameters by others.

    Args:
        params: Pytree of parameters; those that `random` doesn't name stay.
        random: Replacements by path; anything that may be a leaf.

    Returns:
        A pytree of the same structure.
    """
    paths = named_leaves(params)
    leaves = [random.get(path, leaf) for path, leaf in paths.items()]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def log_prior(random: Random, scales: Scales) -> Float[Array, ""]:
    """Computes the log-density of the prior, independent zero-mean Gaussians, in nats."""
    terms = [dist.Normal(0.0, scales[path]).log_prob(leaf).sum() for path, leaf in random.items()]
    return sum(terms, jnp.zeros(()))


def draw_prior(key: PRNGKeyArray, params: Any, scales: Scales) -> Random:
    """Draws the random parameters from their prior.

    Args:
        key: Random key.
        params: Pytree of parameters: structure, shapes and dtypes.
        scales: Prior standard deviations by path.

    Returns:
        Arrays by path.
    """
    random = random_part(params, scales)
    keys = jax.random.split(key, max(len(random), 1))
    return {
        path: dist.Normal(0.0, scales[path]).sample(k, leaf.shape).astype(leaf.dtype)
        for k, (path, leaf) in zip(keys, random.items(), strict=False)
    }


def log_joint(
    f: Callable[..., Any], params: Any, scales: Scales, likelihood: Likelihood
) -> Callable[..., Float[Array, ""]]:
    """Makes the joint density of parameters and targets given the inputs.

    The joint density of parameters and data is what every sampler moves on:

    ```python
    from jaxeff.bayes import prior_scales
    from jaxeff.bayes.posteriors import log_joint, random_part
    from jaxeff.nn import small_classifier

    f, params, data = small_classifier()
    scales = prior_scales("fan_in", params)
    log_density = log_joint(f, params, scales, "categorical")
    log_density(random_part(params, scales), data)
    ```

    Only the parameters with a prior are arguments; the others (prior None) keep the values given:
    partial Bayes.

    Args:
        f: ``f(params, *inputs) -> outputs``.
        params: Pytree of parameters; those without a prior keep these values.
        scales: Prior standard deviations by path.
        likelihood: Likelihood, as `resolve_likelihood` takes it.

    Returns:
        ``log_density(random, data, weight=1)``, in nats: the log-prior plus ``weight`` times the
        log-likelihood of ``data``, ``(*inputs, targets)``. For a mini-batch the weight is the size
        of the data set over that of the batch. It differs from the log-posterior by a constant.
    """
    distribution = resolve_likelihood(likelihood)

    def log_density(random: Random, data: tuple[Any, ...], weight: Any = 1.0) -> Float[Array, ""]:
        *inputs, targets = data
        # Other parameters are constants here: samplers neither move nor differentiate them.
        outputs = f(with_random(params, random), *inputs)
        log_likelihood = distribution(outputs).log_prob(targets).sum()
        return log_prior(random, scales) + weight * log_likelihood

    return log_density
