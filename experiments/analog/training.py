"""The classifiers, and their retraining for chips: all at once, as replicates of one program."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxeff
from experiments.analog.recipe import Settings
from experiments.analog.source import STRATEGIES
from experiments.harness import Row, Run
from experiments.recipes import cosine_adam
from experiments.timing import interleaved
from jaxeff import analog_hardware as hw
from jaxeff import data, nn
from jaxeff.hardening import incremental_noise
from jaxeff.nn import MLP
from jaxeff.noise import Additive, noisy
from jaxeff.store import load_pytree, save_pytree
from jaxeff.training import Loss, cross_entropy, fit, init, make_epoch, run_epochs

GAIN = 0.004
"""Counts per product of codes that a crossbar's result is decoded with, the chip's nominal gain."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A classifier, trained digitally, and its data."""

    name: str  # of the data set
    f: Callable[..., Any]  # `f(params, x)`
    params: Any  # trained digitally
    train: tuple[Any, Any]  # inputs from 0 on, and labels
    test: tuple[Any, Any]  # the same
    spec: dict[str, hw.Crossbar]  # its crossbars, with ranges


class Trainer:
    """Trains and tests by every strategy of the thesis, on some chips at once.

    What a strategy starts from is kept in a file, so that a run which was killed goes on.
    """

    def __init__(
        self, run: Run[Settings], problem: Problem, devices: tuple[int, ...], models: list[Any]
    ):
        self.run, self.problem, self.devices = run, problem, devices
        boxes = jax.tree.map(lambda *a: jnp.stack([jnp.asarray(x) for x in a]), *models)
        array = next(iter(problem.spec.values()))
        chips = jax.vmap(lambda d: hw.Chip(d, rows=array.rows, columns=array.columns))(
            jnp.asarray(devices)
        )
        # Hardware is the state of a training: an argument, not a constant of the program.
        self.hardware = jax.tree.map(jnp.asarray, {"chip": chips, "box": boxes})
        self.count = len(devices)
        spread = hw.read_out(
            problem.f, problem.params, problem.train[0][:200],
            hw.with_model(problem.spec, jax.tree.map(lambda a: a[0], boxes)),
        )  # fmt: skip
        self.levels = {
            site: Additive(float(jnp.sqrt(jnp.mean(jnp.asarray(r.var)))))
            for site, r in spread.items()
        }
        self._measure: dict[str, Any] = {}

    def function(self, how: str, hardware: Any) -> Callable[..., Any]:
        """`g(key, params, x)` of a way to evaluate the network."""
        f, spec = self.problem.f, self.problem.spec
        boxed = hw.with_model(spec, hardware["box"])
        if how == "digital":
            return lambda key, params, x: f(params, x)
        if how == "quantized":
            return hw.analog(f, spec)
        if how == "noise":
            return noisy(f, self.levels)
        if how == "loop":
            return hw.in_the_loop(f, boxed, hardware["chip"])
        return hw.analog(f, hw.with_noise_level(boxed, {"silent": 0.0, "box": 1.0}[how]))

    def loss(self, how: str, steps: int) -> Loss:
        """The loss of a stage; the state holds the hardware."""

        def loss(key: Any, params: Any, state: Any, batch: Any, step: Any) -> Any:
            if how == "incremental":
                boxed = hw.with_model(self.problem.spec, state["box"])

                def at(level: Any) -> Loss:
                    noisy_box = hw.analog(self.problem.f, hw.with_noise_level(boxed, level))
                    return cross_entropy(noisy_box, keyed=True)

                # All of it from half-way on: a rate that decays learns little of what comes later.
                inner = incremental_noise(at, optax.linear_schedule(0.0, 1.0, max(steps // 2, 1)))(
                    1.0
                )
            else:
                inner = cross_entropy(self.function(how, state), keyed=True)
            value, (metrics, _) = inner(key, params, None, batch, step)
            return value, (metrics, state)

        return loss

    def trained(self, name: str, how: str, start: Any, epochs: int) -> Any:
        """Parameters after a stage, one set per chip."""
        folder = self.run.work / "networks"
        file = (
            folder / f"{self.problem.name}-{name.replace(' ', '_').replace('/', '-')}.safetensors"
        )
        if file.exists():
            return load_pytree(file, start)
        settings = self.run.settings
        steps = epochs * (len(self.problem.train[1]) // settings.batch_size)
        optimizer = cosine_adam(settings.rate, steps)
        epoch = make_epoch(self.loss(how, steps), optimizer, settings.batch_size)
        begin = jax.vmap(lambda p, s: init(p, optimizer, s))(start, self.hardware)
        keys = jax.random.split(jax.random.fold_in(self.run.key, 7), self.count)
        final, _ = run_epochs(
            keys, jax.vmap(epoch, (0, 0, None)), begin, self.problem.train, epochs=epochs,
            progress=False,
        )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        save_pytree(file, final.params)
        return final.params

    def accuracy(self, how: str, params: Any) -> np.ndarray:
        """Accuracy on the test set in per cent, per chip."""
        x, labels = (jnp.asarray(a) for a in self.problem.test)
        if how not in self._measure:

            def score(params: Any, hardware: Any, x: Any, labels: Any) -> Any:
                logits = self.function(how, hardware)(jax.random.key(5), params, x)
                return 100 * jnp.mean(logits.argmax(-1) == labels)

            self._measure[how] = jax.jit(jax.vmap(score, (0, 0, None, None)))
        return np.asarray(self._measure[how](params, self.hardware, x, labels))

    def rows(self) -> list[Row]:
        """Accuracy in software and on the chips, by strategy."""
        retrain = self.run.settings.retrain
        shares = {"1/60": 60, "1/30": 30, "1/6": 6}
        plain = jax.tree.map(lambda p: jnp.stack([p] * self.count), self.problem.params)
        after: dict[str, Any] = {"plain": plain}
        rows: list[Row] = []

        def add(name: str, software: str | None, epochs: float) -> None:
            soft = None if software is None else self.accuracy(software, after[name])
            hard = self.accuracy("loop", after[name])
            source_soft, source_hard = STRATEGIES[name]
            rows.extend(
                {"kind": "training", "data": self.problem.name, "device": device,
                 "strategy": name, "epochs": epochs,
                 "software": None if soft is None else float(soft[i]),
                 "source_software": source_soft, "on_chip": float(hard[i]),
                 "source_on_chip": source_hard}
                for i, device in enumerate(self.devices)
            )  # fmt: skip
            self.run.say(f"{self.problem.name}, {name}: {hard.mean():.1f} % on the chips")

        add("plain", "digital", 0)
        for name, how, software in (
            ("quantized", "quantized", "quantized"),
            ("noise only", "noise", "noise"),
            ("representation", "silent", "silent"),
            ("representation, noise", "box", "box"),
            ("representation, incremental", "incremental", "box"),
            ("loop", "loop", None),
        ):
            after[name] = self.trained(name, how, plain, retrain)
            add(name, software, retrain)
        longer = max(1, round(retrain / 6))
        after["loop, longer"] = self.trained("loop, longer", "loop", after["loop"], longer)
        add("loop, longer", None, retrain + longer)
        # The thesis' shortest loop: one epoch, whatever the retraining takes.
        one = "representation + one epoch"
        after[one] = self.trained(one, "loop", after["representation, incremental"], 1)
        add(one, None, retrain + 1)
        for start, short in (
            ("quantized", "quantized"),
            ("representation, incremental", "representation"),
        ):
            for label, share in shares.items():
                name = f"{short} + loop {label}"
                if name not in STRATEGIES or retrain < share:
                    continue
                after[name] = self.trained(name, "loop", after[start], retrain // share)
                add(name, None, retrain + retrain // share)
        return rows


def step_times(problem: Problem, box: hw.WhiteBox, batch: int = 50) -> Row:
    """Milliseconds of a training step, quantized and through the white box."""
    data = tuple(jnp.asarray(a[:batch]) for a in problem.train)

    @jax.jit
    def step(params: Any, spec: Any) -> Any:
        loss = cross_entropy(hw.analog(problem.f, spec), keyed=True)
        return jax.grad(lambda p: loss(jax.random.key(0), p, None, data, 0)[0])(params)

    specs = {"quantized": problem.spec, "white box": hw.with_model(problem.spec, box)}
    calls = {name: partial(step, problem.params, spec) for name, spec in specs.items()}
    times = interleaved(calls, relative_to="quantized")
    return {
        "kind": "step", "data": problem.name, **{name: times[name]["ms"] for name in specs},
        "ratio": times["white box"]["ratio"],
    }  # fmt: skip


def images(run: Run[Settings]) -> Problem:
    """Pixels from 0 to 1 of an image data set."""
    settings = run.settings
    images, n, m = data.load(settings.data), settings.images, settings.test_images
    train, test = (
        ((x.reshape(len(x), -1) / 255).astype(np.float32), labels)
        for x, labels in (
            (images.train_images[:n], images.train_labels[:n]),
            (images.test_images[:m], images.test_labels[:m]),
        )
    )
    return _trained(run, settings.data, train, test, settings.widths, images.num_classes)


def small_images(run: Run[Settings]) -> Problem:
    """Digits of 8 by 8 pixels, from 0 to 1, on an array that sequence models can afford."""
    settings = run.settings
    digits = data.load("digits")

    def scaled(images: np.ndarray) -> np.ndarray:
        # They lie in MNIST's frame, 20 of 28 pixels wide; 8 by 8 is what they were recorded with.
        inner = images[:, 4:-4, 4:-4].astype(np.float32)
        small = np.asarray(jax.image.resize(inner, (len(inner), 8, 8, 1), "linear"))
        return small.reshape(len(small), -1) / small.max()

    count, size = settings.sequence_images, settings.sequence_size
    train = scaled(digits.train_images)[:count], digits.train_labels[:count]
    test = scaled(digits.test_images), digits.test_labels
    array = hw.Crossbar(rows=size, columns=size, gain=GAIN)
    return _trained(run, "digits-small", train, test, (size,), digits.num_classes, array)


def speech(run: Run[Settings]) -> Problem:
    """Log-mel features of spoken words, from 0 to 1."""
    settings = run.settings
    commands = data.speech_commands()
    bands = settings.speech_bands
    parts = [
        nn.log_mel(a, bands, bands).reshape(len(a), -1)
        for a in (commands.train_audio, commands.test_audio)
    ]
    top = parts[0].max()
    train, test = (
        (x / top, y)
        for x, y in zip(parts, (commands.train_labels, commands.test_labels), strict=True)
    )
    return _trained(
        run, "speech-commands", train, test, settings.speech_widths, len(commands.words)
    )


def _trained(
    run: Run[Settings],
    name: str,
    train: Any,
    test: Any,
    widths: tuple[int, ...],
    classes: int,
    array: hw.Crossbar | None = None,
) -> Problem:
    """A network that was trained digitally, with its crossbars."""
    settings = run.settings
    f, params = jaxeff.functional(
        MLP((train[0].shape[1], *widths, classes), rngs=nnx.Rngs(run.seed))
    )
    result = fit(
        jax.random.fold_in(run.key, 6), cross_entropy(f), params, train,
        optimizer=optax.adam(settings.rate), epochs=settings.digital,
        batch_size=settings.batch_size, checkpoint=run.work / f"{name}-digital.safetensors",
        progress=False,
    )  # fmt: skip
    spec = {"*:linear": array or hw.Crossbar(gain=GAIN)}
    spec = hw.calibrate_ranges(f, result.params, [train[0][:500]], spec)
    return Problem(name, f, result.params, train, test, spec)
