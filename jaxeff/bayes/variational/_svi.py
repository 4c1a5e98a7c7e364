"""Stochastic variational inference: a posterior over the parameters of any function by gradients.

Minimises, over mini-batches, the negative evidence lower bound per example

    E_q[-log p(y | x, w)] + A(step) / n KL(q(w) || p(w))

with one draw of the weights per step, the KL in closed form unless the guide is a flow, and the KL
weight A annealed from 0 to a quarter over the run (Klein's thesis, section 7.3.2 and eq. (8.7)).
Training is `jaxeff.training`'s: each epoch one compiled scan, with checkpoints.

```python
import jax

from jaxeff.bayes import svi
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
result = svi(jax.random.key(0), f, params, (x, y), epochs=2, batch_size=32)
assert result.posterior["fc1"]["kernel"].var.shape == params["fc1"]["kernel"].shape
```

What all variational methods share is `train`: the objective per example is a loss of the outputs
under drawn parameters plus a weighted Kullback-Leibler divergence from the prior.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff import core, training
from jaxeff.bayes import posteriors
from jaxeff.bayes.posteriors import prior_scales
from jaxeff.bayes.variational._guides import CorrelatedPosterior, Guide, MeanField, resolve_guide
from jaxeff.moment_propagation import calibrate_moments, is_gaussian
from jaxeff.training import RunOptions, TrainState, describe_training, make_epoch, run_epochs

Loss = Callable[[Any, Any], Float[Array, ""]]
"""From outputs with a leading axis of draws and targets to a loss per example, in nats."""

START = 2**32 - 1
"""Folded into a run's key to start the guide; the one below it draws for `calibrate`, and the
epochs have the numbers below."""


@core.shown_as_table
class SVIResult(NamedTuple):
    """A trained posterior.

    Attributes:
        posterior: A posterior (see `jaxeff.bayes.posteriors`): of the mean-field guide a pytree of
            `jaxeff.Gaussian` with the structure of the parameters, with `svi(..., calibrate=x)` one
            with factors (`jaxeff.moment_propagation.Calibrated`), else a `CorrelatedPosterior`.
        history: Per epoch one record: ``epoch``, ``loss`` (the objective per example), ``nll`` (its
            first term), ``kl`` (whole network, unweighted) and ``kl_weight``, all means over the
            epoch and in nats, and what ``eval_fn`` returned.
        likelihood: Meaning of the outputs of the function.
    """

    posterior: Any
    history: list[dict[str, Any]]
    likelihood: posteriors.Likelihood | None = None

    @property
    def losses(self) -> np.ndarray:
        """The objective per example of each epoch, in nats, ``[epochs]``."""
        return np.array([record["loss"] for record in self.history])

    def _table(self) -> core.Table:
        gaussians = posteriors.named_leaves(posteriors.without_factors(self.posterior), is_gaussian)
        random = {path: leaf.shape for path, leaf in gaussians.items() if is_gaussian(leaf)}
        epochs = f"{len(self.history)} epochs"
        if self.history:
            first, last = self.history[0], self.history[-1]
            epochs += "".join(
                f", {name} {first[name]:.4g} to {last[name]:.4g}"
                for name in ("nll", "kl")  # the loss grows with the weight of the KL
                if name in last
            )
        fixed = {path: leaf for path, leaf in gaussians.items() if path not in random}
        return posteriors.parameter_table(
            f"SVI: {epochs}", {**fixed, **dict.fromkeys(random, 0)}, random
        )


def start_from(
    params: Any,
    prior: posteriors.Prior,
    init_scale: float,
    f: Callable[..., Any] | None = None,
    inputs: tuple[Any, ...] = (),
) -> tuple[Any, dict[str, float | None], posteriors.Random]:
    """Starts a guide at parameters, or at the moments of another posterior.

    Args:
        params: Pytree of parameters, or any posterior.
        prior: See `jaxeff.bayes.posteriors`.
        init_scale: Standard deviation to start with; of a posterior, the least one.
        f: ``f(params, *inputs) -> outputs``, which tells fan-ins.
        inputs: The inputs; only their shapes play a part.

    Returns:
        The means, the prior's standard deviations and those to start with, by path.

    Raises:
        ValueError: The scale isn't positive, or the prior doesn't fit the parameters.
    """
    core.check_number("init_scale", init_scale, above=0)
    centre = posteriors.without_factors(params) if posteriors.is_posterior(params) else params
    core.check_params("params", centre)
    means = jax.tree.map(
        lambda leaf: leaf.mean if is_gaussian(leaf) else leaf, centre, is_leaf=is_gaussian
    )
    scales = prior_scales(prior, means, f if inputs else None, *inputs)
    leaves = posteriors.named_leaves(centre, is_leaf=is_gaussian)
    stds = {
        # One for each parameter, also of arrays that share a variance, and at least `init_scale`:
        # draws that agree in a number leave it no spread to start from.
        path: jnp.broadcast_to(
            jnp.maximum(leaves[path].std, init_scale) if is_gaussian(leaves[path]) else init_scale,
            mean.shape,
        ).astype(mean.dtype)
        for path, mean in posteriors.random_part(means, scales).items()
    }
    return means, scales, stds


def make_loss(
    f: Callable[..., Any],
    guide: Guide,
    scales: posteriors.Scales,
    of_outputs: Loss,
    schedule: optax.Schedule,
    examples: int,
    particles: int = 1,
) -> Callable[..., Any]:
    """Makes the variational objective per example, as `jaxeff.training.make_epoch` takes it.

    Args:
        f: ``f(params, *inputs) -> outputs``.
        guide: The guide.
        scales: Prior standard deviation by parameter path (`prior_scales`).
        of_outputs: Loss of the outputs.
        schedule: KL weight by step.
        examples: Size of the whole data set.
        particles: Parameter draws per step.

    Returns:
        ``loss(key, numbers, state, batch, step)``; ``numbers`` from `Guide.start`.
    """

    def particle(key: PRNGKeyArray, numbers: Any, inputs: list[Any]) -> tuple[Any, Any]:
        params, divergence = guide.draw(key, numbers, scales)
        return f(params, *inputs), divergence

    def loss(key: Any, numbers: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        *inputs, targets = batch
        if particles == 1:  # not vmapped: grouped convolutions are slow on a CPU
            drawn = particle(key, numbers, inputs)
            outputs, divergences = jax.tree.map(lambda leaf: leaf[None], drawn)
        else:
            # On one batch: particles lower the variance over weights, not over examples.
            draws = jax.vmap(lambda k: particle(k, numbers, inputs))
            outputs, divergences = draws(jax.random.split(key, particles))
        nll, divergence = of_outputs(outputs, targets), divergences.mean()
        weight = jnp.asarray(schedule(step), nll.dtype)
        metrics = {"nll": nll, "kl": divergence, "kl_weight": weight}
        # Per example: the KL term belongs to the whole data set, so a batch's mean NLL gets KL / N.
        return nll + weight / examples * divergence, (metrics, state)

    return loss


@dataclass(frozen=True)
class VariationalProblem:
    """What a variational run fits, and from where.

    Attributes:
        f: ``f(params, *inputs) -> outputs``.
        params: Parameters at which the posterior means start.
        scales: Prior standard deviations by path.
        stds: Standard deviations to start with, by path.
        guide: The guide.
        likelihood: Meaning of the outputs.
        of_outputs: Loss of the outputs.
    """

    f: Callable[..., Any]
    params: Any
    scales: posteriors.Scales
    stds: posteriors.Random
    guide: Guide
    likelihood: posteriors.Likelihood
    of_outputs: Loss

    def posterior(self, state: TrainState) -> Any:
        """Returns the posterior of a state of the training."""
        # The guide's numbers are what is trained, in the place of parameters.
        return self.guide.posterior(state.params, self.scales)

    def result(self, last: TrainState, history: list[dict[str, Any]]) -> SVIResult:
        """Returns the result of a training that ended, or was stopped, at a state."""
        posterior = self.posterior(last)
        if isinstance(posterior, CorrelatedPosterior):
            posterior = replace(posterior, likelihood=self.likelihood)
        return SVIResult(posterior, history, self.likelihood)


class VariationalOptions(training.CheckpointOptions, total=False):
    """How a variational run goes; the classes below have the meaning and defaults of its options.

    `settings` are `train`'s.
    """

    batch_size: int
    guide: str | Guide
    init_scale: float
    kl: float | optax.Schedule
    optimizer: optax.GradientTransformation | None
    particles: int
    prior: posteriors.Prior
    settings: Mapping[str, Any] | None


class SVIOptions(VariationalOptions, RunOptions, total=False):
    """How `svi` goes."""

    eval_fn: Callable[[Any], Mapping[str, Any]] | None


@dataclass(frozen=True, kw_only=True)
class Approximation:
    """What a variational run fits to a posterior.

    Attributes:
        guide: The family, by its name or with its settings.
        prior: Standard deviations of the prior.
        init_scale: Standard deviation to start with; of a posterior, the least one.
    """

    guide: str | Guide = "mean_field"
    prior: posteriors.Prior = "fan_in"
    init_scale: float = 1e-4

    def start(
        self, params: Any, f: Callable[..., Any], inputs: tuple[Any, ...]
    ) -> tuple[Any, dict[str, float | None], posteriors.Random]:
        """Starts at parameters or another posterior, as `start_from` does."""
        return start_from(params, self.prior, self.init_scale, f, inputs)


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """How a variational run minimises.

    Attributes:
        epochs: Passes over the data.
        batch_size: Examples per step.
        kl: Final weight of the KL term, or a schedule.
        optimizer: Any optax optimizer; Adam with learning rate 1e-3 if None.
        particles: Parameter draws per step.
    """

    epochs: int
    batch_size: int = 100
    kl: float | optax.Schedule = 0.25
    optimizer: optax.GradientTransformation | None = None
    particles: int = 1

    def schedule(self, steps: int) -> optax.Schedule:
        """Returns the weight of the KL term by step."""
        # Annealed from zero: a full KL term pulls an untrained network to the prior before it fits.
        return self.kl if callable(self.kl) else optax.linear_schedule(0.0, self.kl, max(steps, 1))


@core.forwards(run_epochs, RunOptions)
def train(
    key: PRNGKeyArray,
    problem: VariationalProblem,
    data: Any,
    optimization: Optimization,
    *,
    on_epoch: Callable[[int, Any, dict[str, Any]], None] | None = None,
    eval_fn: Callable[[Any], Mapping[str, Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> SVIResult:
    """Minimises a variational objective, from ``(*inputs, targets)`` or `jaxeff.training.Batches`.

    `on_epoch` is called with each epoch's index, state and record; `eval_fn`, `settings` and `run`
    are those of `jaxeff.bayes.svi`.
    """
    core.check_count("particles", optimization.particles)
    source = data if isinstance(data, training.Batches) else None
    sample = data if source is None else source.first
    examples = len(jax.tree.leaves(data)[0]) if source is None else _examples(source)
    batch_size = optimization.batch_size if source is None else source.size
    steps = optimization.epochs * (examples // max(batch_size, 1))
    schedule = optimization.schedule(steps)
    optimizer = optax.adam(1e-3) if optimization.optimizer is None else optimization.optimizer
    guide, scales = problem.guide, problem.scales
    loss = make_loss(
        problem.f, guide, scales, problem.of_outputs, schedule, examples, optimization.particles
    )

    def evaluate(train_state: TrainState) -> Mapping[str, Any]:
        return eval_fn(problem.posterior(train_state)) if eval_fn else {}

    # `fold_in` with a number that no epoch has: the start and the epochs draw independently.
    numbers = guide.start(jax.random.fold_in(key, START), problem.params, problem.stds)
    start = training.init(numbers, optimizer)
    identity = None
    if run.get("checkpoint") is not None:
        described = {
            **(settings or {}),
            "batch_size": batch_size,
            "particles": optimization.particles,
            "prior": scales,
            "likelihood": posteriors.likelihood_name(problem.likelihood),
            "guide": repr(guide),
            # A schedule is known by its values at nine points of the run.
            "kl": [float(schedule(step)) for step in np.linspace(0, steps, 9).astype(int)],
        }
        parts = describe_training(key, loss, optimizer, start, sample, batch_size)
        identity = training.identify(key, data, described, parts)
    epoch = make_epoch(loss, optimizer, None if source else batch_size, core.Shards.of(sample))
    try:
        return problem.result(
            *run_epochs(
                key, epoch, start, data, epochs=optimization.epochs,
                eval_fn=evaluate if eval_fn else None, on_epoch=on_epoch, identity=identity, **run,
            )
        )  # fmt: skip
    except core.InterruptedRun as error:
        error.result = error.result and problem.result(*error.result)
        raise


def _examples(source: training.Batches) -> int:
    """Counts the examples of an epoch, which the weight of the KL term depends on."""
    if source.length is None:
        raise ValueError(
            "svi: the KL term's share of a batch depends on how many batches there are, which is "
            "unknown: give training.Batches(data, length=...)"
        )
    return source.length * source.size


MARGIN = 0.05
"""Nats by which the NLL of a run must be lower than that of a guess."""
NEAR_PRIOR = 0.32
"""A posterior is about the prior if the KL is below so many nats for each random parameter: what a
standard deviation half of the prior's gives."""


