"""MLPerf Tiny's four reference networks as C libraries for an emulated Cortex-M4, and a submission.

    python -m experiments.beyond.tiny_networks [--fast]

Each network is converted to int8 and exported as a function of the bytes that the benchmark's
runner sends. qemu counts the instructions of a call, and the emulated board's bits are compared
with JAX's.

Two networks are trained, on what data are at hand: images of CIFAR-10 (`ic`), and words of Speech
Commands' test archive (`kws`, whose other speakers test). Their firmware runs in the emulator and
is sent inputs by the runner's protocol over its UART; what it answers is the accuracy of the
submission. People and machines' sounds (`vww`, `ad`) aren't at hand: parameters are random,
instructions don't depend on them, and the submission says nothing of accuracy.

All goes into one folder of a submission, of the open division, beside the results.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxeff_export
import numpy as np
from flax import nnx
from jaxeff_export import mlperf_tiny
from jaxeff_export.clib import CLibrary, count_instructions
from jaxeff_export.mlperf_tiny import Inference
from jaxeff_export.targets import emulation

import jaxeff
from experiments import harness as h
from experiments.beyond.keyword_spotting.recordings import features, moved, speech
from experiments.beyond.microcontroller.moments import has_toolchain
from experiments.harness import Count, Row, Run
from experiments.recipes import cosine_adam
from experiments.trainable import trainable
from jaxeff import data, nn, training
from jaxeff.compression import ptq

CORE = "cortex-m4"
SUBMISSION = "submission"
RATE, BATCH = 3e-3, 64


@dataclass(frozen=True)
class Reference:
    """A network of the benchmark, and how bytes of the runner become its inputs."""

    make: Callable[..., nnx.Module]
    shape: tuple[int, ...]  # of one input
    dtype: str  # of what is sent
    zero: float  # byte of a value of zero
    step: float  # value of one more

    def values(self, data: Any) -> Any:
        """Inputs `[batch, *shape]`, of bytes `[batch, size]` or of that shape."""
        return (data.reshape(-1, *self.shape).astype(jnp.float32) - self.zero) * self.step


NETWORKS = {
    "kws": Reference(nn.DSCNN, (49, 10, 1), "int8", 0.0, 1 / 32),
    "ic": Reference(nn.ResNet8, (32, 32, 3), "uint8", 128.0, 1 / 64),
    "vww": Reference(nn.MobileNetV1, (96, 96, 3), "uint8", 128.0, 1 / 64),
    "ad": Reference(nn.DenseAutoencoder, (640,), "float32", 0.0, 1.0),
}


@dataclass(frozen=True)
class Settings:
    """Which networks there are, and how two of them are trained."""

    networks: tuple[str, ...] = tuple(NETWORKS)  # by their names in a submission
    kws_epochs: Count = 24  # over recordings, at four places each
    ic_epochs: Count = 10  # over images, shifted and mirrored
    images: Count = 50_000  # of CIFAR-10
    sent: Count = 200  # inputs for testing that the runner sends to each emulated board


class Sent(NamedTuple):
    """Inputs as the runner sends them, `[n, *shape]`, with their classes."""

    train: tuple[Any, Any]
    test: tuple[Any, Any]


class Learnt(NamedTuple):
    """A network, its parameters, examples of its inputs and what tests it."""

    f: Callable[..., Any]
    params: Any
    examples: jax.Array
    test: tuple[Any, Any] | None = None


def words(reference: Reference) -> Sent:
    """Cepstra of recordings in bytes, of unit variance; of other speakers those for testing."""
    sounds = speech()
    audio, labels = (np.concatenate(parts) for parts in zip(sounds.train, sounds.held, strict=True))
    plain = features(audio)
    mean, deviation = plain.mean((0, 1, 2)), plain.std((0, 1, 2))

    def sent(cepstra: np.ndarray) -> np.ndarray:
        codes = np.round((cepstra - mean) / deviation / reference.step)
        return codes.clip(-128, 127).astype(np.int8).reshape(-1, *reference.shape)

    more = [features(moved(audio, seed)) for seed in range(3)]
    x = np.concatenate([sent(part) for part in (plain, *more)])
    return Sent(
        (x, np.tile(labels, 1 + len(more))), (sent(features(sounds.test[0])), sounds.test[1])
    )


def images(count: int) -> Sent:
    """Images of CIFAR-10, whose pixels are the bytes."""
    cifar = data.load("cifar-10")
    return Sent(
        (cifar.train_images[:count], cifar.train_labels[:count]),
        (cifar.test_images, cifar.test_labels),
    )


def learn(run: Run[Settings], task: str, reference: Reference) -> Learnt:
    """Trains a network on bytes."""
    some = words(reference) if task == "kws" else images(run.settings.images)
    network = trainable(lambda rngs: reference.make(rngs=rngs), reference.shape)
    params, state = network.init(jax.random.fold_in(run.fast_key, 0))

    def seen(key: jax.Array, params: Any, state: Any, x: jax.Array) -> Any:
        x = data.augment(key, x) if task == "ic" else x
        return network.train(params, state, reference.values(x))

    epochs = run.settings.ic_epochs if task == "ic" else run.settings.kws_epochs
    result = training.fit(
        jax.random.fold_in(run.fast_key, 1), training.cross_entropy(seen, keyed=True, mutable=True),
        params, some.train, state=state, epochs=epochs, batch_size=BATCH,
        optimizer=cosine_adam(RATE, epochs * (len(some.train[0]) // BATCH)),
        checkpoint=run.work / f"{task}.safetensors",
    )  # fmt: skip
    examples = reference.values(jnp.asarray(some.train[0][:512]))

    def evaluate(params: Any, x: jax.Array) -> jax.Array:
        logits: jax.Array = network.evaluate(params, result.state, x)[0]
        return logits

    return Learnt(evaluate, result.params, examples, some.test)


def random_parameters(run: Run[Settings], reference: Reference) -> Learnt:
    """Leaves a network as it begins, for want of data."""
    module = reference.make(rngs=nnx.Rngs(run.seed))
    module.eval()
    f, params = jaxeff.functional(module)
    return Learnt(f, params, jax.random.normal(run.key, (64, *reference.shape)))


def measure(run: Run[Settings], task: str) -> list[Row]:
    """Trains where there are data, converts, exports and counts one network."""
    reference = NETWORKS[task]
    trained = task in ("ic", "kws")
    learnt = learn(run, task, reference) if trained else random_parameters(run, reference)
    g, codes, _ = ptq(learnt.f, learnt.params, learnt.examples)

    def on_bytes(codes: Any, data: jax.Array) -> jax.Array:
        values = reference.values(data)
        outputs = g(codes, values)
        if task == "ad":
            return ((outputs - values) ** 2).mean(-1)
        return jax.nn.softmax(outputs)

    first = learnt.examples[:1]
    sent = jnp.round(first / reference.step + reference.zero) if task != "ad" else first
    example = sent.reshape(1, -1).astype(reference.dtype)
    cost = jaxeff.cost(learnt.f, learnt.params, first)
    row: Row = {"benchmark": task, "core": CORE, "parameters": cost.params, "macs": cost.macs}
    if learnt.test is not None:
        row |= accuracies(reference, learnt, lambda x: on_bytes(codes, x))
    if not has_toolchain(CORE):
        return [row]
    bundle = jaxeff_export.deploy(on_bytes, (codes, example), target=CORE)
    row["same"] = int(bundle.check(f"emulated:{CORE}").passed)
    library = bundle.export_c(run.folder / "libraries" / task, name=task, flash="4m", ram="4m")
    row["instructions"] = count_instructions(library, CORE).total
    row["per_mac"] = row["instructions"] / cost.macs
    row["workspace"] = library.sizes.workspace
    row["flash"] = library.sizes.code + library.sizes.parameters
    if learnt.test is not None:
        # Test sets are sorted: every so many of them.
        every = max(len(learnt.test[1]) // run.settings.sent, 1)
        x, labels = (part[::every][: run.settings.sent] for part in learnt.test)
        answered = ask(library, task, x)
        expected = np.asarray(jax.jit(on_bytes)(codes, jnp.asarray(x.reshape(len(x), -1))))
        chosen = np.array([one.results for one in answered]).argmax(1)
        row |= {"sent": len(x), "answered": float((chosen == labels).mean())}
        # Three digits of a probability may tie where all of them don't.
        row["as_jax"] = float((chosen == expected.argmax(1)).mean())
        kept = {"outcomes": answered, "labels": labels.tolist()}
        (run.folder / "libraries" / f"{task}.json").write_text(json.dumps(kept))
    return [row]


def accuracies(reference: Reference, learnt: Learnt, on_bytes: Callable[..., Any]) -> Row:
    """Accuracy in floats and in int8 over all that tests."""
    x, labels = learnt.test  # type: ignore[misc]
    in_floats, in_int8 = (
        jax.jit(lambda x: learnt.f(learnt.params, reference.values(x)).argmax(-1)),
        jax.jit(lambda x: on_bytes(x.reshape(len(x), -1)).argmax(-1)),
    )
    parts = [(x[i : i + 500], labels[i : i + 500]) for i in range(0, len(x), 500)]
    right = {
        name: sum(int((np.asarray(f(part)) == true).sum()) for part, true in parts)
        for name, f in (("accuracy", in_floats), ("int8", in_int8))
    }
    return {"tests": len(x)} | {name: count / len(x) for name, count in right.items()}


@contextmanager
def emulated(library: CLibrary, task: str) -> Iterator[str]:
    """Runs a firmware whose UART is a socket, and says where that is."""
    model = mlperf_tiny.TASKS[task].model
    flags = [f'-D{library.name.upper()}_MLPERF="{model}"', "-o", "firmware.elf"]
    subprocess.run(
        [*library.serial_build, *flags], cwd=library.folder, check=True, capture_output=True
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = emulation(CORE, library.target, library.folder / "firmware.elf")
    command[command.index("-serial") + 1] = f"tcp:127.0.0.1:{port},server=on,wait=off"
    with subprocess.Popen(command) as process:
        try:
            _wait_for(port)
            yield f"socket://127.0.0.1:{port}"
        finally:
            process.kill()


def _wait_for(port: int) -> None:
    # The emulator takes a moment until it listens.
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"the emulator doesn't listen at port {port}")


def ask(library: CLibrary, task: str, x: np.ndarray) -> list[Inference]:
    """Sends inputs to an emulated board by the runner's protocol, and returns what it answers."""
    with (
        emulated(library, task) as place,
        mlperf_tiny.TinyDevice(place, timeout=60) as device,
    ):
        if device.model != mlperf_tiny.TASKS[task].model:
            raise ValueError(f"the firmware is of {device.model}")
        return mlperf_tiny.measure(device, [one.tobytes() for one in x])


