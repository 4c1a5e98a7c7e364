"""A keyword spotter for a microcontroller that knows what it doesn't know, from recordings.

A network of depthwise separable convolutions over cepstra (DS-CNN: Zhang et al., arXiv:1711.07128)
is trained, then on its grid (LSQ), and converted to integers. Its last layer is a Laplace
approximation, so that moments give every logit a variance. From these come sets of classes
(conformal prediction) of probabilities that are smoothed over steps, as those of Chen et al.
(ICASSP 2014) are. A word is said where it is alone in its set. The threshold follows the truth
where the caller tells it (`truth`, of the decision before; -1 where nobody knows).

Sharp edges:
    Coverage is of the step that follows a recording in a stream of them, as those that are held
    out; between two words a window has parts of both.
    Without feedback the threshold stays, and coverage is that of speakers and rooms alike.
"""

import math
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxeff
from jaxeff import Gaussian, bayes, data, nn, training, uncertainty, weights
from jaxeff.compression import LSQ, LayerQuantization, init, learned
from jaxeff.moment_propagation import is_gaussian
from jaxeff.store import InflationError, open_regular, read_npz, require_inflatable
from jaxeff_export.artifact import SignatureError
from jaxeff_export.bundle import Bundle, deploy
from jaxeff_export.clib import CLibrary, ExampleProgram

FRONT = nn.LogMel(cepstra=10)
HOP = 2
"""New frames of a step: the network's one stride."""
FIRST = 3
"""Frames of the first convolution: few, so that its sums fill as many bits as those of pointwise
convolutions, and a Cortex-M4 has one function for both."""
SMOOTH = 0.25
"""What a step, of 40 ms, adds of its own to the probabilities of those before."""
LAG = 3
"""Steps after the end of a recording for which sets are judged: smoothed ones come later."""
SAMPLES = (HOP - 1) * FRONT.hop + FRONT.window
"""Samples that a step takes."""
NEW = HOP * FRONT.hop
"""Samples of these that are new; the others end what came before."""
SECOND = FRONT.rate // NEW
"""Steps of a second."""
COPIES = 8
"""Recordings as they might have been: earlier, faster, fainter, in noise."""
LEVELS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Coverages that the page compares."""
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


def silence() -> np.ndarray:
    """Computes the cepstra of a second without a sound, with which a stream begins."""
    return features(np.zeros((1, FRONT.rate), np.int16))


def varied(key: np.random.Generator, audio: np.ndarray, quiet: np.ndarray) -> np.ndarray:
    """Moves recordings by up to a tenth of a second, changes speed and level, and adds noise.

    Args:
        key: NumPy's generator.
        audio: Recordings, int16 `[n, samples]`.
        quiet: Recordings without a word, whose sound is noise; white noise where there are none.
    """
    length = audio.shape[1]
    time, middle = np.arange(length), length / 2
    result = np.empty_like(audio)
    for i, sound in enumerate(audio):
        at = (time - middle) * key.uniform(0.88, 1.14) + middle + key.integers(-1600, 1601)
        moved = np.interp(at, time, sound, left=0, right=0) * 10 ** key.uniform(-0.5, 0.3)
        noise = (
            np.roll(quiet[key.integers(len(quiet))], key.integers(length))
            if len(quiet)
            else key.normal(0, 100, length)
        )
        moved += noise * key.choice([0, key.uniform()])
        result[i] = np.clip(moved, -(2**15), 2**15 - 1)
    return result


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

    def follow(self, region: Any, truth: Any, threshold: Any) -> Any:
        """Returns the threshold after the truth of a set, -1 where it isn't known."""
        kept = uncertainty.ConformalCalibration(threshold, _Kept())
        step = uncertainty.online_conformal(lambda _, x: x, kept, self.coverage, rate=RATE)
        return step(None, region, truth, threshold)[1]

    def stepwise(self, window: np.ndarray, *, seen: bool = False) -> tuple[Function, Any]:
        """Makes a step of a stream from `HOP` frames, and its state after a window.

        Args:
            window: Cepstra `[1, frames, 1, cepstra]`.
            seen: Whether the state keeps the features of the last step, and the loudness of its
                quietest frame.
        """
        body, stream = jaxeff.streaming(self.body, self.codes, jnp.asarray(window), hop=HOP)
        count, width = self.posterior["kernel"].std.shape[::-1]

        def step(params: Any, frames: Any, truth: Any, state: Any) -> tuple[Any, Any]:
            codes, posterior = params
            x, stream = body(codes, frames, state["stream"])
            logits = self.head(posterior, x)
            # The truth is of the decision before, whose set was kept.
            threshold = self.follow(state["region"], truth, state["threshold"])
            probable = state["probable"]
            probable = probable + (jax.nn.softmax(tempered(logits)) - probable) * SMOOTH
            region = self.calibration.method.region(probable, threshold)
            said = alone(region, self.words)
            kept = {
                "stream": stream, "region": region, "threshold": threshold, "probable": probable
            }  # fmt: skip
            # The first of the cepstra is the loudness of its frame.
            kept |= {"seen": x, "quiet": frames[:, :, 0, 0].min(1)} if seen else {}
            return {"said": said, "mean": logits.mean, "variance": logits.var}, kept

        state = {
            "stream": stream, "region": jnp.zeros((1, count), bool),
            "threshold": jnp.asarray(self.calibration.threshold, jnp.float32),
            "probable": jnp.zeros((1, count), jnp.float32),
        }  # fmt: skip
        first = {"seen": jnp.zeros((1, width), jnp.float32), "quiet": jnp.zeros(1, jnp.int32)}
        return step, state | (first if seen else {})


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