class CollapseWarning(UserWarning):
    """A posterior that is about the prior, with predictions that ignore the inputs.

    A run may collapse to the prior (`CollapseWarning`). A posterior that is about the prior again
    predicts every example alike (Klein's thesis, section 7.3.2): the objective is then at a local
    optimum, which more training doesn't leave.
    """


def guess_nll(likelihood: posteriors.Likelihood, targets: Any) -> float | None:
    """Computes the NLL of the best prediction that ignores the inputs.

    Returns nats per example: by class frequencies, or a Gaussian of the targets' mean and variance;
    None for another likelihood.
    """
    if isinstance(likelihood, posteriors.PerOutput):
        each = [guess_nll(one, targets[name]) for name, one in likelihood.parts]
        return None if None in each else sum(filter(None, each))
    targets = np.asarray(core.to_host(targets))
    if likelihood == "categorical":
        # The entropy of class frequencies is the NLL of always predicting them.
        shares = np.bincount(targets.ravel()) / targets.size
        tokens = targets.size // len(targets)  # an example's are summed
        return float(-tokens * sum(p * np.log(p) for p in shares if p > 0))
    if likelihood == "gaussian":
        # The entropy of a Gaussian of the targets' variance, 1/2 log(2 pi e var).
        variances = targets.reshape(len(targets), -1).var(0)
        return float(0.5 * np.log(2 * np.pi * np.e * variances).sum()) if variances.all() else None
    return None


