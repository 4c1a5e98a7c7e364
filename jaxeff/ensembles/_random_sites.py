"""Networks of which some layers are random, as ensembles of draws, and the choice of the layers.

`choose_random` finds them by trying:

```python
import jax
from jaxeff.bayes import laplace
from jaxeff.ensembles import choose_random
from jaxeff.nn import small_classifier

key, (f, params, (x, y)) = jax.random.key(0), small_classifier()
data, held, strange = (x[:192], y[:192]), (x[192:], y[192:]), x[192:, ::-1]
infer = lambda sites: laplace(key, f, params, data, sites, "diag")
choice = choose_random(key, f, params, held, infer, outside=strange, times=4.0)
choice.sites, choice.posterior                  # and, printed, all that was tried
```
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxeff import core
from jaxeff.ensembles._ensemble import Ensemble, Members, chosen_leaves
from jaxeff.moment_propagation import is_gaussian
from jaxeff.program import cost, trace
from jaxeff.program.reading import leaf_names
from jaxeff.uncertainty import auroc, decompose_logits, nll_from_log, predictive_log_probs


@core.validate(count=core.static_integer())
def sampled(
    key: PRNGKeyArray, f: Callable[..., Any], posterior: Any, count: int
) -> tuple[Ensemble, Any]:
    """Makes an ensemble of draws of a posterior.

    What no draw changes runs once, so draws of late layers are cheap:

    ```python
    import jax, jaxeff
    from jaxeff.ensembles import affordable_members, sampled
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    last = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params["fc2"])
    count = affordable_members(f, params, x[:1], "fc2", times=2.0)  # for twice the MACs
    g, draws = sampled(jax.random.key(0), f, {**params, "fc2": last}, count)
    logits = g(draws, x)                                       # [draws, batch, classes]
    ```

    A posterior over some layers (SVI with a prior of None elsewhere, a Laplace approximation of a
    last layer) and an ensemble with members at some sites are then one function, and may be
    compared at equal cost.

    Args:
        key: Random key.
        f: `f(params, *args)`.
        posterior: Any posterior; parameters that aren't random are shared by all draws.
        count: Number of draws.

    Returns:
        The function and its parameters, as `jaxeff.ensemble` returns them.

    Raises:
        TypeError: It is no posterior, or an argument is of another kind.
        ValueError: The count is below 1, or there are fewer draws.
    """
    from jaxeff import bayes  # NumPyro and BlackJAX come with it

    # Only which of them are random is asked here, so what they have in common doesn't matter.
    gaussians = bayes.posteriors.without_factors(posterior, diagonal=True)
    leaves = jax.tree.leaves(gaussians, is_leaf=is_gaussian)
    random = [is_gaussian(leaf) for leaf in leaves]
    draws, structure = jax.tree.flatten(bayes.sample(key, posterior, count))
    # A fixed parameter is the same in all draws: shared, so what it feeds runs once.
    params = [each if is_random else each[0] for each, is_random in zip(draws, random, strict=True)]
    tree = jax.tree.unflatten(structure, params)
    names = [name for name, is_random in zip(leaf_names(tree), random, strict=True) if is_random]
    # Tied: a weight that several sites read is one random number, with the same draws at all.
    return Ensemble(f, count, dict.fromkeys(names, Members(count, tied=True))), tree


@core.validate(
    x=core.input_batch, pattern=core.any_of(core.string, core.string_sequence), times=core.positive
)
def affordable_members(
    f: Callable[..., Any], params: Any, x: Any, pattern: str | Sequence[str], *, times: float
) -> int:
    """Computes how many members of a site, or draws of its parameters, fit a budget.

    ```python
    from jaxeff.ensembles import affordable_members
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    count = affordable_members(f, params, x[:1], "fc2", times=2.0)  # for twice the MACs
    ```

    Args:
        f: `f(params, x)`.
        params: The parameters of `f`.
        x: Inputs; shapes are enough.
        pattern: Pattern of the sites that have members, as `jaxeff.ensemble` takes it, or several.
        times: The budget, in multiples of the network's own multiplications.

    Returns:
        At least 1: what multiplies nothing behind it is bought once.

    Raises:
        SpecError: The pattern matches no parameter.
        ValueError: The budget is below one network.
    """
    core.check_number("affordable_members: times", times, 1)

    def macs(count: int) -> int:
        patterns = (pattern,) if isinstance(pattern, str) else pattern
        chosen = chosen_leaves(dict.fromkeys(patterns, Members(count, tied=True)), params)
        g = Ensemble(f, count, chosen)
        leaves, structure = jax.tree.flatten(params)
        stacked = [
            jax.ShapeDtypeStruct((count, *jnp.shape(leaf)), jnp.result_type(leaf))
            if name in chosen else leaf
            for name, leaf in zip(leaf_names(params), leaves, strict=True)
        ]  # fmt: skip
        return cost(g, jax.tree.unflatten(structure, stacked), x).macs

    single, two = cost(f, params, x).macs, macs(2)
    # Cost is linear in members: one network, then `two - single` for each further one.
    return max(1, int(1 + (times - 1) * single / max(two - single, 1) + 1e-9))


class SiteTrial(NamedTuple):
    """A set of random sites that was tried.

    Attributes:
        sites: The sites; none for the network as it is.
        draws: How many draws the budget pays for.
        nll: Negative log-likelihood of the held-out examples, in nats.
        auroc: How well mutual information tells them from inputs from elsewhere; NaN without any.
    """

    sites: tuple[str, ...]
    draws: int
    nll: float
    auroc: float


@core.shown_as_table
@dataclass(frozen=True, eq=False)
class RandomSites:
    """The sites that were chosen, and what was tried.

    Which layers should be Bayesian (Sharma et al. 2023, arXiv:2211.06291, ask whether all)? Sites
    are added one by one, greedily. Each set gets as many draws as the budget pays for, so that
    layers near the output, behind which less has to run again, have more (`affordable_members`). Of
    the sets that a step tries the one is taken that is best by negative log-likelihood and by how
    well mutual information finds inputs from elsewhere: the smallest sum of its places in the two
    orders. It ends where no set improves either. How posteriors are inferred is the caller's.

    Sharp edges:
        Greedy: two sites that only help together aren't found.
        The held-out examples choose; judge the result by others.

    Attributes:
        sites: The chosen sites, in the order in which they were added.
        posterior: The posterior of them; None if no set beats the network as it is.
        trials: All sets that were tried, the network as it is first.
    """

    sites: tuple[str, ...]
    posterior: Any
    trials: tuple[SiteTrial, ...]

    def _table(self) -> core.Table:
        rows = [
            (", ".join(t.sites) or "none", str(t.draws), f"{t.nll:.4f}", f"{t.auroc:.4f}",
             "chosen" if t.sites == self.sites else "")
            for t in self.trials
        ]  # fmt: skip
        return core.Table(("random", "draws>", "NLL>", "AUROC>", ""), rows)


class DrawOptions(TypedDict, total=False):
    """How many draws a posterior gets; `DrawBudget` has their meaning and defaults."""

    times: float
    samples: int


@dataclass(frozen=True, kw_only=True)
class DrawBudget:
    """What the draws of a posterior may cost.

    Attributes:
        times: Cost of all draws at most, in multiples of the network's own multiplications.
        samples: Draws at most.
    """

    times: float = 10.0
    samples: int = 100

    def draws(self, f: Callable[..., Any], params: Any, x: Any, sites: Sequence[str]) -> int:
        """Counts the draws of a posterior that is random at some sites."""
        return min(self.samples, affordable_members(f, params, x[:1], sites, times=self.times))


@core.validate(
    infer=core.function_of_form("infer(sites)"),
    validation=core.supervised_data,
    outside=core.input_batch,
    times=core.positive,
    sites=core.string_sequence,
    samples=core.static_integer(2),
)
@core.forwards(DrawBudget, DrawOptions)
def choose_random(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    validation: tuple[Any, Any],
    infer: Callable[[tuple[str, ...]], Any],
    *,
    outside: Any = None,
    sites: Sequence[str] | None = None,
    **draws: Unpack[DrawOptions],
) -> RandomSites:
    """Finds sites whose weights should be random.

    Args:
        key: Random key of the draws, the same for all sets.
        f: `f(params, x) -> logits [batch, classes]`.
        params: Trained parameters.
        validation: `(x, labels)` that were held out.
        infer: `infer(sites) -> posterior` whose weights are random at these sites.
        outside: Inputs from elsewhere; if None, the likelihood alone decides.
        sites: The sites to choose from; all that have weights if None.
        **draws: `times`, what all draws may cost, in multiples of the network's own
            multiplications, 10; and `samples`, the draws at most, 100.

    Returns:
        The sites, their posterior and all trials.

    Raises:
        ValueError: There is no site with weights, or the data don't fit together.
        SpecError: A site isn't there.
    """
    x, _ = validation
    free = list(_with_weights(f, params, x) if sites is None else sites)
    if not free:
        raise ValueError("choose_random: there are no sites with weights to choose from")

    budget = DrawBudget(**draws)

    def judged(chosen: tuple[str, ...]) -> tuple[SiteTrial, Any] | None:
        count = budget.draws(f, params, x, chosen)
        if count < 2:  # one draw knows nothing of the spread
            return None
        posterior = infer(chosen)
        return _trial(key, f, posterior, chosen, count, validation, outside), posterior

    best, posterior = _alone(f, params, validation, outside), None
    trials = [best]
    while free:
        tried = [judged((*best.sites, site)) for site in free]
        judgements = [each for each in tried if each is not None]
        trials += [trial for trial, _ in judgements]
        better = [each for each in judgements if _improves(each[0], best)]
        if not better:
            break
        best, posterior = better[_first([trial for trial, _ in better])]
        free = [site for site in free if site not in best.sites]
    return RandomSites(best.sites, posterior, tuple(trials))


def _with_weights(f: Callable[..., Any], params: Any, x: Any) -> list[str]:
    layers = trace(f, params, x).sites
    return [each.site for each in layers if each.weights and each.is_matchable]


def _alone(f: Callable[..., Any], params: Any, validation: Any, outside: Any) -> SiteTrial:
    x, labels = validation
    nll = float(nll_from_log(jax.nn.log_softmax(f(params, x)), jnp.asarray(labels)))
    # Without draws there is no mutual information: all inputs look the same.
    return SiteTrial((), 1, nll, float("nan") if outside is None else 0.5)


def _trial(
    key: PRNGKeyArray, f: Any, posterior: Any, sites: Any, count: int, validation: Any, outside: Any
) -> SiteTrial:
    # NumPyro and BlackJAX come with it.
    from jaxeff.bayes import predict

    x, labels = validation
    logits = predict(key, f, posterior, x, samples=count)
    nll = float(nll_from_log(predictive_log_probs(logits), jnp.asarray(labels)))
    if outside is None:
        return SiteTrial(sites, count, nll, float("nan"))
    others = predict(key, f, posterior, outside, samples=count)
    scores = (decompose_logits(each).epistemic for each in (logits, others))
    return SiteTrial(sites, count, nll, float(auroc(*scores)))


def _improves(trial: SiteTrial, best: SiteTrial) -> bool:
    return trial.nll < best.nll or trial.auroc > best.auroc


def _first(trials: list[SiteTrial]) -> int:
    """Returns the index of the smallest sum of places, the likelihood's first where it ties."""
    by_nll = sorted(range(len(trials)), key=lambda i: trials[i].nll)
    by_auroc = sorted(range(len(trials)), key=lambda i: -trials[i].auroc)
    if any(trial.auroc != trial.auroc for trial in trials):
        return by_nll[0]
    return min(by_nll, key=lambda i: by_nll.index(i) + by_auroc.index(i))
