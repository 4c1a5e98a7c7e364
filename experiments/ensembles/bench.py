"""What all methods are trained and judged with: a network, images, a recipe and an evaluation."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.scipy.special import entr
from jaxtyping import Array, Float, Int

import jaxeff
from experiments.dirty_mnist.evaluation import figures
from experiments.dirty_mnist.recipe import Sets
from experiments.ensembles.recipe import Settings
from experiments.harness import Refused, Row, Run
from experiments.recipes import cosine_adam
from jaxeff import data
from jaxeff.data import normalize
from jaxeff.dirty_mnist import dirty_mnist
from jaxeff.nn import MLP, LeNet5, ResNet18
from jaxeff.training import sweep
from jaxeff.uncertainty import (
    Decomposition,
    auroc,
    decompose_logits,
    in_batches,
    predictive_log_probs,
)

SIDE = 28
GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True, eq=False)
class Images:
    """Normalised images and their labels."""

    # clean digits, then each ambiguous one once for every label
    train: tuple[Float[Array, "n 28 28 1"], Int[Array, " n"]]
    spare: Float[Array, "n 28 28 1"]  # ambiguous digits that nothing is trained on
    other: Float[Array, "n 28 28 1"]  # images from elsewhere, to repel on
    # what strengths are chosen by: "clean" digits, "ood" images that are in neither training nor
    # tests, and nothing else
    held: dict[str, Float[Array, "n 28 28 1"]]
    held_labels: Int[Array, " n"]  # of the clean ones
    # test images by domain: "clean", "ambiguous" and "ood"
    test: dict[str, Float[Array, "n 28 28 1"]]
    sets: Sets  # the raw ones, with the labels of the tests


def load(settings: Settings, say: Any) -> Images:
    """Loads the images; the first time, Dirty-MNIST is built."""
    dirty = dirty_mnist(settings.data, folder=settings.cache, progress=say)
    ood, other = data.load(settings.ood), data.load(settings.other)
    digits, n, m = dirty.digits, settings.clean, settings.ambiguous
    if n + settings.held > len(digits.train_images) or m >= len(dirty.train_images):
        raise Refused(
            f"there are {len(digits.train_images)} clean and {len(dirty.train_images)} ambiguous "
            f"training digits: --clean {n} with --held {settings.held}, or --ambiguous {m}, are "
            "too many"
        )
    labels = dirty.train_labels.shape[1]
    train = np.concatenate(
        [digits.train_images[:n], np.repeat(dirty.train_images[:m], labels, axis=0)]
    )
    targets = np.concatenate([digits.train_labels[:n], dirty.train_labels[:m].reshape(-1)])
    half = min(len(other.train_images) // 2, 4 * settings.held)
    raw = {
        "clean": digits.test_images[: settings.tests],
        "ambiguous": dirty.test_images[: settings.tests],
        "ood": ood.test_images[: settings.tests],
    }
    held = slice(len(digits.train_images) - settings.held, None)

    def scaled(images: np.ndarray) -> Array:
        return normalize(_grey(images), digits.name)

    return Images(
        (scaled(train), jnp.asarray(targets)),
        scaled(dirty.train_images[m : m + settings.held]),
        scaled(other.train_images[:half]),
        {
            "clean": scaled(digits.train_images[held]),
            "ood": scaled(other.train_images[half : half + settings.held]),
        },
        jnp.asarray(digits.train_labels[held]),
        {domain: scaled(images) for domain, images in raw.items()},
        Sets(dirty, train, targets, raw),
    )


def _grey(images: np.ndarray) -> np.ndarray:
    """One channel, and the middle 28 by 28 pixels."""
    if images.shape[-1] == len(GREY):
        images = np.rint(images @ np.array(GREY))[..., None].astype(np.uint8)
    top, left = ((side - SIDE) // 2 for side in images.shape[1:3])
    return images[:, top : top + SIDE, left : left + SIDE]


CLASSES = 10
NEAR = 0.005
"""Accuracy on held-out digits that may be lost to a stronger repulsion."""
Logits = Callable[[Any, Any], Any]
Said = dict[str, tuple[Float[Array, "n classes"], Decomposition]]
"""By domain, the log-probabilities of the mean prediction, and uncertainties."""


@dataclass(frozen=True, eq=False)
class Bench:
    """A study's network and images."""

    run: Run[Settings]  # the study's
    images: Images  # what is trained on and judged by
    f: Callable[..., Array]  # the network, `f(params, images) -> logits`
    init: Callable[[jax.Array], Any]  # fresh parameters from a key
    last: str  # its last layer
    hidden: tuple[str, ...]  # its other layers, in order

    @property
    def settings(self) -> Settings:
        """The study's."""
        return self.run.settings

    def adam(self, epochs: int) -> optax.GradientTransformation:
        """The optimizer of every training."""
        steps = epochs * (len(self.images.train[1]) // self.settings.batch_size)
        return cosine_adam(self.settings.rate, steps)

    def train(
        self,
        name: str,  # of the training, and of its folder
        loss: Any,  # the loss, or with `strengths` a function to it from a strength
        init: Callable[[jax.Array], Any],  # parameters to start from
        seeds: int,  # how many trainings
        *,
        # repulsions to try; the result is then a list for each seed
        strengths: tuple[float, ...] | None = None,
        data: Any = None,  # instead of the images and labels
        epochs: int | None = None,  # instead of the study's
        **identity: Any,  # what else the training depends on
    ) -> list[Any]:
        """Trained parameters of each seed, kept for the next run.

        Every method has the same keys, so that a seed has the same batches in all of them.
        """
        epochs = self.settings.epochs if epochs is None else epochs
        tried = jnp.asarray([0.0] if strengths is None else strengths)
        swept = sweep(
            self.run.fast_key, loss if strengths else lambda strength: loss,
            lambda key: (init(key), None), self.images.train if data is None else data, tried,
            optimizer=self.adam(epochs), epochs=epochs, batch_size=self.settings.batch_size,
            seeds=seeds, chunk=1, keep=True, checkpoint=self.run.work / "trained" / name,
            identity={"name": name, "rate": self.settings.rate, **identity}, progress=False,
        )  # fmt: skip
        if swept.diverged.any():
            self.run.say(f"{name}: {swept.diverged.sum()} of {swept.diverged.size} diverged")
        each = [
            [jax.tree.map(lambda leaf: leaf[i, j], swept.params) for j in range(len(tried))]  # noqa: B023
            for i in range(seeds)
        ]
        return each if strengths else [one for (one,) in each]

    @functools.cached_property
    def networks(self) -> list[Any]:
        """Single networks: the first of them stand in the first row, all are members."""
        loss = jaxeff.training.cross_entropy(self.f)
        seeds, few = self.settings.seeds, self.settings.few
        return self.train("map", loss, self.init, max(seeds * few, self.settings.members))


def build(run: Run[Settings], images: Images) -> Bench:
    """The network of the settings; none of them has a state."""
    models: dict[str, tuple[Callable[[nnx.Rngs], nnx.Module], str]] = {
        "mlp": (lambda rngs: MLP((784, 64, 32, CLASSES), rngs=rngs), "fc3"),
        "lenet5": (lambda rngs: LeNet5(padding="VALID", rngs=rngs), "fc3"),
        "resnet18": (
            lambda rngs: ResNet18(CLASSES, 1, stem="cifar", batch_norm=False, rngs=rngs), "fc"
        ),
    }  # fmt: skip
    make, last = models[run.settings.network]
    f, params = jaxeff.functional(make(nnx.Rngs(0)))

    def init(key: jax.Array) -> Any:
        return jaxeff.functional(make(nnx.Rngs(key)))[1]

    program = jaxeff.trace(f, params, images.train[0][:1])
    sites = [layer.site for layer in program.layers if layer.kind == "linear"]
    return Bench(run, images, f, init, last, tuple(site for site in sites if site != last))


def said(logits: Logits, params: Any, domains: Mapping[str, Any], how: Any = None) -> Said:
    """What samples of logits say: members, masks, or draws, of one seed's parameters.

    `logits(params, x)` are `[samples, n, classes]`, compiled once for all seeds; `how` makes
    log-probabilities and uncertainties of others.
    """
    of_batch = functools.partial(how or _of_samples, logits, params)
    return {domain: in_batches(of_batch, images) for domain, images in domains.items()}


def said_by_entropy(logits: Logits, params: Any, domains: Mapping[str, Any]) -> Said:
    """What one network says: the entropy of its softmax is all its uncertainty."""
    return said(logits, params, domains, _of_one)


@functools.partial(jax.jit, static_argnums=0)
def _of_samples(logits: Logits, params: Any, x: Any) -> tuple[Array, Decomposition]:
    drawn = logits(params, x)
    return predictive_log_probs(drawn), decompose_logits(drawn)


@functools.partial(jax.jit, static_argnums=0)
def _of_one(logits: Logits, params: Any, x: Any) -> tuple[Array, Decomposition]:
    log_probs = jax.nn.log_softmax(logits(params, x))
    total = entr(jnp.exp(log_probs)).sum(-1)
    return log_probs, Decomposition(total, total, total)


def judged(found: Said, bench: Bench) -> Row:
    """The columns of the table.

    Accuracy, likelihood and calibration on clean digits (`_ambiguous`: on ambiguous ones, with all
    their labels), and three AUROC: ambiguous against clean digits by aleatoric uncertainty, clean
    digits and ambiguous ones against out-of-domain images by the epistemic one.
    """
    log_probs = {domain: probs for domain, (probs, _) in found.items()}
    uncertainty = {domain: parts for domain, (_, parts) in found.items()}
    row: Row = dict(figures(uncertainty, log_probs, bench.images.sets))
    ambiguous, ood = uncertainty["ambiguous"].epistemic, uncertainty["ood"].epistemic
    row["auroc_ambiguous"] = float(auroc(ambiguous, ood))
    return row


def chosen(tried: list[tuple[float, Said]], bench: Bench) -> tuple[float, list[Row]]:
    """The strength of the highest AUROC on held-out images, among those that cost no accuracy."""
    rows = []
    for strength, found in tried:
        log_probs, inside = found["clean"]
        right = (log_probs.argmax(-1) == bench.images.held_labels).mean()
        separated = auroc(inside.epistemic, found["ood"][1].epistemic)
        rows.append(
            {"strength": strength, "held_accuracy": float(right), "held_auroc": float(separated)}
        )
    best = max(row["held_accuracy"] for row in rows)
    able = [row for row in rows if row["held_accuracy"] >= best - NEAR] or rows
    return max(able, key=lambda row: row["held_auroc"])["strength"], rows
