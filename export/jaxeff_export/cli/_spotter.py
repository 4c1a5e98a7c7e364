"""A keyword spotter for a microcontroller that knows what it doesn't know, from recordings.

A network of depthwise separable convolutions over cepstra (DS-CNN: Zhang et al., arXiv:1711.07128)
is trained, then on its grid (LSQ), and converted to integers. Its last layer is a Laplace
approximation, so that moments give every logit a variance. From these come sets of classes
(conformal prediction), whose threshold follows the truth where the caller tells it (`truth`, of the
decision before; -1 where nobody knows). A word is said where it is alone in the set for some steps.

Sharp edges:
    Coverage is of windows that hold a recording, as those that are held out; between two words of a
    stream a window has parts of both.
    Without feedback the threshold stays, and coverage is that of speakers and rooms alike.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxeff
from jaxeff import Gaussian, bayes, data, nn, training, uncertainty
from jaxeff.compression import LSQ, LayerQuantization, init, learned
from jaxeff.moment_propagation import is_gaussian
from jaxeff.reporting import Report
from jaxeff_export.artifact import SignatureError
from jaxeff_export.bundle import Bundle, deploy
from jaxeff_export.clib import CLibrary, ExampleProgram, count_instructions

FRONT = nn.LogMel(cepstra=10)
HOP = 2
"""New frames of a step: the network's one stride."""
CALLED = 4
"""Steps in a row, of 40 ms, for which a word is alone in its set before it is said."""
NOBODY = -1
"""No word, and a truth that nobody knows."""
RATE = 0.05
"""What the threshold moves by at the most where a truth is known, as a probability."""
BATCH = 64
AT_ONCE = 256
Function = Callable[..., Any]


@dataclass(frozen=True)
class Words:
    """Recordings of one second, int16 `[n, 16000]`, with labels, of different speakers each.

    Attributes:
        names: The classes; those that begin with an underscore stand for none of the words.
        train: What is learnt.
        held: What thresholds are taken from.
        test: What is judged.
    """

    names: tuple[str, ...]
    train: tuple[np.ndarray, np.ndarray]
    held: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]

    @property
    def count(self) -> int:
        """Number of words; they come before the other classes."""
        return sum(not name.startswith("_") for name in self.names)


def words_of(folder: Path | None, seed: int) -> Words:
    """Reads a folder with a folder of wave files for each word; tones where there is none."""
    if folder is None:
        return _tones(seed)
    try:
        recordings = data.recordings(folder)
    except data.DataError as error:
        raise SignatureError(str(error)) from error
    audio, labels = recordings.train_audio, recordings.train_labels
    speakers = {s: i for i, s in enumerate(sorted(set(recordings.train_speakers.tolist())))}
    # A quarter of the speakers, so that nobody is heard in two parts.
    chosen = np.random.default_rng(seed).permutation(len(speakers)) % 4 == 0
    held = np.array([chosen[speakers[s]] for s in recordings.train_speakers])
    test = recordings.test_audio, recordings.test_labels
    return Words(recordings.words, (audio[~held], labels[~held]), (audio[held], labels[held]), test)


