"""How sure a diffusion model is of what it makes: moments through its sampler, draws, members.

    python -m experiments.beyond.diffusion

A denoiser of two moons is a perceptron with a mean-field posterior, or one of several networks. A
deterministic sampler (Song et al., DDIM, arXiv 2010.02502) turns the same noise into points: by one
moment pass through all its steps, by draws of weights that stay as they are over the steps, by
draws of new ones at every step, and by members. Judged by whether variances agree and by whether
they are larger where a point is far from the data.

Klein's thesis has no diffusion models; tracking moments through the loop of one is a question of
its outlook's kind (section 11.3), and there is no number.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from scipy.spatial import KDTree
from scipy.stats import spearmanr
from sklearn.datasets import make_moons

import jaxeff
from experiments import harness as h
from experiments.harness import Count, Least, Report, Row, Run
from experiments.recipes import Training, cosine_adam
from jaxeff import bayes
from jaxeff.nn import MLP
from jaxeff.training import fit, stateless

LEVELS = 100
"""Of noise; the sampler visits some of them."""
FEATURES = 8
"""What the denoiser is told of a level: sines and cosines of it."""
KEPT, ANEW, MEMBERS = "draws, kept over steps", "draws, anew at every step", "members"
MOMENTS, SHARED = "moments", "moments, linear"
FAR = 0.25
"""Distance to the nearest training point, in deviations, beyond which a point is an error."""


@dataclass(frozen=True)
class Settings(Training):
    """What is trained, and how often the sampler is asked."""

    seeds: Count = 3  # trainings
    points: Count = 2000  # of the two moons
    epochs: Count = 300  # of a training
    width: Count = 64  # hidden units of each of two layers
    steps: tuple[int, ...] = (1, 2, 5, 10, 20)  # of the sampler
    samples: Count = 400  # starting points
    draws: Annotated[int, Least(8)] = 100  # of weights
    members: Annotated[int, Least(2)] = 5  # networks of the ensemble


def kept_signal(level: Any) -> Any:
    """Computes the share of a point's variance that is signal, by the cosine schedule."""
    return jnp.cos(0.5 * jnp.pi * (level + 0.5) / (LEVELS + 1)) ** 2