def warn_if_collapsed(record: Mapping[str, Any], guess: float | None, size: int) -> None:
    """Warns if a run collapsed to the prior.

    The record is an epoch's: ``epoch``, ``nll`` and ``kl``; `guess` is the NLL of a prediction that
    ignores the inputs, None if it isn't known; `size` the number of random parameters.
    """
    nll, each = record["nll"], record["kl"] / size
    # Collapsed means both: predictions that ignore the inputs, and a posterior that is the prior.
    if guess is None or nll < guess - MARGIN or each > NEAR_PRIOR:
        return
    warnings.warn(
        f"after {record['epoch'] + 1} epochs the network says 'I don't know' to everything: its "
        f"NLL of {nll:.3g} nats per example is no better than a guess that ignores the inputs "
        f"({guess:.3g}), and its posterior is about the prior ({each:.2g} nats of KL for each of "
        f"{size:,} random parameters). It rarely recovers. Start from trained parameters and a "
        "smaller init_scale, or lower kl or anneal it more slowly.",
        CollapseWarning,
        stacklevel=3,
    )


@core.validate(
    kl=core.any_of(core.function_of_form("kl(step)"), core.non_negative),
    params=core.posterior_like,
    data=training.or_batches(core.supervised_data),
    init_scale=core.positive,
    particles=core.static_integer(),
    eval_fn=core.function_of_form("eval_fn(posterior)"),
    calibrate=lambda where, x: None if x is None else core.input_batch(where, x),
)
@core.forwards((Optimization, Approximation, train), SVIOptions)
def svi(
    key: jax.Array,
    f: Callable[..., Any],
    params: Any,
    data: Any,
    *,
    epochs: int,
    likelihood: posteriors.Likelihood = "categorical",
    calibrate: Any = None,
    **options: Unpack[SVIOptions],
) -> SVIResult:
    """Fits a variational posterior over the parameters of ``f``.

    Sharp edges:

    - Large initial variances end in a network that knows nothing; hence 1e-4. Then most of a short
      run is spent growing them: the raw scales start near -9 and Adam moves them by about its
      learning rate per step. For runs of a few epochs start at 1e-2 or so: LeNet-5 on MNIST,
      trained for two epochs and then by SVI for six (``init_scale=1e-2``, Adam at 3e-3 with cosine
      decay), reached 99.1 % and an AUROC of 0.98 against Fashion-MNIST by mutual information of 30
      samples.
    - A final KL weight below 1 is a cold posterior: variances come out smaller than Bayes' rule
      would have them.
    - A second call with data of the same shapes and as many epochs compiles nothing where ``f``,
      and a likelihood or schedule that is a function, are the same objects; a guide or an optimizer
      may be made anew.
    - Batch statistics can't be sampled; give a function that treats them as constants.

    Args:
        key: Random key; the run is a function of it and of the other arguments.
        f: ``f(params, *inputs) -> outputs``, e.g. from `jaxeff.functional`.
        params: Starting point of the posterior means: trained parameters for a warm start, fresh
            ones otherwise (the thesis starts them all at 0.08). Those without a prior are trained
            as they are. Or any posterior: means and standard deviations then start at its; from a
            sampler's draws take `around_best_draw`.
        data: ``(*inputs, targets)``: arrays (or pytrees) with a common first axis of examples. Or
            batches of these, as for `jaxeff.training.fit`, of a known length.
        epochs: Passes over the data, including those before a resume.
        likelihood: ``"categorical"`` (outputs are logits, targets integer classes), ``"gaussian"``
            (outputs are mean and log-variance), or a function from the outputs to a NumPyro
            distribution of the targets, such as ``lambda mean: dist.Normal(mean, 0.1)``. Where
            ``f`` returns a dictionary, a dictionary of these by output; targets are one then too.
        calibrate: A batch of inputs like those to come, one array or a tuple of arguments, such as
            the first 256 of the data: what the variances of `jaxeff.moments(f)` have to be
            multiplied by is then measured on them (`jaxeff.calibrate_moments`), for 6,400 runs of
            ``f`` on one input, and the posterior is returned with these factors. For the
            mean-field guide; others keep their correlations in draws, and are calibrated after.
        **options: `guide`, the family of the posterior: ``"mean_field"``, ``"low_rank"``,
            ``"full_rank"``, ``"flow"``, or a guide with its settings, such as
            ``LowRank(rank=20)``. `prior`: standard deviations; see `jaxeff.bayes.posteriors`.
            `init_scale`: standard deviation that the posterior starts with, 1e-4; if ``params`` is
            a posterior, the least one.

            `batch_size`: examples per step, 100; an incomplete last batch is left out of the epoch.
            Batches have a size by themselves. `kl`: final weight of the KL term, 0.25, reached
            linearly from 0 over the whole run, or an optax schedule of the step:
            ``optax.constant_schedule(1.0)`` is the plain evidence bound, and
            ``optax.join_schedules([ramp] * 3, [n, 2 * n])`` anneals in three cycles of n steps.
            `optimizer`: any optax optimizer; Adam with learning rate 1e-3 if None. `particles`:
            weight draws per step, all on the same batch, 1.

            `eval_fn`: ``eval_fn(posterior) -> metrics``, added to an epoch's record. `settings`:
            further facts that define the run, as JSON; a checkpoint with other settings is refused.
            `eval_every`, `checkpoint`, `checkpoint_every`, `resume` and `progress`, as for
            `jaxeff.training.fit`; a checkpoint of another start, function, likelihood or optimizer,
            or of other data or numbers, is refused.

    Returns:
        The posterior and the history of the training.

    Raises:
        ValueError: Data that don't fit together or hold less than a batch, labels out of range,
            a likelihood that is NaN at the start, a prior or scale that isn't positive, a guide
            that is unknown or too large for the number of parameters.
        TypeError: A parameter or label has the wrong dtype, or an argument is of another kind: a
            Flax model for ``f`` or ``params``, a result for its posterior, a key that is none.
        DivergedError: The objective became NaN or infinite; names the epoch.
        CheckpointError: The checkpoint is damaged, of another model or of another run.
        InterruptedRun: Ctrl-C; its ``result`` is that of the finished epochs, if there are any.

    Warns:
        CollapseWarning: After half of the epochs or at the end, the posterior is about the prior
            and predicts no better than a guess.
    """
    optimization = Optimization(epochs=epochs, **core.options_for(Optimization, options))
    approximation = Approximation(**core.options_for(Approximation, options))
    likelihood = posteriors.hashable_likelihood(likelihood)
    source = training.Batches.of(data)
    sample = data if source is None else source.first
    if source is not None:
        core.supervised_data("svi: data", sample)
        optimization = replace(optimization, batch_size=source.size)
    if (shards := core.Shards.of(sample)) is not None:
        sample, (key, params) = shards.spread(sample), shards.replicated((key, params))
    problem = _problem(f, params, sample, likelihood, approximation, optimization.batch_size)
    if calibrate is not None and not isinstance(problem.guide, MeanField):
        raise ValueError(
            f"svi: calibrate needs the mean-field guide, not {problem.guide!r}, whose draws have "
            "correlations that a Gaussian per parameter hasn't; take jaxeff.calibrate_moments(key, "
            "f, result.posterior, x) for moments, and result.posterior for draws"
        )
    result = train(
        key, problem, source or sample, optimization,
        on_epoch=_collapse_watch(problem, sample[-1], epochs),
        **core.options_for(train, options),
    )  # fmt: skip
    if calibrate is None:
        return result
    posterior = calibrate_moments(
        jax.random.fold_in(key, START - 1), f, result.posterior, *core.as_arguments(calibrate),
        progress=options.get("progress"),
    )  # fmt: skip
    return result._replace(posterior=posterior)


