"""Classifiers trained in float32, which studies of compression start from; kept for all of them."""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxeff
from experiments.densenet import DenseNet
from experiments.harness import SELECTS, Count, Row, Run, choose
from experiments.recipes import Training, cosine_adam
from experiments.trainable import Images, Network, load_images, trainable
from jaxeff.compression import fold_batch_norm
from jaxeff.nn import VGG11, LeNet5, ResNet8, ResNet18, WideResNet
from jaxeff.training import cross_entropy, fit


@dataclass(frozen=True)
class Classifier:
    """A network on a data set."""

    # "lenet5" (with batch norm), "resnet8", "resnet18", the latter and "vgg11" (with batch norm)
    # with an eighth of their channels, a narrow DenseNet, or a wide residual network by its depth
    # and factor
    network: Literal[
        "lenet5", "resnet8", "resnet18", "resnet18-eighth", "vgg11-eighth",
        "wrn-10-1", "wrn-10-2", "wrn-28-4", "densenet-22",
    ]  # fmt: skip
    data: str  # the data set
    images: int  # training images
    epochs: int  # passes over them
    test_images: int  # images behind every accuracy
    seeds: int  # trainings

    @property
    def name(self) -> str:
        """The network and its data in one word."""
        return f"{self.network}-{self.data}"


def counted_images(config: Mapping[str, Any]) -> dict[str, int]:
    """Finds how many test images are behind each network's accuracies, in a run's settings."""
    return {f"{one['network']}-{one['data']}": one["test_images"] for one in config["subjects"]}


BATCH = 500
"""Test images evaluated at once."""


@dataclass(frozen=True)
class Retrained(Classifier):
    """A classifier that is changed, and trained on."""

    retrain_images: int  # images of the training after the change
    retrain: int  # passes over them


@dataclass(frozen=True, kw_only=True)
class Settings(Training):
    """What the trainings of a study depend on, and which of its networks are run."""

    subjects: tuple[Any, ...]  # the networks
    retrain_rate: float = 1e-3  # learning rate of training on
    calibration: Count = 512  # training images that numbers are measured on
    only: Annotated[tuple[str, ...], SELECTS] = ()  # subjects to run; all if none is given


@dataclass(frozen=True)
class Task:
    """What is kept once it is done."""

    subject: str  # the network's name
    seed: int  # of its training
    part: str  # of the study
    what: str = ""  # within the part

    def __str__(self) -> str:
        return f"{self.subject} {self.seed} {self.what or self.part}"


@dataclass(frozen=True)
class Trained:
    """A network trained in float32."""

    subject: Classifier  # what it is
    network: Network  # as a function
    images: Images  # what it was trained and is tested on
    params: Any  # its parameters
    state: Any  # its running statistics
    seed: int  # of its training
    sites: tuple[str, ...]  # its multiply-accumulates in order

    def calibration(self, count: int) -> jax.Array:
        """Training images that numbers are measured on."""
        return jnp.asarray(self.images.train[0][:count])

    def folded(self) -> tuple[Any, Any]:
        """The function and parameters with batch norm in the layers before it."""
        state = self.state

        def evaluate(params: Any, x: jax.Array) -> jax.Array:
            logits: jax.Array = self.network.evaluate(params, state, x)[0]
            return logits

        return fold_batch_norm(evaluate, self.params, self.calibration(2))[:2]


def build(subject: Classifier) -> tuple[Network, Images]:
    """The untrained network and its images."""
    images = load_images(subject.data, subject.images, subject.test_images)
    height, _, channels = images.shape

    def wide(rngs: nnx.Rngs) -> WideResNet:
        depth, factor = map(int, subject.network.split("-")[1:])
        return WideResNet(10, channels, depth=depth, factor=factor, rngs=rngs)

    make = {
        "lenet5": lambda rngs: LeNet5(
            10, channels, size=height, batch_norm=True, rngs=rngs
        ),
        "resnet8": lambda rngs: ResNet8(10, channels, rngs=rngs),
        "resnet18": lambda rngs: ResNet18(10, channels, stem="cifar", rngs=rngs),
        "resnet18-eighth": lambda rngs: ResNet18(
            10, channels, stem="cifar", widths=(8, 16, 32, 64), rngs=rngs
        ),
        "densenet-22": lambda rngs: DenseNet(10, channels, rngs=rngs),
        # A head of one position: seven by seven copies of it would be most of what is compressed.
        "vgg11-eighth": lambda rngs: VGG11(
            10, channels, batch_norm=True, head=1, dropout=0.0,
            widths=(8, 16, 32, 32, 64, 64, 64, 64), hidden=512, rngs=rngs,
        ),
    }.get(subject.network, wide)  # fmt: skip
    return trainable(make, images.shape), images


