"""Which layers should be random, how wide and with which activation: chosen by what is rewarded.

    python -m experiments.beyond.random_layers

Perceptrons of four dense layers on digits of 14 by 14 pixels, a mean-field posterior by variational
inference over those layers that are random: every set of layers, width and activation is trained.
A search that sees all of them chooses on validation images by a reward of accuracy alone, or of
accuracy with AUROC or NLL, among what a budget of stored numbers allows; random layers store two
for each weight. What is chosen is judged on test images, against other photographs (the kind that
the reward knew) and against digits whose pixels are permuted (a kind that it didn't).

Klein's thesis asks for it (section 11.3: "which components should be Bayesian, what fraction of
parameters is sufficient, and how can such structures be identified automatically?") and has no
numbers.
"""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.special import entr

from experiments import harness as h
from experiments.beyond import small_digits
from experiments.harness import Count, Found, Least, Report, Row, Run
from experiments.recipes import Training, cosine_adam
from jaxeff import uncertainty
from jaxeff.search import OneSided, Worth

WIDEST = 32
SIZES = (small_digits.PIXELS, WIDEST, WIDEST, WIDEST, small_digits.CLASSES)
LAYERS = len(SIZES) - 1
ACTIVATIONS = {"ReLU": jax.nn.relu, "SiLU": jax.nn.silu, "sine": jnp.sin}
PRIOR = 0.3
"""Standard deviation of the weights' prior."""
ALONE = "accuracy alone"
WORTHS = {
    ALONE: Worth(accuracy=1.0), "accuracy and AUROC": Worth(accuracy=1.0, auroc=1.0),
    "accuracy and NLL": Worth(accuracy=1.0, nll=-1.0),
    "all three": Worth(accuracy=1.0, auroc=1.0, nll=-1.0),
}  # fmt: skip
MEASURES = ("accuracy", "nll", "auroc", "unseen")


@dataclass(frozen=True)
class Settings(Training):
    """What is searched, and how it is trained."""

    widths: tuple[Count, ...] = (4, 8, 16, 32)  # of the hidden layers
    budgets: tuple[float, ...] = (0.25, 0.5, 1.0)  # shares of the largest network's numbers
    seeds: Annotated[int, Least(2)] = 10  # trainings of all of them
    epochs: Count = 60  # of a training
    draws: Annotated[int, Least(2)] = 30  # of weights, behind a prediction
    divergence: float = 0.25  # weight of the divergence from the prior (the thesis')


class Choice(NamedTuple):
    """Architectures as arrays, so that all are one program: which layers, how wide, how bent."""

    random: Any
    width: Any
    activation: Any


class Images(NamedTuple):
    """Images and labels of training, validation and test, and inputs of other kinds."""

    train: tuple[Any, Any]
    validation: tuple[Any, Any]
    test: tuple[Any, Any]
    known: Any  # photographs that the reward sees
    others: Any  # further photographs
    unseen: Any  # test images with their pixels permuted


def images() -> Images:
    """Splits what there is: a fifth of the training images is for validation."""
    data = small_digits.images()
    held, half = len(data.train) // 5, len(data.elsewhere) // 2
    order = np.random.default_rng(0).permutation(small_digits.PIXELS)
    permuted = data.test.reshape(len(data.test), -1)[:, order].reshape(data.test.shape)
    labels = data.train_labels
    return Images(
        train=(data.train[held:], labels[held:]), validation=(data.train[:held], labels[:held]),
        test=(data.test, data.test_labels), known=data.elsewhere[:half],
        others=data.elsewhere[half:], unseen=permuted,
    )  # fmt: skip


def choices(widths: tuple[int, ...]) -> list[tuple[tuple[int, ...], int, int]]:
    """Lists all architectures: layers that are random, width, number of the activation."""
    masks = itertools.product((0, 1), repeat=LAYERS)
    return list(itertools.product(masks, widths, range(len(ACTIVATIONS))))


def stored(random: tuple[int, ...], width: int) -> int:
    """Counts the numbers that a network stores: random layers keep a mean and a deviation."""
    sizes = (SIZES[0], *[width] * (LAYERS - 1), SIZES[-1])
    each = [(a + 1) * b for a, b in itertools.pairwise(sizes)]
    return sum(count * (1 + r) for count, r in zip(each, random, strict=True))


def started(key: jax.Array, choice: Choice) -> Any:
    """Draws means with He's gain for the width that is used; deviations start small."""
    keys = jax.random.split(key, LAYERS)
    inputs = [SIZES[0], *[choice.width] * (LAYERS - 1)]
    return [
        {
            # The last row is the bias, which starts at zero.
            "mean": jnp.sqrt(2.0 / n) * jax.random.normal(k, (a + 1, b)).at[-1].set(0),
            "raw": jnp.full((a + 1, b), -4.0),
        }
        for k, n, (a, b) in zip(keys, inputs, itertools.pairwise(SIZES), strict=True)
    ]  # fmt: skip


