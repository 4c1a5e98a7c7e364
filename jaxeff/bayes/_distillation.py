"""One posterior from another: `distill` draws from any, and hand-overs between inference methods.

Distillation makes a variational posterior that predicts as a teacher does, draw for draw:

```python
import jax

import jaxeff
from jaxeff.bayes import distill, predict
from jaxeff.nn import small_classifier

key = jax.random.key(0)
f, params, (x, y) = small_classifier()
posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)   # any: NUTS's draws
student = distill(                                                            # no labels
    key, f, params, (x,), posterior, likelihood="categorical", epochs=20
).posterior
```
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.bayes import posteriors, variational
from jaxeff.bayes.sampling import MCMCResult
from jaxeff.bayes.variational import Loss, SVIResult
from jaxeff.moment_propagation import Gaussian

TEACHER_DRAWS = 100
"""Draws of a posterior that teaches; more of them cost time and teach little."""
TEACHER = 2**32 - 2
"""Folded into a run's key to draw them; `START` of the variational run has the number above."""


@dataclass(frozen=True, kw_only=True)
class Student(variational.Approximation):
    """What is fitted to a teacher.

    Attributes:
        init_scale: Standard deviation to start with. It may be larger than for `svi`, since nothing
            here rewards knowing nothing.
    """

    init_scale: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Distillation(variational.Optimization):
    """How a student is fitted.

    Attributes:
        kl: Weight of a pull towards the prior.
        particles: Draws of the student per step, at least two.
    """

    kl: float | optax.Schedule = 0.0
    particles: int = 8


@core.validate(
    kl=core.any_of(core.function_of_form("kl(step)"), core.non_negative),
    params=core.posterior_like,
    init_scale=core.positive,
    particles=core.static_integer(),
)
@core.forwards((Student, Distillation, variational.train), variational.VariationalOptions)
def distill(
    key: jax.Array,
    f: Callable[..., Any],
    params: Any,
    inputs: tuple[Any, ...],
    teacher: Any,
    *,
    epochs: int,
    likelihood: posteriors.Likelihood | None = None,
    **options: Unpack[variational.VariationalOptions],
) -> SVIResult:
    """Fits a variational posterior to another posterior's predictions.

    Draws and results know their likelihood; bare Gaussians don't, so it has to be said, as it has
    of a teacher of another function, which is given by its outputs:

    ```python
    outputs = predict(key, f, posterior, x, samples=100)
    student = distill(key, f, params, (x,), outputs, likelihood="categorical", epochs=20)
    ```

    Sharp edge: the student learns where the inputs are. For uncertainty away from the training data
    give inputs from there too; they need no labels.

    Args:
        key: Random key; the run is a function of it and of the other arguments.
        f: ``f(params, *inputs) -> outputs``; it may be a smaller network than the teacher's.
        params: Parameters at which the posterior means start, or any posterior; trained parameters
            are best.
        inputs: Arrays (or pytrees) with a common first axis of examples; no labels.
        teacher: A posterior over the parameters of the same ``f``, or the result of an inference: a
            hundred of its draws teach. Or the outputs of any teacher for these inputs, ``[draws,
            examples, ...]``, such as `predict` returns; a step's cost grows with their number.
        epochs: Passes over the inputs.
        likelihood: Meaning of outputs, of teacher and student: class probabilities are compared
            for ``"categorical"``, else means and standard deviations. Left out, it is that of the
            teacher, or of ``params``, if it is a result, `Draws` or a guide; arrays and pytrees of
            `Gaussian` know none, so that it has to be named.
        **options: `guide`, the family of the posterior, as for `svi`. `prior`, the rule of which
            parameters are random (see `jaxeff.bayes.posteriors`); its scales matter only where `kl`
            isn't zero. `init_scale`, the standard deviation that the posterior starts with, 0.1; it
            may be larger than for `svi`, since nothing here rewards knowing nothing; from 0.01 a
            few hundred steps were too few to reach a teacher's spread.

            `batch_size`, the examples per step, 100. `kl`, the weight of a pull towards the prior,
            in units of the score per example, 0. `optimizer`: any optax optimizer; Adam with
            learning rate 1e-3 if None. `particles`, the draws of the student per step, at least
            two, 8.

            `settings`: further facts that define the run, as JSON. `checkpoint`,
            `checkpoint_every`, `resume` and `progress`, as for `jaxeff.training.fit`.

    Returns:
        The posterior and the history; its ``nll`` is the score.

    Raises:
        ValueError: Teacher and inputs don't go together, fewer than two draws or particles, a
            value that isn't finite, no likelihood or one that isn't the teacher's, or what `svi`
            refuses.
        TypeError: An argument is of another kind.
        DivergedError: The objective became NaN or infinite; names the epoch.
        CheckpointError: The checkpoint is damaged, of another model or of another run.
    """
    if not isinstance(inputs, tuple | list):
        raise TypeError(
            "distill: inputs must be a tuple, such as (images,), not a " + type(inputs).__name__
        )

    student = Student(**core.options_for(Student, options))
    optimization = Distillation(epochs=epochs, **core.options_for(Distillation, options))
    run = core.options_for(variational.train, options)
    run["settings"] = {**(run.get("settings") or {}), "method": "distillation"}

    carriers = teacher, params
    for each in (likelihood, *(getattr(carrier, "likelihood", None) for carrier in carriers)):
        posteriors.require_one_output("distill", each)
    params, scales, stds = student.start(params, f, tuple(inputs))
    # The teacher runs once on all inputs, not in every step.
    teacher = _outputs(key, f, teacher, tuple(inputs))
    _check_outputs(teacher, jax.eval_shape(f, params, *inputs))
    # The energy score compares them with each other.
    core.check_count("particles", optimization.particles, 2)
    # Examples first, so that a mini-batch cuts the teacher's outputs as it does any targets.
    data = *inputs, jnp.swapaxes(jnp.asarray(teacher), 0, 1)
    posteriors.check_data(params, data)
    likelihood = posteriors.require_likelihood("distill", likelihood, *carriers)
    guide, loss = variational.resolve_guide(student.guide), energy_score(likelihood)
    problem = variational.VariationalProblem(f, params, scales, stds, guide, likelihood, loss)
    return variational.train(key, problem, data, optimization, **run)