def _tones(seed: int) -> Words:
    """Two tones after each other stand for a word; other pairs and noise alone for none."""
    rng = np.random.default_rng(seed)
    pitches, time = 300.0 * 1.22 ** np.arange(8), np.arange(FRONT.rate) / FRONT.rate
    pairs = [(0, 3), (1, 6), (2, 5), (4, 1), (5, 0), (7, 2)]
    names = (*(f"tones_{a}_{b}" for a, b in pairs), "_other_", "_silence_")

    def recording(label: int) -> np.ndarray:
        others = [(a, b) for a in range(8) for b in range(8) if (a, b) not in pairs]
        pair = pairs[label] if label < len(pairs) else others[rng.integers(len(others))]
        first, second = (
            np.sin(2 * np.pi * pitches[p] * rng.uniform(0.98, 1.02) * time) for p in pair
        )
        at = np.arange(FRONT.rate) - rng.integers(2_000, 9_000)
        sound = np.where(at < 3_000, first, second) * ((at >= 0) & (at < 6_000))
        level = 0 if names[label] == "_silence_" else rng.uniform(300, 6_000)
        noise = rng.normal(0, rng.uniform(5, 150), FRONT.rate)
        return (level * sound + noise).astype(np.int16)

    def part(each: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.tile(np.arange(len(names)), each).astype(np.int32)
        return np.stack([recording(int(label)) for label in labels]), labels

    return Words(names, part(60), part(40), part(40))


def features(audio: np.ndarray) -> np.ndarray:
    """Computes cepstra, int32 `[n, frames, 1, cepstra]`, in batches of one size."""
    of_some = jax.jit(FRONT.fixed)
    padded = np.pad(audio, ((0, -len(audio) % AT_ONCE), (0, 0)))
    parts = padded.reshape(-1, AT_ONCE, audio.shape[1])
    return np.concatenate([of_some(part) for part in parts])[: len(audio), :, None]


@dataclass(frozen=True)
class Spotter:
    """A trained spotter.

    Attributes:
        body: `body(codes, x)`, from cepstra of a window to features, in integers.
        codes: Parameters of the body.
        head: Moments of the last layer: `head(posterior, features)` are Gaussian logits.
        posterior: Weights of the last layer, as `Gaussian`.
        calibration: The score of the sets, and the threshold to begin with.
        words: Number of classes that are words.
        coverage: How often the truth is to be in its set.
    """

    body: Function
    codes: Any
    head: Function
    posterior: Any
    calibration: uncertainty.ConformalCalibration
    words: int
    coverage: float

    def logits(self, x: np.ndarray) -> Gaussian:
        """Computes logits of whole windows."""
        call = jax.jit(lambda x: self.head(self.posterior, self.body(self.codes, x)))
        several = [call(part) for part in np.array_split(x, max(math.ceil(len(x) / 500), 1))]
        return Gaussian(*(jnp.concatenate([getattr(g, of) for g in several]) for of in _PARTS))

    def region(self, logits: Gaussian, threshold: Any) -> jax.Array:
        """Tells of each class whether it is in the set, `[n, classes]`."""
        return self.calibration.method.region(tempered(logits), threshold)

    def follow(self, region: Any, truth: Any, threshold: Any) -> Any:
        """Returns the threshold after the truth of a set, -1 where it isn't known."""
        kept = uncertainty.ConformalCalibration(threshold, _Kept())
        step = uncertainty.online_conformal(lambda _, x: x, kept, self.coverage, rate=RATE)
        return step(None, region, truth, threshold)[1]

    def stepwise(self, window: np.ndarray) -> tuple[Function, Any]:
        """Makes a step of a stream from `HOP` frames, and its state after a window."""
        body, stream = jaxeff.streaming(self.body, self.codes, jnp.asarray(window), hop=HOP)
        count = len(self.posterior["bias"].mean)

        def step(params: Any, frames: Any, truth: Any, state: Any) -> tuple[Any, Any]:
            codes, posterior = params
            x, stream = body(codes, frames, state["stream"])
            logits = self.head(posterior, x)
            # The truth is of the decision before, whose set was kept.
            threshold = self.follow(state["region"], truth, state["threshold"])
            region = self.region(logits, threshold)
            alone = (region.sum(1) == 1) & (region[:, self.words :].sum(1) == 0)
            word = jnp.where(alone, region.argmax(1), NOBODY).astype(jnp.int32)
            run = jnp.where((word == state["word"]) & alone, state["run"] + 1, alone)
            said = jnp.where(run >= CALLED, word, NOBODY)
            kept = {
                "stream": stream, "region": region, "threshold": threshold, "word": word,
                "run": run.astype(jnp.int32),
            }  # fmt: skip
            return {"said": said, "mean": logits.mean, "variance": logits.var}, kept

        state = {
            "stream": stream, "region": jnp.zeros((1, count), bool),
            "threshold": jnp.asarray(self.calibration.threshold, jnp.float32),
            "word": jnp.full(1, NOBODY, jnp.int32), "run": jnp.zeros(1, jnp.int32),
        }  # fmt: skip
        return step, state


_PARTS = ("mean", "var")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WeightCodes:
    """Gaussian weights of a byte each for the mean and the deviation, times two steps."""

    mean: Any
    std: Any
    steps: Any


def _is_coded(value: Any) -> bool:
    return isinstance(value, WeightCodes)


def _coded(gaussian: Gaussian) -> WeightCodes:
    parts = gaussian.mean, jnp.sqrt(gaussian.var)
    steps = jnp.stack([jnp.abs(part).max() for part in parts]) / 127
    mean, std = (jnp.round(p / s).astype(jnp.int8) for p, s in zip(parts, steps, strict=True))
    return WeightCodes(mean, std, steps)


def _decoded(coded: WeightCodes) -> Gaussian:
    mean, std = (part.astype(jnp.float32) for part in (coded.mean, coded.std))
    return Gaussian(mean * coded.steps[0], (std * coded.steps[1]) ** 2)


class _Probable(uncertainty.LAC):
    """`LAC` by what a class lacks to a probability of one.

    That is from 0 to 1, as the bound of `online_conformal` wants it, and takes no logarithm.
    """

    def scores(self, outputs: Any, targets: Any) -> Any:
        picked = jnp.take_along_axis(jax.nn.softmax(outputs), jnp.asarray(targets)[:, None], 1)
        return 1 - picked[:, 0]

    def region(self, outputs: Any, threshold: Any) -> Any:
        parts = jnp.exp(outputs - outputs.max(1, keepdims=True))
        return parts >= (1 - threshold) * parts.sum(1, keepdims=True)


class _Kept(uncertainty.LAC):
    """A set that was made before: a step of a stream keeps it until its truth comes."""

    def region(self, outputs: Any, threshold: Any) -> Any:
        return outputs


def tempered(logits: Gaussian) -> jax.Array:
    """Divides means by what their variance makes of a sigmoid (MacKay 1992, eq. 10)."""
    return logits.mean / jnp.sqrt(1 + jnp.pi / 8 * logits.var)


def train(
    key: Any, words: Words, *, bits: int, width: int, blocks: int, epochs: int, coverage: float
) -> Spotter:
    """Trains a spotter, first in floating point, then on its grid."""
    x, y = features(words.train[0]), words.train[1]
    mean, deviation = x.mean((0, 1, 2)), x.std((0, 1, 2))
    factor, centre = (1 / deviation).astype(np.float32), mean.astype(np.float32)
    layers: list[Any] = [
        nnx.Conv(x.shape[-1], width, (10, 1), strides=(HOP, 1), padding="VALID", rngs=nnx.Rngs(0)),
        nnx.relu,
    ]
    for i in range(blocks):
        depthwise = nnx.Conv(
            width,
            width,
            (3, 1),
            feature_group_count=width,
            padding="VALID",
            rngs=nnx.Rngs(2 * i + 1),
        )
        pointwise = nnx.Conv(width, width, (1, 1), rngs=nnx.Rngs(2 * i + 2))
        layers += [depthwise, nnx.relu, pointwise, nnx.relu]
    # In the place of a mean over time, whose inputs a stream would keep as floats: of a convolution
    # it keeps codes.
    left = (x.shape[1] - 10) // HOP + 1 - 2 * blocks
    layers += [
        nnx.Conv(
            width, width, (left, 1), feature_group_count=width, padding="VALID",
            kernel_init=nnx.initializers.constant(1 / left), rngs=nnx.Rngs(98),
        ),
        nnx.relu,
    ]  # fmt: skip
    bare, weights = jaxeff.functional(nnx.Sequential(*layers, lambda h: h[:, 0, 0]))
    head, last = jaxeff.functional(nnx.Linear(width, len(words.names), rngs=nnx.Rngs(99)))

    def body(params: Any, x: Any) -> Any:
        return bare(params, (x.astype(jnp.float32) - centre) * factor)

    def fit(f: Function, params: Any, share: float, rate: float) -> Any:
        some = max(round(epochs * share), 1)
        schedule = optax.cosine_decay_schedule(rate, some * max(len(y) // BATCH, 1))
        loss = training.cross_entropy(f)
        return training.fit(
            key, loss, params, (x, y), optimizer=optax.adam(schedule), epochs=some,
            batch_size=BATCH,
        ).params  # fmt: skip

    weights, last = fit(lambda p, x: head(p[1], body(p[0], x)), (weights, last), 1, 3e-3)
    grid = LayerQuantization(
        LSQ(bits, narrow=True, per="channel", initial="error"), LSQ(8, initial="error")
    )
    spec = init(body, weights, x[:200], {"*:linear": grid})
    on_grid = learned(body)
    (weights, spec), last = fit(
        lambda p, x: head(p[1], on_grid(p[0], x)), ((weights, spec), last), 0.5, 1e-3
    )
    g = jaxeff.integer(body, spec)
    codes = g.convert(weights, x[:1])
    seen = np.concatenate(
        [jax.jit(g)(codes, part) for part in np.array_split(x, len(x) // 500 + 1)]
    )
    fitted = bayes.laplace(key, head, last, (seen, y), structure="kron")
    posterior = jax.tree.map(_coded, fitted.to_gaussians(), is_leaf=is_gaussian)
    of_last = jaxeff.moments(head)

    def moments(posterior: Any, seen: Any) -> Any:
        return of_last(jax.tree.map(_decoded, posterior, is_leaf=_is_coded), seen)

    spotter = Spotter(g, codes, moments, posterior, None, words.count, coverage)  # type: ignore[arg-type]
    held = tempered(spotter.logits(features(words.held[0])))
    calibration = uncertainty.conformalize(held, words.held[1], _Probable(), coverage)
    return replace(spotter, calibration=calibration)


def compiled(spotter: Spotter, target: str, path: Path) -> tuple[Bundle, Function, Any]:
    """Compiles a step: from the samples of `HOP` frames, and what they share with those before.

    Returns:
        The bundle, the same step under JAX, and its arguments at the beginning.
    """
    silence = features(np.zeros((1, FRONT.rate), np.int16))
    step, state = spotter.stepwise(silence)

    def spot(params: Any, audio: Any, truth: Any, state: Any) -> Any:
        return step(params, FRONT.fixed(audio)[None, :, None], truth, state)

    audio = np.zeros((HOP - 1) * FRONT.hop + FRONT.window, np.int16)
    args = (spotter.codes, spotter.posterior), audio, np.full(1, NOBODY, np.int32), state
    return deploy(spot, args, target=target, path=path, state=("state",)), jax.jit(spot), args


def emulated(library: CLibrary, spot: Function, args: Any, audio: np.ndarray) -> tuple[int, int]:
    """Runs a stream on the emulated core: its steps, and in how many it decides as JAX does.

    Every step begins in the state that JAX is in: where all agree, so do they one after the other.
    What is said, the sets and the stream's codes have JAX's bits there; logits and their variances
    are sums of floats, which XLA adds in another order.
    """
    params, new, truth, state = args
    calls, expected = [], []
    for begin in range(0, len(audio) - len(new) + 1, HOP * FRONT.hop):
        sound = audio[begin : begin + len(new)]
        calls.append([sound, truth, *map(np.asarray, jax.tree.leaves(state))])
        result, state = spot(params, sound, truth, state)
        expected.append(jax.tree.leaves((result, state)))
    program = ExampleProgram(library, library.target_name)
    same = [
        all(map(_agree, ours, theirs))
        for ours, theirs in zip(program.run_all(calls), expected, strict=True)
    ]
    program.close()
    return len(same), sum(same)


def _agree(ours: np.ndarray, theirs: Any) -> bool:
    if ours.dtype == np.float32 and ours.ndim:
        return np.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    return np.array_equal(ours, theirs)


def said_in(spotter: Spotter, audio: np.ndarray) -> np.ndarray:
    """Runs a stream under JAX: the word that each step after the first second says, -1 for none."""
    frames = jax.jit(FRONT.fixed)(audio)[None, :, None]
    first = FRONT.frames(FRONT.rate)
    step, state = spotter.stepwise(frames[:, :first])
    new = frames[:, first : first + (frames.shape[1] - first) // HOP * HOP]
    new = jnp.moveaxis(new.reshape(1, -1, HOP, *new.shape[2:]), 1, 0)
    params, truth = (spotter.codes, spotter.posterior), jnp.full(1, NOBODY, jnp.int32)

    def one(state: Any, frames: Any) -> tuple[Any, Any]:
        result, state = step(params, frames, truth, state)
        return state, result["said"][0]

    return np.asarray(jax.jit(lambda: jax.lax.scan(one, state, new)[1])())


def calls_of(said: np.ndarray) -> np.ndarray:
    """Finds the steps at which a word begins to be said, at most once in a second."""
    begins = np.flatnonzero((said != NOBODY) & (np.r_[NOBODY, said[:-1]] != said))
    steps = FRONT.rate // (HOP * FRONT.hop)
    kept: list[int] = []
    for at in begins:
        if not kept or at - kept[-1] >= steps:
            kept.append(int(at))
    return np.array(kept, int)


def drifting(spotter: Spotter, words: Words, seed: int) -> dict[str, float]:
    """Measures coverage while a stream of test recordings drowns in noise, bit by bit.

    Returns coverage of the first and last third, with the threshold of the beginning and followed.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(words.test[1]))
    audio, labels = words.test[0][order].astype(np.float32), words.test[1][order]
    power = audio.std(1, keepdims=True) * np.linspace(0, 1, len(labels))[:, None] ** 2
    noisy = np.clip(audio + rng.normal(size=audio.shape) * power, -(2**15), 2**15 - 1)
    logits = spotter.logits(features(noisy.astype(np.int16)))
    begin = jnp.asarray(spotter.calibration.threshold, jnp.float32)

    def one(threshold: Any, example: Any) -> tuple[Any, Any]:
        logits, truth = example
        fixed, region = (spotter.region(logits, t) for t in (begin, threshold))
        inside = jnp.stack([fixed[0, truth[0]], region[0, truth[0]]])
        return spotter.follow(region, truth, threshold), inside

    alone = jax.tree.map(lambda leaf: leaf[:, None], (logits, jnp.asarray(labels)))
    inside = np.asarray(jax.lax.scan(one, begin, alone)[1])
    third = len(inside) // 3
    (fixed_first, online_first), (fixed_last, online_last) = (
        map(float, part.mean(0)) for part in (inside[:third], inside[-third:])
    )
    return {
        "fixed_first": fixed_first, "fixed_last": fixed_last,
        "online_first": online_first, "online_last": online_last,
    }  # fmt: skip


def measured(spotter: Spotter, words: Words, seed: int) -> dict[str, Any]:
    """Judges a spotter on speakers that nothing was learnt from."""
    audio, labels = words.test
    logits = spotter.logits(features(audio))
    region = np.asarray(spotter.region(logits, spotter.calibration.threshold))
    best, is_word = np.asarray(logits.mean.argmax(1)), labels < words.count
    alone = (region.sum(1) == 1) & (best < words.count) & region[np.arange(len(best)), best]
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.flatnonzero(is_word))
    second = FRONT.rate // (HOP * FRONT.hop)
    # Recordings end to end; a word is called right where it stands, or just after.
    said = said_in(spotter, np.r_[np.zeros(FRONT.rate, np.int16), audio[order].reshape(-1)])
    begins = calls_of(said)
    hits = [
        any(said[at] == labels[which] for at in begins if 0 <= at - i * second < 1.5 * second)
        for i, which in enumerate(order)
    ]
    others = audio[~is_word].reshape(-1)
    alarms = len(calls_of(said_in(spotter, np.r_[np.zeros(FRONT.rate, np.int16), others])))
    hours = len(others) / FRONT.rate / 3600
    # Poisson: none in so many hours is no more than three by chance (95 %).
    return {
        "recordings": len(labels), "accuracy": float((best == labels).mean()),
        "coverage": float(region[np.arange(len(labels)), labels].mean()),
        "asked": spotter.coverage, "set": float(region.sum(1).mean()),
        "recognized": float((alone & (best == labels))[is_word].mean()),
        "mistaken": float((alone & (best != labels))[is_word].mean()),
        "deviation": float(np.sqrt(logits.var).mean()),
        "heard": float(np.mean(hits)), "alarms": alarms, "minutes": hours * 60,
        "alarms_per_hour": alarms / hours, **drifting(spotter, words, seed),
    }  # fmt: skip


def build(
    folder: Path | None, output: Path, target: str, say: Callable[[str], None], *, seed: int,
    listened: int, **options: Any,
) -> Report:  # fmt: skip
    """Goes the whole way; the output gets a bundle, a C library and the page.

    Args:
        folder: Recordings; None for tones.
        output: Folder for what is made.
        target: A microcontroller.
        say: Tells what is being done.
        seed: Seed of the split, the training and the streams.
        listened: Seconds of test recordings that the emulated core hears.
        options: Settings of `train`.
    """
    words = words_of(folder, seed)
    say(f"training on {len(words.train[1])} recordings of {len(words.names)} classes")
    spotter = train(jax.random.key(seed), words, **options)
    say("judging it on other speakers")
    section = measured(spotter, words, seed)
    say(f"compiling for {target}")
    bundle, spot, args = compiled(spotter, target, output / "bundle")
    library = bundle.export_c(output / "library", name="spotter")
    say("listening on the emulated core")
    steps, same = emulated(library, spot, args, words.test[0][:listened].reshape(-1))
    sizes = library.sizes
    count = count_instructions(library, target).total
    section |= {
        "classes": list(words.names), "words": words.count, "target": target, **options,
        "flash": sizes.code + sizes.parameters, "code": sizes.code, "parameters": sizes.parameters,
        "ram": sizes.workspace + sizes.arrays + sizes.stack, "workspace": sizes.workspace,
        "arrays": sizes.arrays, "stack": sizes.stack, "steps": steps, "same": same,
        "instructions": round(count * FRONT.rate / (HOP * FRONT.hop)),
    }  # fmt: skip
    page = Report.of_target(f"Keyword spotter of {words.count} words", bundle.facts())
    page = replace(page, sections={"spotter": section, **page.sections})
    page.save(output / "report.html")
    page.save(output / "report.json")
    return page