def applied(key: jax.Array, params: Any, choice: Choice, x: Any) -> Any:
    """Computes logits with weights drawn once for all inputs, in the layers that are random."""
    x = x.reshape(x.shape[0], -1)
    used = jnp.arange(WIDEST) < choice.width
    for i, (k, layer) in enumerate(zip(jax.random.split(key, LAYERS), params, strict=True)):
        noise = jax.random.normal(k, layer["mean"].shape)
        weights = layer["mean"] + choice.random[i] * jax.nn.softplus(layer["raw"]) * noise
        x = x @ weights[:-1] + weights[-1]
        if i + 1 < LAYERS:
            # All activations are computed and one is taken: architectures share a program.
            x = jnp.stack([f(x) for f in ACTIVATIONS.values()])[choice.activation] * used
    return x


def divergence(params: Any, choice: Choice) -> Any:
    """Computes the divergence of the random layers' posterior from their prior."""
    total = 0.0
    for random, layer in zip(choice.random, params, strict=True):
        ratio = (jax.nn.softplus(layer["raw"]) / PRIOR) ** 2
        terms = ratio + (layer["mean"] / PRIOR) ** 2 - 1 - jnp.log(ratio)
        total += random * terms.sum() / 2
    return total


def trained(key: jax.Array, own: Settings, choice: Choice, data: tuple[Any, Any]) -> Any:
    """Trains one architecture by the evidence bound; `vmap` trains all."""
    count, size = len(data[0]), own.batch_size
    steps = own.epochs * (count // size)
    optimizer = cosine_adam(own.rate, steps)
    start_key, train_key = jax.random.split(key)

    def loss(params: Any, key: Any, x: Any, labels: Any) -> Any:
        logits = applied(key, params, choice, x)
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return nll + own.divergence * divergence(params, choice) / count

    def step(carried: Any, key: Any) -> Any:
        params, state = carried
        rows_key, noise_key = jax.random.split(key)
        rows = jax.random.randint(rows_key, (size,), 0, count)
        slope = jax.grad(loss)(params, noise_key, data[0][rows], data[1][rows])
        updates, state = optimizer.update(slope, state, params)
        return (optax.apply_updates(params, updates), state), None

    params = started(start_key, choice)
    (params, _), _ = jax.lax.scan(
        step, (params, optimizer.init(params)), jax.random.split(train_key, steps)
    )
    return params


def predicted(key: jax.Array, own: Settings, params: Any, choice: Choice, x: Any) -> Any:
    """Computes mean probabilities over draws of weights."""
    keys = jax.random.split(key, own.draws)
    draw = lambda total, k: (total + jax.nn.softmax(applied(k, params, choice, x)), None)  # noqa: E731
    total, _ = jax.lax.scan(draw, jnp.zeros((len(x), small_digits.CLASSES)), keys)
    return total / own.draws


def measure(run: Run[Settings], seed: int) -> Iterator[Row]:
    """All architectures of one seed, trained together, judged on validation and test images."""
    settings, data, options = run.settings, images(), choices(run.settings.widths)
    key = jax.random.fold_in(run.key, seed)
    choice = Choice(*(jnp.asarray(column) for column in zip(*options, strict=True)))
    params = jax.jit(jax.vmap(lambda c: trained(key, settings, c, data.train)))(choice)
    say = jax.jit(jax.vmap(lambda p, c, x: predicted(key, settings, p, c, x), (0, 0, None)))
    groups = (data.validation[0], data.known, data.test[0], data.others, data.unseen)
    said = [np.asarray(say(params, choice, x)) for x in groups]
    # The doubt of all is the entropy of the mean prediction, which networks without noise have too.
    doubt = [np.asarray(entr(probs).sum(-1)) for probs in said]
    largest = stored((1,) * LAYERS, WIDEST)
    for i, (random, width, activation) in enumerate(options):
        held, labels = said[0][i], data.validation[1]
        yield {
            "seed": seed,
            "layers": "".join(str(i + 1) for i in range(LAYERS) if random[i]) or "none",
            "random": sum(random), "width": width, "activation": list(ACTIVATIONS)[activation],
            "cost": stored(random, width) / largest,
            "validation_accuracy": float(uncertainty.accuracy(held, labels)),
            "validation_nll": float(uncertainty.nll(held, labels)),
            "validation_auroc": float(uncertainty.auroc(doubt[0][i], doubt[1][i])),
            "accuracy": float(uncertainty.accuracy(said[2][i], data.test[1])),
            "nll": float(uncertainty.nll(said[2][i], data.test[1])),
            "auroc": float(uncertainty.auroc(doubt[2][i], doubt[3][i])),
            "unseen": float(uncertainty.auroc(doubt[2][i], doubt[4][i])),
        }  # fmt: skip


def chosen(report: Report) -> Iterator[Row]:
    """Selects what each reward chooses of every seed's architectures, by validation alone."""
    reward = OneSided()
    for (seed, budget), (name, worth) in itertools.product(
        itertools.product(range(report.config["seeds"]), report.config["budgets"]), WORTHS.items()
    ):
        rows = [row for row in report.rows if row["seed"] == seed]
        valued = [
            reward(
                worth({m: row[f"validation_{m}"] for m in MEASURES[:3]}), row["cost"], budget
            )
            for row in rows
        ]  # fmt: skip
        yield {**rows[int(np.argmax(valued))], "reward": name, "budget": budget}


PICKS = h.means(chosen, ("budget", "reward"), (*MEASURES, "cost", "random"), MEASURES)
BY_LAYERS = h.means(h.every, ("layers", "random"), (*MEASURES, "cost"), ("auroc",))
BY_SHAPE = h.means(h.every, ("activation", "width"), MEASURES, ("auroc",))


def gains(report: Report) -> Iterator[Row]:
    """Selects what a reward with AUROC gains over one of accuracy alone, seed by seed."""
    by_seed = {(row["budget"], row["reward"], row["seed"]): row for row in chosen(report)}
    for budget in report.config["budgets"]:
        gained = {
            name: [
                by_seed[budget, "accuracy and AUROC", seed][name]
                - by_seed[budget, ALONE, seed][name]
                for seed in range(report.config["seeds"])
            ]
            for name in MEASURES
        }
        yield {
            "budget": budget, "auroc": _sure(gained["auroc"]), "unseen": _sure(gained["unseen"]),
            "lost": h.mean(-gain for gain in gained["accuracy"]),
        }  # fmt: skip


def _sure(gained: list[float]) -> float | None:
    """What is gained beyond two standard errors of the seeds' mean; one seed has no error."""
    mean, error = h.mean(gained), h.error(gained)
    return None if mean is None or error is None else mean - 2 * error


def _with_tables(run: Run[Settings], found: Found) -> Found:
    """Adds the means over seeds that the tables show."""
    rows, settings = list(found.rows), run.settings
    config = {"seeds": settings.seeds, "budgets": settings.budgets}
    report = Report("random_layers", run.size, config, rows)
    tables = {"chosen": PICKS(report), "layers": BY_LAYERS(report), "shapes": BY_SHAPE(report)}
    return Found(rows, {"tables": tables})


MARKERS = ("*", "o", "s", "^", "D")
"""By the number of random layers."""
claim = functools.partial(h.Claim, source="no number", of=gains)
STUDY = h.Study(
    "random_layers", __doc__,
    {
        "fast": Settings(widths=(8, 32), seeds=5, epochs=25, draws=12),
        "default": Settings(),
        "full": Settings(seeds=30, epochs=200, draws=100),
    },
    (h.Part(lambda run: range(run.settings.seeds), measure),),
    (
        claim("budget {budget}: AUROC that AUROC in the reward gains over accuracy alone, less two "
              "errors", "auroc", h.above(0)),
        claim("budget {budget}: the same against a kind that the reward didn't know", "unseen",
              h.above(0)),
        claim("budget {budget}: accuracy that it costs", "lost", h.at_most(0.01)),
    ),
    (
        h.Plot(
            "rewards",
            *(h.Curves("budget", column, PICKS, "{reward}", error=True, style="o-",
                       axes={"xlabel": "numbers stored over the largest network's",
                             "ylabel": label})
              for column, label in (("accuracy", "accuracy"), ("auroc", "AUROC, other photographs"),
                                    ("unseen", "AUROC, permuted digits"), ("nll", "NLL"))),
            columns=2,
        ),
        h.Plot(
            "layers",
            # Ten colours don't tell sixteen sets apart: a marker says how many layers are random.
            h.Curves("accuracy", "auroc", BY_LAYERS, "{layers}",
                     style=lambda row: MARKERS[int(row["random"])],
                     axes={"xlabel": "accuracy", "ylabel": "AUROC, other photographs"}),
        ),
    ),
    (
        h.Listing("what each reward chooses", ("budget", "reward", *MEASURES, "cost", "random"),
                  PICKS),
        h.Listing("by the layers that are random", ("layers", *MEASURES, "cost"), BY_LAYERS),
        h.Listing("by activation and width", ("activation", "width", *MEASURES), BY_SHAPE),
    ),
    differences=(
        "the thesis has no such search; every architecture is trained, so that no searcher's luck "
        "is in what rewards choose",
        "layers without randomness have no prior, and the doubt of all is predictive entropy",
    ),
    derive=_with_tables,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