def _outputs(key: jax.Array, f: Callable[..., Any], teacher: Any, inputs: tuple[Any, ...]) -> Any:
    """Computes a teacher's outputs, unless the teacher is given by them."""
    posterior = getattr(teacher, "posterior", teacher)
    if not posteriors.is_posterior(posterior):
        if not isinstance(posterior, jax.Array | np.ndarray):
            raise TypeError(
                "distill: the teacher must be a posterior, the result of an inference or an array "
                f"of outputs [draws, examples, ...], not a {type(posterior).__name__}"
            )
        return posterior
    count = (
        min(len(posterior), TEACHER_DRAWS)
        if isinstance(posterior, posteriors.Draws)
        else TEACHER_DRAWS
    )
    return posteriors.predict(
        jax.random.fold_in(key, TEACHER), f, posterior, *inputs, samples=count
    )


def _check_outputs(teacher: Any, student: Any) -> None:
    """Checks that a teacher's outputs are draws of those of the student."""
    if len(teacher) < 2 or np.shape(teacher)[1:] != student.shape:
        raise ValueError(
            f"the teacher's outputs have shape {list(np.shape(teacher))}; they must be "
            f"[draws, *{list(student.shape)}], of two draws or more, as predict gives them for "
            "these inputs"
        )


def energy_score(likelihood: posteriors.Likelihood) -> Loss:
    """Makes the energy score of a student's draws against a teacher's.

    Returns ``score(outputs, teacher)``, the mean over examples: outputs of the student ``[draws,
    examples, ...]``, those of the teacher ``[examples, draws, ...]``. Its mean over the student's
    draws is the score of their distribution.

    The loss is the energy score (Gneiting and Raftery 2007, JASA 102) between the predictions of
    the teacher's draws and of the student's, for each input

        E|s - t| - E|s - s'| / 2

    which is least, for any shape of distribution, where both are distributed alike. What the
    teacher's draws disagree on, epistemic uncertainty, is thereby kept. A cross-entropy to the
    teacher's *mean* prediction, which is the usual distillation, loses it: every draw of the
    student learns the mean (`experiments.beyond.bridges` measures both).
    """
    distribution = posteriors.resolve_likelihood(likelihood)

    def predictions(outputs: Any) -> Float[Array, "examples predicted"]:
        of_targets = distribution(outputs)
        if isinstance(of_targets, dist.CategoricalLogits | dist.CategoricalProbs):
            return of_targets.probs
        # In the targets' units both: variances would weigh more the larger these are.
        parts = of_targets.mean, jnp.sqrt(of_targets.variance)
        return jnp.concatenate([part.reshape(len(part), -1) for part in parts], -1)

    def score(outputs: Any, teacher: Any) -> Float[Array, ""]:
        students = jax.vmap(predictions)(outputs)
        teachers = jax.vmap(predictions)(jnp.swapaxes(teacher, 0, 1))
        draws = len(students)
        across = _distance(students[:, None], teachers[None]).mean()
        # Of pairs of different draws: a draw's distance from itself is no sample of E|s - s'|.
        among = _distance(students[:, None], students[None]).mean() * draws / (draws - 1)
        return across - among / 2

    return score