def decoded(coded: WeightCodes) -> Gaussian:
    mean, std = (part.astype(jnp.float32) for part in (coded.mean, coded.std))
    return Gaussian(mean * coded.steps[0], (std * coded.steps[1]) ** 2)


class _Probable(uncertainty.LAC):
    """`LAC` of probabilities, by what a class lacks to one.

    That is from 0 to 1, as the bound of `online_conformal` wants it, and takes no logarithm.
    """

    def scores(self, outputs: Any, targets: Any) -> Any:
        return 1 - jnp.take_along_axis(outputs, jnp.asarray(targets)[:, None], 1)[:, 0]

    def region(self, outputs: Any, threshold: Any) -> Any:
        return outputs >= 1 - threshold


class _Kept(uncertainty.LAC):
    """A set that was made before: a step of a stream keeps it until its truth comes."""

    def region(self, outputs: Any, threshold: Any) -> Any:
        return outputs


def tempered(logits: Gaussian) -> jax.Array:
    """Divides means by what their variance makes of a sigmoid (MacKay 1992, eq. 10)."""
    return logits.mean / jnp.sqrt(1 + jnp.pi / 8 * logits.var)


def alone(region: Any, words: int) -> jax.Array:
    """Finds the word that is alone in its set `[n]`; -1 where there is none."""
    # Of one class, the sum of places is its place; words come first. Smaller than `argmax`.
    place = (jnp.asarray(region) * jnp.arange(region.shape[1], dtype=jnp.int32)).sum(1)
    return jnp.where((region.sum(1) == 1) & (place < words), place, NOBODY).astype(jnp.int32)