def _problem(
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    likelihood: posteriors.Likelihood,
    approximation: Approximation,
    batch_size: int,
) -> VariationalProblem:
    """Puts together what is fitted, once parameters, data and likelihood are found to fit."""
    # One batch, whose shapes tell fan-ins.
    inputs = jax.tree.map(lambda leaf: leaf[: max(batch_size, 1)], tuple(data[:-1]))
    params, scales, stds = approximation.start(params, f, inputs)
    posteriors.check_data(params, data)
    # Otherwise `run_epochs` says what is wrong.
    if len(jax.tree.leaves(data)[0]) >= batch_size > 0:
        posteriors.check_likelihood(f, params, data, likelihood, batch_size)
    guide = resolve_guide(approximation.guide)
    return VariationalProblem(f, params, scales, stds, guide, likelihood, mean_nll(likelihood))


def _collapse_watch(
    problem: VariationalProblem, targets: Any, epochs: int
) -> Callable[[int, Any, dict[str, Any]], None]:
    """Makes what warns, halfway and at the end of a run, if it collapsed to the prior."""
    size = sum(std.size for std in problem.stds.values())
    guess = guess_nll(problem.likelihood, targets)

    def on_epoch(epoch: int, _: Any, record: dict[str, Any]) -> None:
        # Halfway too, while there is time to start again.
        if epoch + 1 in (epochs // 2, epochs):
            warn_if_collapsed(record, guess, size)

    return on_epoch


def mean_nll(likelihood: posteriors.Likelihood) -> Loss:
    """Makes the negative log-likelihood per example, averaged over draws."""
    distribution = posteriors.resolve_likelihood(likelihood)

    def nll(outputs: Any, targets: Any) -> Float[Array, ""]:
        # The mean of log-likelihoods, not the log of their mean: the ELBO's expectation over q.
        of_draws = jax.vmap(lambda each: distribution(each).log_prob(targets).sum())(outputs)
        return -of_draws.mean() / len(jax.tree.leaves(targets)[0])

    return nll
