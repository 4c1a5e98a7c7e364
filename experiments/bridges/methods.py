"""The methods: samplers by where they start, variational posteriors by what they learn from.

Each keeps its run in a folder, so a run that was killed goes on where it stopped.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.bridges.problems import Problem, Settings
from experiments.harness import Row, Run
from experiments.recipes import cosine_adam
from jaxeff.bayes import MCMCResult, around_best_draw, distill, nuts, predict, sample, svi
from jaxeff.bayes.posteriors import resolve_likelihood
from jaxeff.training import fit, stateless

GUIDES = ("mean_field", "low_rank")


class Comparison:
    """Runs the methods on one problem, in an order in which each finds what it builds on.

    Attributes:
        rows: One record for each method.
        maps: Epistemic uncertainty at the problem's points, by method.
    """

    def __init__(self, problem: Problem, run: Run[Settings]):
        self.problem, self.settings = problem, run.settings
        self.folder = run.work / problem.name
        self.rows: list[Row] = []
        self.maps: dict[str, np.ndarray] = {}
        self._say = run.say
        self._key = jax.random.fold_in(run.key, 99)

    def run(self) -> None:
        """Run everything."""
        point = self._point_estimate()
        reference = self._sample("mcmc", self.settings.warmup, None)
        cold = self._infer("svi", point)
        short = self.settings.short_warmup
        starts = sample(self._key, cold.posterior, self.settings.chains)
        self._sample("mcmc, short warm-up, from the prior", short, None)
        self._sample("mcmc, short warm-up, from trained weights", short, point)
        self._sample("mcmc, short warm-up, from svi", short, starts)
        self._infer("svi from mcmc's moments", reference.posterior)
        self._infer("svi from mcmc's best draw", around_best_draw(reference))
        self._distil(point, reference)

    def _point_estimate(self) -> Any:
        problem, settings = self.problem, self.settings
        distribution = resolve_likelihood(problem.likelihood)

        def loss(key: Any, params: Any, batch: Any) -> Any:
            x, y = batch
            return -distribution(problem.f(params, x)).log_prob(y).mean()

        found = fit(
            self._key, stateless(loss), problem.params, problem.train,
            optimizer=optax.adam(settings.rate), epochs=settings.pretrain_epochs, batch_size=96,
            checkpoint=self.folder / "point.safetensors", progress=False,
        )  # fmt: skip
        return found.params

    def _sample(self, name: str, warmup: int, init: Any) -> MCMCResult:
        self._say(f"{self.problem.name}: {name}")
        problem, settings = self.problem, self.settings
        file = self.folder / _file_name(name)
        result = nuts(
            self._key, problem.f, problem.params, problem.train, likelihood=problem.likelihood,
            warmup=warmup, samples=settings.samples, chains=settings.chains, init=init,
            max_depth=settings.max_depth, monitor=(problem.points[::16],), checkpoint=file,
            progress=False,
        )  # fmt: skip
        mixed = result.predictions
        assert mixed is not None
        gradients = sum(int(s["steps"].sum()) for s in (result.stats, result.warmup_stats))
        ess = float(np.nanmedian(mixed.ess))
        self._record(
            name, result.posterior, None, rhat=mixed.max_rhat,
            rhat_median=float(np.nanmedian(mixed.rhat)), ess=ess, gradients=gradients,
            ess_per_1000_gradients=1000 * ess / gradients, ess_per_second=ess / result.seconds[1],
        )  # fmt: skip
        return result

    def _infer(self, name: str, start: Any, data: Any = None, **options: Any) -> Any:
        self._say(f"{self.problem.name}: {name}")
        problem, settings = self.problem, self.settings
        data = problem.train if data is None else data
        batch_size = min(len(data[1]), 96)
        file = self.folder / f"{_file_name(name)}.safetensors"
        result = svi(
            self._key, problem.f, start, data, likelihood=problem.likelihood,
            batch_size=batch_size, checkpoint=file, checkpoint_every=settings.epochs,
            **self._common(len(data[1]) // batch_size) | options,
        )  # fmt: skip
        self._record(name, result.posterior, settings.draws, loss=result.losses[-1])
        return result

    def _distil(self, point: Any, reference: MCMCResult) -> None:
        problem, settings = self.problem, self.settings
        draws = predict(
            self._key, problem.f, reference.posterior, problem.unlabelled,
            samples=settings.teacher_draws, chunk=10,
        )  # fmt: skip
        epochs = max(1, settings.epochs // 4)  # of four times as many inputs
        # The usual way: the expected NLL of targets from the teacher's mean prediction is the
        # cross-entropy to it. Eight such targets for each input.
        of_draws = resolve_likelihood(problem.likelihood)(draws).sample(self._key)
        chosen = jax.random.randint(self._key, (8, draws.shape[1]), 0, len(draws))
        targets = jnp.take_along_axis(of_draws, chosen, 0).reshape(-1)
        repeated = jnp.tile(problem.unlabelled, (8, 1)), targets
        once = max(1, epochs // 8)
        optimizer = self._optimizer(once * (len(targets) // 96))
        self._infer("distilled: mean", point, repeated, kl=0.0, epochs=once, optimizer=optimizer)
        for guide in GUIDES:
            self._distil_draws(point, draws, guide, epochs)

    def _distil_draws(self, point: Any, draws: Any, guide: str, epochs: int) -> None:
        name = f"distilled: draws, {guide}"
        self._say(f"{self.problem.name}: {name}")
        problem = self.problem
        file = self.folder / f"{_file_name(name)}.safetensors"
        options = self._common(len(problem.unlabelled) // 96, epochs)
        options |= {"kl": 0.0, "init_scale": 0.1}
        result = distill(
            self._key, problem.f, point, (problem.unlabelled,), draws, guide=guide,
            likelihood=problem.likelihood, batch_size=96, checkpoint=file, checkpoint_every=epochs,
            **options,
        )  # fmt: skip
        self._record(name, result.posterior, self.settings.draws, loss=result.losses[-1])

    def _common(self, steps: int, epochs: int | None = None) -> dict[str, Any]:
        settings = self.settings
        epochs = epochs or settings.epochs
        return {
            "epochs": epochs, "kl": settings.kl, "init_scale": 1e-2,
            "particles": settings.particles, "optimizer": self._optimizer(epochs * steps),
            "settings": {"rate": settings.rate}, "progress": False,
        }  # fmt: skip

    def _optimizer(self, steps: int) -> optax.GradientTransformation:
        return cosine_adam(self.settings.rate, steps)

    def _record(self, name: str, posterior: Any, samples: int | None, **figures: Any) -> None:
        problem = self.problem

        def outputs(x: Any) -> Any:
            return predict(self._key, problem.f, posterior, x, samples=samples, chunk=20)

        epistemic = np.asarray(problem.epistemic(outputs(problem.points)))
        self.maps[name] = epistemic
        distance = float(np.sqrt(np.mean((epistemic - self.maps["mcmc"]) ** 2)))
        row = {
            "problem": problem.name, "method": name,
            "nll": float(problem.nll(outputs(problem.test[0]))),
            "auroc": problem.auroc(jnp.asarray(epistemic)),
            "epistemic_outside": float(epistemic[np.asarray(problem.outside)].mean()),
            "distance_to_mcmc": distance,
        }  # fmt: skip
        self.rows.append(row | figures)


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)