def submit(run: Run[Settings], rows: list[Row]) -> list[Row]:
    """Writes one submission of all networks that were exported."""
    entries = []
    for row in rows:
        task, home = row["benchmark"], run.folder / "libraries"
        if "instructions" not in row or not (home / task).is_dir():
            continue
        file = home / f"{task}.json"
        kept = json.loads(file.read_text()) if file.exists() else {"outcomes": [], "labels": []}
        entries.append(
            mlperf_tiny.Entry(
                task, home / task, instructions=row["instructions"], labels=kept["labels"],
                outcomes=[Inference(tuple(r), t, n) for r, t, n in kept["outcomes"]],
            )
        )  # fmt: skip
    if not entries:
        return []
    folder = mlperf_tiny.submission(
        run.folder / SUBMISSION, entries, submitter="jaxeff", system="emulated-m4",
        facts={"Board Name": "MPS2 AN386, emulated by qemu", "Processor(s) Name": "Cortex-M4",
               "Quantization Method": "int8 after training"},
    )  # fmt: skip
    qualities = {entry.task: entry.quality for entry in entries if entry.quality is not None}
    return [{"submission": Path(folder).name, "networks": len(entries), **qualities}]


def make(run: Run[Settings]) -> list[Row]:
    """Measures each network, and submits them together."""
    rows = run.each(run.settings.networks, lambda task: measure(run, task))
    return [*rows, *run.keep(SUBMISSION, lambda: submit(run, rows))]


