"""The methods: chains, variational posteriors, and what is distilled from the chains' draws.

Each keeps its run in a folder, so a run that was killed goes on where it stopped.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.beyond.bridges.problems import Problem, Settings
from experiments.harness import Row, Run
from experiments.recipes import cosine_adam
from jaxeff.bayes import NUTS, distill, mcmc, predict, svi
from jaxeff.bayes.posteriors import resolve_likelihood
from jaxeff.training import fit, stateless

BATCH = 96
FROM_SVI = "mcmc from svi"
"""Chains that start at draws of the variational posterior."""
TARGETS = 8
"""Targets of each input from the teacher's mean prediction."""


def compare(problem: Problem, run: Run[Settings]) -> tuple[list[Row], dict[str, np.ndarray]]:
    """Runs every method on a problem.

    Returns:
        A row for each, and its epistemic uncertainty at the problem's points.
    """
    settings, key = run.settings, jax.random.fold_in(run.key, 99)
    folder = run.work / problem.name
    rows: list[Row] = []
    maps: dict[str, np.ndarray] = {}

    def record(name: str, posterior: Any, samples: int | None) -> None:
        def outputs(x: Any) -> Any:
            return predict(key, problem.f, posterior, x, samples=samples, chunk=20)

        run.say(f"{problem.name}: {name}")
        epistemic = maps[name] = np.asarray(problem.epistemic(outputs(problem.points)))
        distance = np.sqrt(np.mean((epistemic - maps["mcmc"]) ** 2))
        rows.append(
            {
                "problem": problem.name, "method": name,
                "nll": float(problem.nll(outputs(problem.test[0]))),
                "auroc": problem.auroc(jnp.asarray(epistemic)),
                "epistemic_outside": float(epistemic[np.asarray(problem.outside)].mean()),
                "distance_to_mcmc": float(distance),
            }
        )  # fmt: skip

    def training(examples: int, epochs: int, name: str) -> dict[str, Any]:
        steps = epochs * (examples // BATCH)
        return {
            "likelihood": problem.likelihood, "batch_size": BATCH, "epochs": epochs,
            "particles": settings.particles, "optimizer": cosine_adam(settings.rate, steps),
            "checkpoint": folder / f"{name}.safetensors", "checkpoint_every": epochs,
            "settings": {"rate": settings.rate}, "progress": False,
        }  # fmt: skip

    def chained(name: str, init: Any) -> Any:
        result = mcmc(
            key, problem.f, problem.params, problem.train, NUTS(max_depth=settings.max_depth),
            likelihood=problem.likelihood, warmup=settings.warmup, samples=settings.samples,
            chains=settings.chains, monitor=(problem.points[::16],), init=init,
            checkpoint=folder / name.replace(" ", "-"), progress=False,
        )  # fmt: skip
        record(name, result.posterior, None)
        assert result.predictions is not None
        rows[-1]["max_rhat"] = result.predictions.max_rhat
        return result

    chains = chained("mcmc", None)
    point, data = _point_estimate(key, problem, settings), problem.train
    learnt = svi(
        key, problem.f, point, data, kl=settings.kl, init_scale=1e-2,
        **training(len(data[1]), settings.epochs, "svi"),
    )  # fmt: skip
    record("svi", learnt.posterior, settings.draws)
    chained(FROM_SVI, learnt.posterior)
    inputs = problem.unlabelled
    draws = predict(
        key, problem.f, chains.posterior, inputs, samples=settings.teacher_draws, chunk=10
    )
    epochs = max(1, settings.epochs // 4)  # of four times as many inputs
    # The usual way: the expected NLL of targets from the teacher's mean prediction is the
    # cross-entropy to it.
    of_draws = resolve_likelihood(problem.likelihood)(draws).sample(key)
    chosen = jax.random.randint(key, (TARGETS, draws.shape[1]), 0, len(draws))
    targets = jnp.take_along_axis(of_draws, chosen, 0).reshape(-1)
    how = training(len(targets), max(1, epochs // TARGETS), "mean")
    repeated = jnp.tile(inputs, (TARGETS, 1)), targets
    mean = svi(key, problem.f, point, repeated, kl=0.0, init_scale=1e-2, **how)
    record("distilled: mean", mean.posterior, settings.draws)
    student = distill(
        key, problem.f, point, (inputs,), draws, kl=0.0, init_scale=0.1,
        **training(len(inputs), epochs, "draws"),
    )  # fmt: skip
    record("distilled: draws", student.posterior, settings.draws)
    return rows, maps


def _point_estimate(key: jax.Array, problem: Problem, settings: Settings) -> Any:
    distribution = resolve_likelihood(problem.likelihood)

    def loss(key: Any, params: Any, batch: Any) -> Any:
        x, y = batch
        return -distribution(problem.f(params, x)).log_prob(y).mean()

    return fit(
        key, stateless(loss), problem.params, problem.train, optimizer=optax.adam(settings.rate),
        epochs=settings.pretrain_epochs, batch_size=BATCH, progress=False,
    ).params  # fmt: skip