def told(level: Any) -> jax.Array:
    """Makes features of a level."""
    angle = jnp.pi * jnp.asarray(level, jnp.float32)[..., None] / LEVELS
    angle = angle * 2.0 ** jnp.arange(FEATURES // 2)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)


def moons(key: jax.Array, count: int) -> jax.Array:
    """Draws points of the two moons, of zero mean and unit variance."""
    seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
    x, _ = make_moons(count, noise=0.05, random_state=seed)
    return jnp.asarray((x - x.mean(0)) / x.std(0), jnp.float32)


def noisy(key: jax.Array, points: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Makes inputs of the denoiser, and the noise that it is to find."""
    to_level, to_noise = jax.random.split(key)
    level = jax.random.randint(to_level, (len(points),), 0, LEVELS)
    noise = jax.random.normal(to_noise, points.shape)
    kept = kept_signal(level)[:, None]
    return jnp.concatenate([kept**0.5 * points + (1 - kept) ** 0.5 * noise, told(level)], -1), noise


def sampler(f: Callable[..., Any], steps: int) -> Callable[..., Any]:
    """Makes the deterministic sampler; it takes parameters for every step, and the noise."""
    levels = np.linspace(LEVELS - 1, 0, steps + 1)
    # Numbers of all steps before anything is traced: they are constants of the program.
    signal, features = np.asarray(kept_signal(levels)), np.asarray(told(levels))

    def sample(params: Any, x: jax.Array) -> jax.Array:
        for i in range(steps):
            weights = params[i] if isinstance(params, list) else params
            level = jnp.broadcast_to(jnp.asarray(features[i]), (len(x), FEATURES))
            noise = f(weights, jnp.concatenate([x, level], 1))
            before, kept = float(signal[i]), float(signal[i + 1])
            # DDIM's step without noise of its own: the predicted point, made less noisy.
            share = (kept / before) ** 0.5
            x = share * x + ((1 - kept) ** 0.5 - share * (1 - before) ** 0.5) * noise
        return x

    return sample


def trained(run: Run[Settings], key: jax.Array, points: jax.Array) -> tuple[Any, Any, list[Any]]:
    """Trains the ensemble, and a posterior that begins at its first member."""
    settings = run.settings
    sizes = (2 + FEATURES, settings.width, settings.width, 2)
    starts = [
        jaxeff.functional(MLP(sizes, rngs=nnx.Rngs(jax.random.fold_in(key, i))))
        for i in range(settings.members)
    ]
    f = starts[0][0]
    steps = settings.epochs * (len(points) // settings.batch_size)

    def loss(key: Any, p: Any, batch: Any) -> Any:
        x, noise = noisy(key, batch[0])
        value = jnp.mean((f(p, x) - noise) ** 2)
        return value, {"error": value}

    # The loss draws other noise for every batch, so that members differ by their data too.
    members = [
        fit(
            jax.random.fold_in(key, i), stateless(loss), start, (points,),
            epochs=settings.epochs, batch_size=settings.batch_size, progress=False,
            optimizer=cosine_adam(settings.rate, steps),
        ).params
        for i, (_, start) in enumerate(starts)
    ]  # fmt: skip
    # One noise per level and point: a fixed data set is what variational inference counts.
    x, noise = noisy(jax.random.fold_in(key, 99), jnp.tile(points, (4, 1)))
    deviation = float(jnp.sqrt(jnp.mean((f(members[0], x) - noise) ** 2)))
    posterior = bayes.svi(
        key, f, members[0], (x, noise), epochs=settings.epochs // 4, batch_size=settings.batch_size,
        kl=1.0,
        init_scale=1e-2, likelihood=functools.partial(_normal, deviation),
        optimizer=cosine_adam(settings.rate, steps), progress=False,
    ).posterior  # fmt: skip
    return f, posterior, members


def _normal(deviation: float, mean: Any) -> Any:
    # Slow to import, and needed by no `--help`.
    import numpyro.distributions as dist

    return dist.Normal(mean, deviation).to_event(1)


def measure(run: Run[Settings], seed: int) -> Iterator[Row]:
    """Every way to be sure or not, by the number of the sampler's steps."""
    settings, key = run.settings, jax.random.fold_in(run.key, seed)
    points = moons(key, settings.points)
    f, posterior, members = trained(run, key, points)
    x = jax.random.normal(jax.random.fold_in(key, 1), (settings.samples, 2))
    keys = jax.random.split(jax.random.fold_in(key, 2), settings.draws)
    tree = KDTree(np.asarray(points))
    for steps in settings.steps:
        sample = sampler(f, steps)
        weights = bayes.to_gaussians(posterior)
        passed = jax.jit(jaxeff.moments(sample))(weights, x)
        # A step adds a point and the noise found in it, which share all that is random.
        shared = jax.jit(jaxeff.moments(sample, method="linear"))(weights, x)
        kept = jax.jit(lambda keys, x, sample=sample: jax.lax.map(
            lambda key: sample(bayes.draw(key, posterior), x), keys
        ))(keys, x)  # fmt: skip
        anew = jax.jit(lambda keys, x, sample=sample, steps=steps: jax.lax.map(
            lambda key: sample(
                [bayes.draw(k, posterior) for k in jax.random.split(key, steps)], x
            ), keys,
        ))(keys, x)  # fmt: skip
        each = jnp.stack([jax.jit(sample)(p, x) for p in members])
        made = {
            KEPT: (kept.mean(0), kept.var(0, ddof=1)), ANEW: (anew.mean(0), anew.var(0, ddof=1)),
            MOMENTS: (passed.mean, passed.var), SHARED: (shared.mean, shared.var),
            MEMBERS: (each.mean(0), each.var(0, ddof=1)),
        }  # fmt: skip
        # Errors are those of the trained network's own points: all ways judge the same ones.
        distance, _ = tree.query(np.asarray(each[0]))
        reference = np.sqrt(np.asarray(made[KEPT][1]).sum(-1))
        for name, (mean, variance) in made.items():
            spread = np.sqrt(np.asarray(variance).sum(-1))
            yield {
                "by": name, "steps": steps, "seed": seed,
                "spread": float(np.median(spread)),
                "ratio": float(np.median(spread / reference)),
                "order": float(spearmanr(spread, reference)[0]),
                "errors": float(spearmanr(spread, distance)[0]),
                "far": float((distance > FAR).mean()),
                "distance": float(np.median(tree.query(np.asarray(mean))[0])),
            }  # fmt: skip


COLUMNS = ("spread", "ratio", "order", "errors", "far", "distance")
MEANS = h.means(h.every, ("by", "steps"), COLUMNS, ("ratio", "errors"))


def ends(report: Report) -> Iterator[Row]:
    """Selects how moments compare with draws at the fewest and most steps, and what errors say."""
    by_steps = {(row["by"], row["steps"]): row for row in MEANS(report)}
    few, many = min(report.config["steps"]), max(report.config["steps"])
    moments, shared = by_steps[MOMENTS, many], by_steps[SHARED, many]
    yield {
        "few": few, "many": many,
        "one": abs(np.log2(by_steps[MOMENTS, few]["ratio"])),
        "all": abs(np.log2(moments["ratio"])), "shared": abs(np.log2(shared["ratio"])),
        "order": shared["order"], "anew": by_steps[ANEW, many]["ratio"], "errors": shared["errors"],
        "members": by_steps[MEMBERS, many]["errors"] - by_steps[KEPT, many]["errors"],
    }  # fmt: skip


claim = functools.partial(h.Claim, source="no number", of=ends)
STUDY = h.Study(
    "diffusion", __doc__,
    {
        "fast": Settings(seeds=1, points=1000, epochs=100, width=32, steps=(1, 3, 8),
                         samples=200, draws=60, members=3),
        "default": Settings(),
        "full": Settings(seeds=10, points=10_000, steps=(1, 2, 5, 10, 20, 50), draws=400),
    },
    (h.Part(lambda run: range(run.settings.seeds), measure),),
    (
        claim("steps: {few}; deviation by moments over that by draws, octaves from one", "one",
              h.at_most(0.25)),
        claim("steps: {many}; the same", "all", h.at_most(0.25)),
        claim("steps: {many}; the same by the linear method", "shared", h.at_most(0.25)),
        claim("steps: {many}; the same of new weights at every step, a ratio", "anew",
              h.at_least(0.8)),
        claim("steps: {many}; rank correlation of deviations by these moments and by draws",
              "order", h.at_least(0.8)),
        claim("steps: {many}; rank correlation of these deviations and distances to the data",
              "errors", h.at_least(0.3), needs="default"),
        claim("steps: {many}; that of members over that of draws", "members", h.above(0),
              needs="default"),
    ),
    (
        h.Plot(
            "steps",
            *(h.Curves("steps", column, MEANS, "{by}", style="o-",
                       axes={"xlabel": "steps of the sampler", "ylabel": label, "yscale": scale})
              for column, label, scale in (
                  ("spread", "deviation of a point (median)", "log"),
                  ("order", "rank correlation with draws", "linear"),
                  ("errors", "rank correlation with errors", "linear"))),
        ),
    ),
    (h.Listing("points of two moons by the sampler's steps", ("by", "steps", *COLUMNS), MEANS),),
    differences=(
        "two dimensions and a perceptron: no image is made",
        "the posterior is of a fixed set of noisy points, each four times, and its likelihood's "
        "deviation is the trained network's error",
        "the diagonal pass takes a point and the noise found in it as "
        "independent, and weights as drawn anew at every step; draws that are kept are what a "
        "network with unknown weights is",
        "errors are distances to the nearest training point of points that one network makes",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