COLUMNS = (
    "benchmark", "core", "parameters", "macs", "instructions", "per_mac", "workspace", "flash",
    "same",
)  # fmt: skip
TRAINED = ("benchmark", "tests", "accuracy", "int8", "sent", "answered", "as_jax")

STUDY = h.Study(
    "tiny_networks", __doc__,
    {
        "fast": Settings(networks=("ad",)),
        "default": Settings(),
        "full": Settings(kws_epochs=60, ic_epochs=100, sent=1000),
    },
    (h.Kept(make),),
    (
        h.Claim(
            "{benchmark}: a {core} has JAX's results", "same", h.equals(1), 1, h.having("same")
        ),
        h.Claim(
            "{benchmark}: instructions a multiply-add", "per_mac", h.at_most(1.5), 1.5,
            h.having("per_mac"),
        ),
        h.Claim(
            "{benchmark}: share of decisions over the UART that are JAX's", "as_jax",
            h.at_least(0.99), 0.99, h.having("as_jax"),
        ),
        # The closed division's targets; the data of kws are a tenth of the benchmark's.
        h.Claim(
            "ic: accuracy over the UART", "answered", h.at_least(0.85), 0.85,
            h.where(benchmark="ic"), needs="default",
        ),
        h.Claim(
            "kws: accuracy over the UART", "answered", h.at_least(0.90), 0.90,
            h.where(benchmark="kws"), needs="default",
        ),
    ),
    (
        h.Plot(
            "instructions",
            h.Bars(
                "{benchmark}", {"per_mac": "of a call"}, h.having("per_mac"),
                axes={"ylabel": "instructions a multiply-add"},
            ),
        ),
        h.Plot(
            "accuracy",
            h.Bars(
                "{benchmark}",
                {"accuracy": "floats", "int8": "int8", "answered": "int8, over the UART"},
                h.having("answered"), axes={"ylabel": "share of right classes"},
            ),
        ),
    ),
    (
        h.Listing("int8 on an emulated core", COLUMNS, h.having("benchmark")),
        h.Listing("trained networks", TRAINED, h.having("tests")),
    ),
    differences=(
        "Parameters of the reference weren't at hand: a submission would be of the open division.",
        "kws learns from 3,900 recordings where the benchmark has 36,900, and is tested by other "
        "speakers of the same archive.",
    ),
    version=2,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