def network(frames: int, cepstra: int, width: int, blocks: int) -> tuple[Function, Any]:
    """Makes a network from cepstra of a window to features."""
    layers: list[Any] = [
        nnx.Conv(cepstra, width, (FIRST, 1), strides=(HOP, 1), padding="VALID", rngs=nnx.Rngs(0)),
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
    left = (frames - FIRST) // HOP + 1 - 2 * blocks
    layers += [
        nnx.Conv(
            width, width, (left, 1), feature_group_count=width, padding="VALID",
            kernel_init=nnx.initializers.constant(1 / left), rngs=nnx.Rngs(98),
        ),
        nnx.relu,
    ]  # fmt: skip
    return jaxeff.functional(nnx.Sequential(*layers, lambda h: h[:, 0, 0]))


@dataclass(frozen=True)
class SpotterRecipe:
    """How a spotter is trained.

    Attributes:
        bits: Width of the weights' codes.
        width: Channels of the network.
        blocks: Pairs of convolutions.
        epochs: Epochs in floating point.
        coverage: How often the truth is to be in its set.
    """

    bits: int
    width: int
    blocks: int
    epochs: int
    coverage: float


def varied_features(words: Words, copies: int, seed: int) -> np.ndarray:
    """Computes features of the training recordings, and then of varied copies of all of them."""
    audio, labels = words.train
    rng = np.random.default_rng(seed)
    is_quiet = [name in ("_silence_", "_background_noise_") for name in words.names]
    quiet = audio[np.array(is_quiet)[labels]]
    # Recordings as they are come first: the last layer's posterior is fitted to these alone.
    more = [features(varied(rng, audio, quiet)) for _ in range(copies - 1)]
    return np.concatenate([features(audio), *more])


def train(
    key: Any, words: Words, recipe: SpotterRecipe, *, seed: int, begin: Path | None = None
) -> Spotter:
    """Trains a spotter, first in floating point, then on its grid."""
    labels, copies = words.train[1], min(COPIES, recipe.epochs)
    x, y = varied_features(words, copies, seed), np.tile(labels, copies)
    mean, deviation = x.mean((0, 1, 2)), x.std((0, 1, 2))
    factor, centre = (1 / deviation).astype(np.float32), mean.astype(np.float32)
    bare, params = network(x.shape[1], x.shape[-1], recipe.width, recipe.blocks)
    head, last = jaxeff.functional(nnx.Linear(recipe.width, len(words.names), rngs=nnx.Rngs(99)))
    if begin is not None:
        params, last = loaded(begin, params, last)

    def body(params: Any, x: Any) -> Any:
        return bare(params, (x.astype(jnp.float32) - centre) * factor)

    def fit(f: Function, params: Any, share: float, rate: float, kinds: Any = "weights") -> Any:
        # An epoch of `fit` goes through all copies.
        passes = max(round(recipe.epochs * share / copies), 1)
        schedule = optax.cosine_decay_schedule(rate, passes * max(len(y) // BATCH, 1))
        # Adam moves each number alike: what moves a weight a little would take steps, which are
        # smaller the more bits there are, past zero.
        slow = optax.chain(optax.adam(schedule), optax.scale(0.1))
        optimizer = optax.partition({"weights": optax.adam(schedule), "steps": slow}, kinds)
        loss = training.cross_entropy(f)
        return training.fit(
            key, loss, params, (x, y), optimizer=optimizer, epochs=passes, batch_size=BATCH
        ).params

    params, last = fit(lambda p, x: head(p[1], body(p[0], x)), (params, last), 1, 3e-3)
    grid = LayerQuantization(
        LSQ(recipe.bits, narrow=True, per="channel", initial="error"), LSQ(8, initial="error")
    )
    spec = init(body, params, x[:200], {"*:linear": grid})
    on_grid = learned(body)
    (params, spec), last = fit(
        lambda p, x: head(p[1], on_grid(p[0], x)),
        ((params, spec), last),
        0.75,
        1e-3,
        (("weights", "steps"), "weights"),
    )
    g = jaxeff.integer(body, spec)
    codes = g.convert(params, x[:1])
    # Of the recordings as they are: copies are no further evidence.
    x, y = x[: len(labels)], labels
    seen = np.concatenate(
        [jax.jit(g)(codes, part) for part in np.array_split(x, len(x) // 500 + 1)]
    )
    fitted = bayes.laplace(key, head, last, (seen, y), structure="kron")
    posterior = jax.tree.map(_coded, fitted.to_gaussians(), is_leaf=is_gaussian)
    of_last = jaxeff.moments(head)

    def moments(posterior: Any, seen: Any) -> Any:
        return of_last(jax.tree.map(decoded, posterior, is_leaf=_is_coded), seen)

    none = uncertainty.ConformalCalibration(jnp.float32(0), _Probable())
    spotter = Spotter(g, codes, moments, posterior, none, words.count, recipe.coverage)
    return replace(spotter, calibration=calibrated(spotter, words, seed)(recipe.coverage))


def loaded(path: Path, params: Any, last: Any) -> tuple[Any, Any]:
    """Gives the body and the last layer the tensors of a PyTorch `state_dict`, in its order."""
    tensors = _tensors(path)
    theirs = list(dict.fromkeys(name.rpartition(".")[0] for name in tensors))
    ours = [*(f"0/layers/{n}" for n in sorted(params["layers"], key=int)), "1"]
    if len(theirs) != len(ours):
        raise SignatureError(
            f"{path}: expected {len(ours)} layers, found {len(theirs)}: {', '.join(theirs)}"
        )
    rules = {
        f"{mine}/{leaf}": f"{its}.{name}"
        for mine, its in zip(ours, theirs, strict=True)
        for leaf, name in (("kernel", "weight"), ("bias", "bias"))
    }
    try:
        return jaxeff.load_weights((params, last), tensors, rules, mirrored=()).params
    except weights.WeightsError as error:
        raise SignatureError(f"{path}: {error}") from error


def _tensors(path: Path) -> dict[str, np.ndarray]:
    """Reads names and tensors, and nothing else: a pickle could run its writer's code."""
    if path.suffix not in (".pt", ".pth", ".npz"):
        raise SignatureError(f"{path}: expected a .pt, .pth or .npz")
    try:
        if path.suffix == ".npz":
            with open_regular(path) as (file, _):
                return read_npz(file)
        import torch  # optional

        size, way_out = path.stat().st_size, "write its tensors as an npz, uncompressed"
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
            require_inflatable((member.file_size for member in members), size, way_out)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        # A view may repeat one number a billion times.
        sizes = (tensor.numel() * tensor.element_size() for tensor in tensors.values())
        require_inflatable(sizes, size, way_out)
        return {name: tensor.numpy() for name, tensor in tensors.items()}
    except ImportError as error:
        raise SignatureError(
            f"{path}: reading it takes PyTorch; install it, or write an .npz"
        ) from error
    except InflationError as error:
        raise SignatureError(f"{path} {error}") from error
    except OSError as error:
        raise SignatureError(f"{path}: {error.strerror or error}") from error
    # What a broken or unsafe file raises is its reader's affair.
    except Exception as error:
        raise SignatureError(
            f"{path}: expected what torch.save(model.state_dict(), ...) writes, found "
            f"{type(error).__name__}"
        ) from error


def calibrated(
    spotter: Spotter, words: Words, seed: int
) -> Callable[[float], uncertainty.ConformalCalibration]:
    """Returns the threshold of any coverage, from a stream of the recordings held out."""
    order = np.random.default_rng(seed).permutation(len(words.held[1]))
    ends = at_ends(probabilities(spotter, words.held[0][order]))
    truth = words.held[1][order]
    return lambda coverage: uncertainty.conformalize(ends, truth, _Probable(), coverage)


def compiled(
    step: Function, params: Any, state: Any, target: str, path: Path
) -> tuple[Bundle, Function, Any]:
    """Compiles a step: from the samples of `HOP` frames, and what they share with those before.

    Returns:
        The bundle, the same step under JAX, and its arguments at the beginning.
    """

    def spot(params: Any, audio: Any, truth: Any, state: Any) -> Any:
        return step(params, FRONT.fixed(audio)[None, :, None], truth, state)

    audio = np.zeros(SAMPLES, np.int16)
    args = params, audio, np.full(1, NOBODY, np.int32), state
    return deploy(spot, args, target=target, path=path, state=("state",)), jax.jit(spot), args


def emulated(
    library: CLibrary, spot: Function, args: Any, audio: np.ndarray, told: Mapping[int, int]
) -> tuple[int, int]:
    """Runs a stream on the emulated core: its steps, and in how many it decides as JAX does.

    Every step begins in the state that JAX is in: where all agree, so do they one after the other.
    What is said, the sets and the stream's codes have JAX's bits there; logits and their variances
    are sums of floats, which XLA adds in another order.

    Args:
        library: The spotter's.
        spot: The same step under JAX.
        args: Arguments of the first step.
        audio: Samples.
        told: The truth of the step before, by number of the step; others aren't known.
    """
    params, _, truth, state = args
    calls, expected = [], []
    for i, begin in enumerate(range(0, len(audio) - SAMPLES + 1, NEW)):
        sound, word = audio[begin : begin + SAMPLES], np.full_like(truth, told.get(i, NOBODY))
        calls.append([sound, word, *map(np.asarray, jax.tree.leaves(state))])
        result, state = spot(params, sound, word, state)
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


def probabilities(spotter: Spotter, audio: np.ndarray) -> np.ndarray:
    """Hears recordings end to end, after a second of silence and before one, under JAX.

    Returns:
        Smoothed probabilities after each step, `[steps, classes]`, the first one 40 ms after the
        silence began to end.
    """
    return kept_of(spotter, audio, "probable")


def kept_of(spotter: Spotter, audio: np.ndarray, name: str) -> np.ndarray:
    """Hears recordings as `probabilities` does; returns a part of the state after each step."""
    silence = np.zeros(FRONT.rate, np.int16)
    frames = jax.jit(FRONT.fixed)(np.r_[silence, audio.reshape(-1), silence])[None, :, None]
    first = FRONT.frames(FRONT.rate)
    step, state = spotter.stepwise(frames[:, :first], seen=name in ("seen", "quiet"))
    new = frames[:, first : first + (frames.shape[1] - first) // HOP * HOP]
    new = jnp.moveaxis(new.reshape(1, -1, HOP, *new.shape[2:]), 1, 0)
    params, truth = (spotter.codes, spotter.posterior), jnp.full(1, NOBODY, jnp.int32)

    def one(state: Any, frames: Any) -> tuple[Any, Any]:
        _, state = step(params, frames, truth, state)
        return state, state[name][0]

    return np.asarray(jax.jit(lambda: jax.lax.scan(one, state, new)[1])())


def at_ends(probable: np.ndarray) -> np.ndarray:
    """Picks the steps `LAG` after each recording of a stream's end."""
    return probable[SECOND - 1 + LAG :: SECOND][: len(probable) // SECOND - 1]


def calls_of(said: np.ndarray) -> np.ndarray:
    """Finds the steps at which a word begins to be said, at most once in a second."""
    begins = np.flatnonzero((said != NOBODY) & (np.r_[NOBODY, said[:-1]] != said))
    kept: list[int] = []
    for at in begins:
        if not kept or at - kept[-1] >= SECOND:
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
    ends = at_ends(probabilities(spotter, noisy.astype(np.int16)))
    begin = jnp.asarray(spotter.calibration.threshold, jnp.float32)

    def one(threshold: Any, example: Any) -> tuple[Any, Any]:
        probable, truth = example
        fixed, region = (spotter.calibration.method.region(probable, t) for t in (begin, threshold))
        inside = jnp.stack([fixed[0, truth[0]], region[0, truth[0]]])
        return spotter.follow(region, truth, threshold), inside

    examples = jnp.asarray(ends)[:, None], jnp.asarray(labels)[:, None]
    inside = np.asarray(jax.lax.scan(one, begin, examples)[1])
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
    is_word = labels < words.count
    order = np.random.default_rng(seed).permutation(np.flatnonzero(is_word))
    truth, others = labels[order], audio[~is_word]
    stream, without = (probabilities(spotter, part) for part in (audio[order], others))
    mixed = np.random.default_rng(seed).permutation(len(labels))
    ends = at_ends(probabilities(spotter, audio[mixed]))
    hours = len(others) / 3600

    def judged(calibration: uncertainty.ConformalCalibration) -> dict[str, float]:
        region = calibration.method.region

        def calls(probable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            said = np.asarray(alone(region(probable, calibration.threshold), words.count))
            return (at := calls_of(said)), said[at]

        # A word is called rightly where it stands, or within half a second.
        at, said = calls(stream)
        first = np.maximum((at - SECOND // 2) // SECOND, 0)
        right = [
            (truth[begin : step // SECOND + 1] == word).any()
            for begin, step, word in zip(first, at, said, strict=True)
        ]
        heard = [
            (truth[which] == said[(at >= which * SECOND) & (at < (which + 1.5) * SECOND)]).any()
            for which in range(len(truth))
        ]
        sets = np.asarray(region(ends, calibration.threshold))
        alarms = len(calls(without)[0])
        return {
            "heard": float(np.mean(heard)), "wrong": float(1 - np.mean(right)) if right else 0.0,
            "alarms": alarms, "alarms_per_hour": alarms / hours,
            "coverage": float(sets[np.arange(len(sets)), labels[mixed]].mean()),
            "set": float(sets.sum(1).mean()),
        }  # fmt: skip

    of = calibrated(spotter, words, seed)
    return {
        "recordings": len(labels), "asked": spotter.coverage, "minutes": hours * 60,
        "accuracy": float((np.asarray(logits.mean.argmax(1)) == labels).mean()),
        "deviation": float(np.sqrt(logits.var).mean()), **judged(spotter.calibration),
        "levels": [{"asked": level, **judged(of(level))} for level in LEVELS],
        **drifting(spotter, words, seed),
    }  # fmt: skip
