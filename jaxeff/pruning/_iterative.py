"""`prune_iteratively`: prune a little, train on, again; a run that can be killed at any moment.

```python
import optax
from jaxeff.nn import small_classifier
from jaxeff.pruning import Budget, Prune, prune_iteratively
from jaxeff.training import cross_entropy
import jax

f, params, data = small_classifier()
run = prune_iteratively(
    jax.random.key(0), f, params, data, {"*": Prune(0.9)},
    [Budget(macs=share) for share in (0.8, 0.6)],
    loss=cross_entropy, optimizer=optax.adam(1e-3), epochs=1, batch_size=64, folder="run",
)
logits = run.f(run.params, data[0])
```

Every round plans on the model that the last one left, by the scores of its weights, and trains the
smaller model; budgets are shares of the first one. The result is one plan for the whole model.

With a `folder`, a round is a line of `rounds.jsonl`, its plan, written before it trains, and a
checkpoint of `fit`. A run that is started again takes both as they are and comes to the same
numbers. A folder of another run is refused.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Required, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxeff import core, training
from jaxeff.pruning._budget import Budget, macs, parameters
from jaxeff.pruning._plan import Plan
from jaxeff.pruning._prune_plan import Prune, prune_plan
from jaxeff.pruning._pruned import pruned
from jaxeff.pruning.dependencies import PlanError, channels, leaf_path
from jaxeff.pruning.dependencies import kept as kept_indices
from jaxeff.pruning.scores import Score, l1
from jaxeff.store import Journal, run_identity
from jaxeff.training import Loss, describe_training, fit

Model = Callable[..., Any]


class Pruned(NamedTuple):
    """The result of iterative pruning.

    Attributes:
        f: The smaller model, `f(params, *args)`.
        params: The parameters of `f`.
        state: The state of `f`; None if it has none.
        plan: Channels kept of the whole model.
        rounds: One record per round: its share, how many parameters and MACs are left of the whole
            model, and the history of its training.
    """

    f: Model
    params: Any
    state: Any
    plan: Plan
    rounds: list[dict[str, Any]]


class RoundOptions(TypedDict, total=False):
    """How rounds train, and how they are kept; `RoundSettings` has their meaning and defaults."""

    optimizer: Required[optax.GradientTransformation]
    epochs: Required[int]
    batch_size: Required[int]
    score: Callable[[Model], Score] | None
    state: Any
    inputs: Any
    folder: str | os.PathLike[str] | None
    settings: Mapping[str, Any] | None
    on_round: Callable[[int, Plan], None] | None
    on_epoch: Callable[[int, Any, dict[str, Any]], bool | None] | None
    progress: bool | None


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """How rounds of pruning train, and how they are kept.

    Attributes:
        optimizer: Any optax optimizer.
        epochs: Passes over the data per round.
        batch_size: Examples per update.
        score: `score(f)` gives the score for a model; `l1` without it.
        state: The model's state, from `functional(model, mutable=True)`.
        inputs: The `x` that MACs are counted for; one example of the data without it.
        folder: Folder that keeps the run; None keeps nothing.
        settings: Anything else that defines the run, as JSON.
        on_round: Called with a round's number and plan before it trains.
        on_epoch: Same as for `fit`.
        progress: Whether to show bars.
    """

    optimizer: optax.GradientTransformation
    epochs: int
    batch_size: int
    score: Callable[[Model], Score] | None = None
    state: Any = None
    inputs: Any = None
    folder: str | os.PathLike[str] | None = None
    settings: Mapping[str, Any] | None = None
    on_round: Callable[[int, Plan], None] | None = None
    on_epoch: Callable[[int, Any, dict[str, Any]], bool | None] | None = None
    progress: bool | None = None

    def described(
        self, spec: Mapping[str, Prune | None], budgets: Sequence[Budget]
    ) -> dict[str, Any]:
        """Lists what tells one run from another, as JSON."""
        return {
            "budgets": [repr(_share(b)) for b in budgets],
            "spec": {pattern: repr(setting) for pattern, setting in spec.items()},
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            **(self.settings or {}),
        }

    def journal(
        self, key: jax.Array, loss: Loss, params: Any, data: Any, described: Mapping[str, Any]
    ) -> Journal | None:
        """Opens the file of the rounds' plans, if a folder keeps them.

        What decides the result is hashed: a folder of another run must not be taken up.
        """
        if self.folder is None:
            return None
        start = training.init(params, self.optimizer, self.state)
        parts = describe_training(key, loss, self.optimizer, start, data, self.batch_size)
        return Journal(
            Path(self.folder) / "rounds.jsonl", run_identity(key, data, described, parts)
        )

    def checkpoint(self, number: int) -> Path | None:
        """Names the file that keeps the training of a round."""
        return None if self.folder is None else Path(self.folder) / f"round-{number}.safetensors"


@core.validate(
    data=core.aligned_arrays,
    spec=core.string_mapping,
    loss=core.function_of_form("loss(f)"),
    epochs=core.static_integer(0),
    score=core.function_of_form("score(f)"),
    inputs=core.input_batch,
    on_round=core.function_of_form("on_round(round, plan)"),
    on_epoch=core.function_of_form("on_epoch(epoch, train_state, row)"),
)
@core.forwards(RoundSettings, RoundOptions)
def prune_iteratively(
    key: jax.Array,
    f: Model,
    params: Any,
    data: Any,
    spec: Mapping[str, Prune | None],
    budgets: Sequence[Budget],
    *,
    loss: Callable[[Model], Loss],
    **options: Unpack[RoundOptions],
) -> Pruned:
    """Prunes a model round by round, training in between.

    Sharp edges:
        The optimizer starts anew in every round: its schedules count the updates of a round.
        The settings of a score, and a budget's own measure, can't be seen from outside: they belong
        in `settings`. Loss, optimizer and model are read.

    Args:
        key: Random key; round i trains with `fold_in(key, i)`.
        f: A pure function `f(params, x)`, or `f(params, state, x)` with a state.
        params: Trained parameters.
        data: Same as for `jaxeff.training.fit`.
        spec: Same as for `prune_plan`; ratios are the most that may go in one round.
        budgets: A budget per round, each a share of what the whole model costs.
        loss: `loss(f)` gives the loss of a model, as `cross_entropy` does.
        **options: `optimizer`, any of optax; `epochs`, the passes over the data per round;
            `batch_size`, the examples per update. `score`, where `score(f)` gives the score for a
            model, such as `lambda f: taylor(of(f), batches)`, and `l1` without it. `state`, the
            model's, from `functional(model, mutable=True)`; `inputs`, the `x` that MACs are counted
            for, of which only shapes matter: without it one example of the first array of `data`.
            `folder`, where the run is kept; `settings`, anything else that defines it, as JSON;
            `on_round`, called with a round's number and plan before it trains; `on_epoch`, as for
            `fit`; `progress`, whether to show bars.

    Returns:
        The smaller model, trained, and the plan.

    Raises:
        PlanError: A budget can't be reached.
        CheckpointError: The folder holds another run.
        ValueError: There are no budgets, or what `prune_plan` and `fit` refuse.
    """
    if not budgets:
        raise ValueError("prune_iteratively needs at least one budget, one per round.")
    asked = RoundSettings(**options)
    x = jax.tree.leaves(data)[0][:1] if asked.inputs is None else asked.inputs
    unpruned = channels(f, params, *_arguments(asked.state, x))
    described = asked.described(spec, budgets)
    kept = asked.journal(key, loss(f), params, data, described)
    plan, small, state = Plan({}, unpruned), params, asked.state
    rounds: list[dict[str, Any]] = []
    for i, budget in enumerate(budgets):
        # A recorded plan is taken as it is: measurements and scores need not come out the
        # same twice.
        if kept is not None and i in kept:
            new = Plan.from_text(kept[i], unpruned, f"round {i} of {kept.path}")
        else:
            new = _next(f, plan, small, _arguments(state, x), spec, budget, asked.score)
            if kept is not None:
                kept.add(i, new.text())
        if asked.on_round is not None:
            asked.on_round(i, new)
        small, state = (_relative(plan, new, tree) for tree in (small, state))
        g = pruned(f, new)
        result = fit(
            jax.random.fold_in(key, i), loss(g), small, data,
            optimizer=asked.optimizer, epochs=asked.epochs, batch_size=asked.batch_size,
            state=state, checkpoint=asked.checkpoint(i), on_epoch=asked.on_epoch,
            settings={"round": i, **described}, progress=asked.progress,
        )  # fmt: skip
        plan, small, state = new, result.params, result.state
        rounds.append(
            {"round": i, "share": _share(budget), **_left(plan), "history": result.history}
        )
    return Pruned(pruned(f, plan), small, state, plan, rounds)


def lifted(plan: Plan, further: Plan) -> Plan:
    """Returns two plans one after the other as one.

    `further` is of the smaller model that `plan` makes. Returns a plan of the first model, that
    keeps what both do.
    """
    plan.concrete()
    keep = {name: np.array(where, bool) for name, where in plan.keep.items()}
    sizes = {group.name: group.size for group in plan.channels}
    for name, where in further.keep.items():
        if name not in sizes:
            raise PlanError(f"the plan is of another model: there is no group {name!r} before it")
        stays = keep.setdefault(name, np.ones(sizes[name], bool))
        if stays.sum() != np.size(where):
            raise PlanError(
                f"{name!r} has {int(stays.sum())} channels left, and the further plan "
                f"{np.size(where)}"
            )
        # The further plan's indices count only the channels that the first one left.
        stays[stays] = np.asarray(where)
    return Plan(keep, plan.channels, {**plan.crossed, **further.crossed})


def _next(
    f: Model,
    plan: Plan,
    small: Any,
    args: tuple[Any, ...],
    spec: Mapping[str, Prune | None],
    budget: Budget,
    score: Callable[[Model], Score] | None,
) -> Plan:
    """Returns the plan of the next round, for the whole model."""
    g = pruned(f, plan)
    what, share = budget.of
    measure = budget.measure
    if measure is None:
        count = {"parameters": parameters, "macs": macs}[what](plan.channels)
        full, now = count({}), count(_counts(plan))
    else:
        full, now = (float(measure(p)) for p in (Plan({}, plan.channels), plan))
    # The budget is a share of the first model; this round's model is smaller already. At
    # most 1: an earlier round may have gone below this one's share.
    relative: dict[str, Any] = {what: min(1.0, share * full / now)}
    if measure is not None:
        relative["measure"] = lambda further: measure(lifted(plan, further))
    scoring = l1 if score is None else score(g)
    further = prune_plan(g, small, args, spec, score=scoring, budget=replace(budget, **relative))
    return lifted(plan, further)


def _relative(before: Plan, after: Plan, tree: Any) -> Any:
    """Returns what a plan leaves of a tree that an earlier one has shrunk already."""
    old, new = before.concrete(), after.concrete()
    unpruned = before.channels

    def back(path: Any, leaf: Any) -> Any:
        name = unpruned.find(leaf_path(path))
        if name is None or not jnp.shape(leaf):
            return leaf
        for i, axis in enumerate(unpruned.leaves[name]):
            # Indices among those left, not among all: the leaf has lost the others already.
            there, stays = kept_indices(axis, old), kept_indices(axis, new)
            if not stays[there].all():
                leaf = leaf[(slice(None),) * i + (np.flatnonzero(stays[there]),)]
        return leaf

    return jax.tree_util.tree_map_with_path(back, tree)


def _counts(plan: Plan) -> dict[Any, int]:
    return {d: int(where.sum()) for d, where in plan.concrete().items()}


def _left(plan: Plan) -> dict[str, float]:
    counts = _counts(plan)
    return {
        name: of(plan.channels)(counts) / of(plan.channels)({})
        for name, of in (("parameters", parameters), ("macs", macs))
    }


def _share(budget: Budget) -> list[Any]:
    return [*budget.of, budget.uniform, budget.normalize]


def _arguments(state: Any, x: Any) -> tuple[Any, ...]:
    return (x,) if state is None else (state, x)