def how_to_train(
    rate: float, data: tuple[Any, ...], epochs: int, batch_size: int
) -> dict[str, Any]:
    """What `fit` is told: Adam with a rate that a cosine brings to zero at the training's end."""
    steps = epochs * (len(data[0]) // batch_size)
    optimizer = cosine_adam(rate, steps)
    return {
        "optimizer": optimizer, "epochs": epochs, "batch_size": batch_size, "progress": False
    }  # fmt: skip


def trained(run: Run[Any], subject: Classifier, settings: Settings, seed: int) -> Trained:
    """The network of a seed, trained now or by a run before, of whichever study."""
    network, images = build(subject)
    key = jax.random.fold_in(run.fast_key, seed)
    params, state = network.init(jax.random.fold_in(key, 0))
    result = fit(
        jax.random.fold_in(key, 1),
        cross_entropy(network.train, mutable=True),
        params,
        images.train,
        state=state,
        **how_to_train(settings.rate, images.train, subject.epochs, settings.batch_size),
        checkpoint=run.shared("classifiers")
        / f"{_identity(run, subject, settings, seed)}.safetensors",
    )
    program = jaxeff.trace(network.evaluate, result.params, result.state, images.test[0][:1])
    sites = tuple(layer.site for layer in program.layers if layer.kind == "linear")
    return Trained(subject, network, images, result.params, result.state, seed, sites)


def each(
    run: Run[Any],
    tasks: Callable[[Any, Any, int], Iterable[Any]],
    measure: Callable[[Run[Any], Any, Any, Trained], Iterable[Row]],
) -> list[Row]:
    """Trains each network that is asked for, and measures every task of it.

    Args:
        run: Whose settings are `Settings`.
        tasks: A `Task` for everything to measure, from the settings, a subject and a seed.
        measure: A task's rows, from the run, the task, its subject and the trained network.
    """
    settings: Settings = run.settings
    names = [subject.name for subject in settings.subjects]
    wanted = choose(settings.only, names, "subject")
    subjects = {subject.name: subject for subject in settings.subjects if subject.name in wanted}

    @functools.lru_cache(maxsize=1)
    def model(subject: str, seed: int) -> Trained:
        return trained(run, subjects[subject], settings, seed)

    def make(task: Task) -> list[Row]:
        rows = measure(run, task, subjects[task.subject], model(task.subject, task.seed))
        return [{"part": task.part, **row} for row in rows]

    todo = [
        task
        for own in subjects.values()
        for seed in range(own.seeds)
        for task in tasks(settings, own, seed)
    ]
    return run.each(todo, make)


def describe(model: Trained) -> Row:
    """Accuracy and size in float32."""
    f, params = model.folded()
    measured = jaxeff.cost(f, params, model.images.test[0][:1])
    return {
        "subject": model.subject.name, "seed": model.seed,
        "accuracy": accuracy(f, (params,), model.images),
        "bytes": measured.size, "bops": measured.bops, "macs": measured.macs,
    }  # fmt: skip


def accuracy(f: Any, args: tuple[Any, ...], images: Images) -> float:
    """Share of the test images that `f(*args, x)` classifies rightly."""
    x, labels = images.test

    @jax.jit
    def right(args: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        logits = f(*args, x)
        logits = logits[0] if isinstance(logits, tuple) else logits
        return jnp.sum(logits.argmax(-1) == labels)

    step = min(BATCH, len(labels))
    starts = range(0, len(labels) - step + 1, step)
    hits = [right(args, x[i : i + step], labels[i : i + step]) for i in starts]
    return float(np.sum(hits)) / (len(starts) * step)


def _identity(run: Run[Any], subject: Classifier, settings: Settings, seed: int) -> str:
    """All that a training depends on, as a file's name."""
    how = f"{subject.images}x{subject.epochs}-b{settings.batch_size}-r{settings.rate:g}"
    return f"{subject.name}-{how}-s{run.seed}.{seed}"