def _distance(a: Array, b: Array) -> Array:
    """Computes Euclidean distances, with gradient zero instead of NaN between equal points."""
    squared = jnp.square(core.widened(a - b)).sum(-1)
    # `where` differentiates both branches: the inner one keeps zero away from the root.
    apart = squared > 0
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, squared, 1.0)), 0.0)


@core.validate(result=core.instance_of(MCMCResult), spread=core.non_negative)
def around_best_draw(result: MCMCResult, spread: float = 0.3) -> Any:
    """Makes a start of SVI from a sampler: its best draw, and a share of its chain's spread.

    The draws' own mean won't do for a network: hidden units that may be exchanged or change sign
    average to one that is near zero, and SVI from there collapses. Nor is the whole standard
    deviation what a guide of independent parameters ends at: it knows no correlations, so it is
    narrower (0.3 reached the best objective on two moons, of 0.1, 0.3 and 1). What lies between
    chains is no scale at all, so the spread is that within one.

    Results of one method start another:

    ```python
    import jax.numpy as jnp
    import optax

    from jaxeff.bayes import NUTS, around_best_draw, mcmc, svi

    def f(params, x):                                          # a line; mean and log-variance
        return jnp.stack([params["slope"] * x, jnp.full_like(x, -2.0)], -1)

    key, params, x = jax.random.key(0), {"slope": jnp.ones(())}, jnp.linspace(-1, 1, 100)
    data = x, 2 * x + 0.3 * jax.random.normal(key, (100,))
    options = {"epochs": 100, "optimizer": optax.adam(1e-2), "likelihood": "gaussian"}
    start = svi(key, f, params, data, **options).posterior
    run = {"likelihood": "gaussian", "chains": 4, "init": start}
    chains = mcmc(key, f, params, data, NUTS(), **run)                               # SVI -> MCMC
    svi(key, f, around_best_draw(chains), data, **options)                            # MCMC -> SVI
    distill(key, f, params, (x,), chains, epochs=100, optimizer=optax.adam(1e-2))
    ```

    Args:
        result: Samples of `mcmc`.
        spread: Share of the standard deviations of the draws of the same chain.

    Returns:
        A pytree of `Gaussian` to pass to `svi` as its ``params``; its means are the draw with the
        highest posterior density.

    Raises:
        ValueError: The sampler doesn't know the density, or the spread isn't positive.
    """
    if "log_density" not in result.stats:
        raise ValueError(
            "samplers on mini-batches don't know the density of their draws: start SVI at one of "
            "them, posterior.at(index), instead"
        )
    core.check_number("spread", spread, above=0)
    log_density = result.stats["log_density"]
    # Statistics are of all iterations, draws of the last in each group of `thin`.
    thin = log_density.shape[1] // result.posterior.draws_per_chain
    of_kept = log_density[:, thin - 1 :: thin]
    chain, draw = np.unravel_index(np.argmax(of_kept), of_kept.shape)
    # Within the best chain: another chain may sit in another mode, which is no width of this one.
    gaussians = {
        path: Gaussian(draws[chain, draw], spread**2 * draws[chain].var(0))
        for path, draws in result.posterior.random.items()
    }
    return posteriors.with_random(result.posterior.params, gaussians)
