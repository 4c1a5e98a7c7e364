"""Channels removed by every score at the same cost, before and after training on."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import jaxeff
from experiments.classifiers import Trained, accuracy, how_to_train
from experiments.harness import Row, Run
from experiments.pruning.recipe import Settings, Subject
from jaxeff.pruning import Budget, Plan, Prune, prune_plan, pruned
from jaxeff.pruning import scores as scoring
from jaxeff.training import cross_entropy, fit

SCORES = (
    "random", "l1", "geometric median", "slimming", "taylor", "brain damage",
    "reconstruction", "determinantal",
)  # fmt: skip
MOST = 0.9
"""Of a layer's channels, at most so many go."""


def scores(run: Run[Settings], model: Trained) -> dict[str, Callable[[], Any]]:
    """By name, what makes a score for a model."""
    x = model.calibration(run.settings.calibration)
    y = jnp.asarray(model.images.train[1][: run.settings.calibration])
    state, key = model.state, jax.random.fold_in(run.fast_key, 300 + model.seed)

    def f(params: Any, x: Any) -> Any:
        return model.network.evaluate(params, state, x)[0]

    def loss(params: Any, batch: Any) -> jax.Array:
        images, labels = batch
        each = optax.softmax_cross_entropy_with_integer_labels(f(params, images), labels)
        return each.mean()

    batches = [(x[i : i + 64], y[i : i + 64]) for i in range(0, len(x) - 63, 64)]
    return {
        "random": lambda: scoring.random(key),
        "l1": lambda: scoring.l1,
        "geometric median": lambda: scoring.geometric_median,
        "slimming": lambda: scoring.batch_norm_scale,
        "taylor": lambda: scoring.taylor(loss, batches),
        "brain damage": lambda: scoring.optimal_brain_damage(key, loss, batches),
        "reconstruction": lambda: scoring.reconstruction(model.network.evaluate, (state, x)),
        "determinantal": lambda: scoring.determinantal(model.network.evaluate, (state, x)),
    }


def plan_for(run: Run[Settings], model: Trained, score: Any, macs: float) -> Plan:
    """The channels that stay within a share of the multiply-accumulates."""
    x = model.images.test[0][:1]
    spec = {"*:linear": Prune(MOST, round_to=run.settings.round_to), model.sites[-1]: None}
    budget = Budget(macs=macs)
    f, params, state = model.network.evaluate, model.params, model.state
    return prune_plan(f, params, (state, x), spec, score=score, budget=budget)


def by_score(run: Run[Settings], subject: Subject, model: Trained, name: str, macs: float) -> Row:
    """One score at one cost, of channels that compete over all layers."""
    score = scores(run, model)[name]()
    plan = plan_for(run, model, score, macs)
    return {"score": name, "macs": macs, **measured(run, subject, model, plan)}


def measured(run: Run[Settings], subject: Subject, model: Trained, plan: Plan) -> Row:
    """What a plan leaves, its accuracy, and that after training on."""
    small, state = plan.shrink(model.params), plan.shrink(model.state)
    evaluate = pruned(model.network.evaluate, plan)
    x = model.images.test[0][:1]
    unpruned = jaxeff.cost(model.network.evaluate, model.params, model.state, x)
    left = jaxeff.cost(evaluate, small, state, x)
    trained = retrain(run, subject, model, plan, (small, state), subject.retrain)
    return {
        "subject": subject.name, "seed": model.seed, "macs_left": left.macs / unpruned.macs,
        "params_left": left.params / unpruned.params,
        "before": accuracy(evaluate, (small, state), model.images),
        "after": accuracy(evaluate, trained, model.images),
    }  # fmt: skip


def retrain(
    run: Run[Settings],
    subject: Subject,
    model: Trained,
    plan: Plan,
    start: tuple[Any, Any],
    epochs: int,
    rate: float | None = None,
) -> tuple[Any, Any]:
    """Trains the smaller network, from parameters and a state."""
    params, state = start
    data = tuple(part[: subject.retrain_images] for part in model.images.train)
    how = how_to_train(rate or run.settings.retrain_rate, data, epochs, run.settings.batch_size)
    result = fit(
        jax.random.fold_in(run.fast_key, 400 + model.seed),
        cross_entropy(pruned(model.network.train, plan), mutable=True), params, data,
        state=state, **how,
    )  # fmt: skip
    return result.params, result.state


def against_scratch(run: Run[Settings], subject: Subject, model: Trained, macs: float) -> list[Row]:
    """The small network trained on, trained from new weights as long, and as long as the whole one.

    Liu et al., "Rethinking the Value of Network Pruning", arXiv 1810.05270.
    """
    plan = plan_for(run, model, scores(run, model)["l1"](), macs)
    evaluate = pruned(model.network.evaluate, plan)
    rows = []
    long = subject.epochs * subject.images // subject.retrain_images
    for start, epochs in (("pruned", subject.retrain), ("new", subject.retrain), ("new", long)):
        unpruned = model.params, model.state
        if start == "new":
            unpruned = model.network.init(jax.random.fold_in(run.fast_key, 500 + model.seed))
        rate = run.settings.retrain_rate if start == "pruned" else run.settings.rate
        params, state = (plan.shrink(tree) for tree in unpruned)
        retrained = retrain(run, subject, model, plan, (params, state), epochs, rate)
        rows.append(
            {
                "subject": subject.name, "seed": model.seed, "macs": macs, "start": start,
                "epochs": epochs, "after": accuracy(evaluate, retrained, model.images),
            }
        )  # fmt: skip
    return rows
