"""Objects in scenes of digits: found, boxed, and refused where a cell's variance is high.

    python -m experiments.beyond.perception

Scenes of 64 by 64 pixels hold one to four digits of several sizes in noise, and a `CellDetector`
learns them. Detections are judged by mean average precision at an IoU of one half and by F1 of
those above a probability of one half: in floats, in int8, and with noise of weights.

What is wrong should be doubted: detections are ordered by doubt, and the area under the curve of
errors over the share that is kept (AURC) says how well. Doubts are the probability and the variance
of a cell's class with a little noise on all weights, from one pass of `jaxeff.moments` and from
draws: what hangs on few weights varies more. No posterior is inferred. Other scenes hold things
that no cell has seen (pieces of clothing): what is found there is wrong, too.

Boxes get margins so that nine of ten of the objects that were found lie inside as a whole (Andeol
et al. 2023, arXiv 2304.06052), in pixels, in shares of a box, in standard deviations of a side.

A U-Net tells each pixel of one digit's scenes its digit; pixels at rims, which are neither, don't
count.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxeff
from experiments import harness as h
from experiments.harness import Count, Report, Row, Run
from jaxeff import Gaussian, bayes, compression, data, nn
from jaxeff import uncertainty as u
from jaxeff.noise import Additive
from jaxeff.training import cross_entropy, fit, label_loss

CLASSES, SLOT = 10, 32
WEIGHTS = jnp.ones(1 + CLASSES).at[0].set(0.3)  # most cells are background
PRECISION, DOUBTS, BOXES, PIXELS = "precision", "doubts", "boxes", "pixels"
FLOATS, INT8 = "floats", "int8"
PASS, MEAN = "one pass", "mean network"


@dataclass(frozen=True)
class Settings:
    """What scenes are made of, and how networks learn."""

    data: str = "mnist"  # what lies in scenes
    others: str = "fashion-mnist"  # what nobody has learnt
    scenes: Count = 4000  # to learn; a quarter as many are held out, and as many are for tests
    epochs: Count = 20  # of the detector
    pixel_epochs: Count = 8  # of the U-Net
    batch_size: Count = 16  # scenes per update
    width: float = 0.05  # deviation of weights in one pass and draws, of each array's size
    draws: Count = 32  # beside one pass
    seeds: Count = 2  # networks, each of scenes of its own
    levels: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2)  # noise, shares of each kernel's range


class Scenes(NamedTuple):
    """Images `[n, side, side, 1]`, corners and classes of up to four objects, classes of pixels."""

    images: jax.Array
    boxes: jax.Array
    kinds: jax.Array
    pixels: jax.Array


def compose(rng: Any, things: Any, labels: Any, count: int, slots: int = 2) -> Scenes:
    """Puts things into some of the squares of 32 pixels that each scene has, `slots` by `slots`."""
    side = SLOT * slots
    canvas = np.zeros((count, side, side), np.float32)
    boxes, kinds = np.zeros((count, slots**2, 4), np.float32), np.full((count, slots**2), -1)
    pixels = np.zeros((count, side, side), int)
    for i in range(count):
        for slot in rng.permutation(slots**2)[: rng.integers(1, slots**2 + 1)]:
            which, size = rng.integers(len(things)), rng.integers(16, 29)
            nearest = ((np.arange(size) + 0.5) * 28 / size).astype(int)
            thing = things[which][np.ix_(nearest, nearest)] / np.float32(255)
            top, left = (SLOT * j + rng.integers(SLOT - size + 1) for j in divmod(slot, slots))
            there = np.s_[i, top : top + size, left : left + size]
            canvas[there] = thing
            pixels[there] = np.where(thing > 0.5, labels[which] + 1, np.where(thing > 0.1, -1, 0))
            rows, columns = (np.flatnonzero(thing.max(axis) > 0.1) for axis in (1, 0))
            ends = top + rows[0], left + columns[0], top + rows[-1] + 1, left + columns[-1] + 1
            boxes[i, slot], kinds[i, slot] = ends, labels[which]
    canvas += rng.normal(0, 0.2, canvas.shape).astype(np.float32)
    return Scenes(*map(jnp.asarray, (2 * canvas[..., None] - 0.3, boxes, kinds, pixels)))


def scenes(run: Run[Settings], seed: int, slots: int = 2) -> tuple[Scenes, Scenes, Scenes]:
    """Makes scenes to learn, held-out ones, and ones for tests, of images that aren't learnt."""
    digits, count = data.load(run.settings.data), run.settings.scenes
    rng = np.random.default_rng((run.seed, seed))
    learnt = digits.train_images[..., 0], digits.train_labels
    unseen = digits.test_images[..., 0], digits.test_labels
    half = len(unseen[0]) // 2
    images, labels = unseen
    return (
        compose(rng, *learnt, count, slots),
        compose(rng, images[:half], labels[:half], count // 4, slots),
        compose(rng, images[half:], labels[half:], count // 4, slots),
    )


@jax.jit
def cells(some: Scenes) -> Any:
    """What cells should say."""
    height, width = some.images.shape[1:3]
    shape = height // 8, width // 8
    return jax.vmap(lambda b, k: nn.cell_targets(b, k, shape))(some.boxes, some.kinds)


def detection_loss(f: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the loss of classes of cells and, where there are objects, of sides in pixels."""

    def loss(params: Any, batch: Any) -> Any:
        x, (classes, corners) = batch
        logits, boxes = f(params, x)
        there = (classes > 0)[..., None]
        error = jnp.where(there, optax.huber_loss(boxes, corners, delta=2.0), 0).mean(-1)
        located = error.sum() / jnp.maximum(there.sum(), 1).astype(float)
        return label_loss(logits, classes, weights=WEIGHTS) + 0.05 * located

    return loss


class Learnt(NamedTuple):
    """A detector, its weights, the same with noise, and the scenes."""

    f: Callable[..., Any]
    params: Any
    posterior: Any
    held: Scenes
    test: Scenes


def built(key: Any, network: Any, *sizes: int, **options: Any) -> Any:
    """Makes a network, in one program: kernel by kernel each would be compiled alone."""
    make = nnx.jit(lambda key: network(*sizes, rngs=nnx.Rngs(key), **options))
    return jaxeff.functional(make(key))


def learn(run: Run[Settings], seed: int) -> Learnt:
    """Trains a detector, and makes its weights random."""
    known, held, test = scenes(run, seed)
    key, n = jax.random.fold_in(run.key, seed), len(known.images)
    f, start = built(key, nn.CellDetector, CLASSES, boxes=True)

    falling = optax.cosine_decay_schedule(
        1e-2, run.settings.epochs * (n // run.settings.batch_size)
    )
    params = fit(
        key, detection_loss(f), start, (known.images, cells(known)), optimizer=optax.adam(falling),
        epochs=run.settings.epochs, batch_size=run.settings.batch_size, progress=False,
    ).params  # fmt: skip
    return Learnt(f, params, widened(params, run.settings.width), held, test)


def widened(params: Any, width: Any) -> Any:
    """Makes weights random: each array's deviation is a share of its root mean square."""
    return jax.tree.map(lambda w: Gaussian(w, jnp.full_like(w, width**2 * (w**2).mean())), params)


def drawn(run: Run[Settings], f: Callable[..., Any], posterior: Any, x: Any) -> Any:
    """Computes means and variances of what draws of the weights say."""

    def add(total: Any, key: Any) -> Any:
        said = f(bayes.draw(key, posterior), x)
        return [(a + y, b + y * y) for (a, b), y in zip(total, said, strict=True)], None

    n = run.settings.draws
    shapes = [y.shape for y in jax.eval_shape(f, bayes.draw(run.key, posterior), x)]
    zeros = [(jnp.zeros(shape), jnp.zeros(shape)) for shape in shapes]
    total = jax.lax.scan(add, zeros, jax.random.split(run.key, n))[0]
    return tuple(Gaussian(a / n, jnp.maximum(b - a * a / n, 0) / (n - 1)) for a, b in total)


class Judged(NamedTuple):
    """Detections in a row, and how many objects of each class there are."""

    scores: jax.Array
    variance: jax.Array
    classes: jax.Array
    hits: jax.Array
    truths: jax.Array


@jax.jit
def judge(told: u.Detections, boxes: jax.Array, kinds: jax.Array) -> Judged:
    """Compares detections with what there is."""

    def of_image(told: Any, boxes: jax.Array, kinds: jax.Array) -> jax.Array:
        same = (told.classes[:, None] == kinds[None]) & (kinds >= 0)[None]
        overlap = jnp.where(same, u.box_iou(told.boxes, boxes), -1.0)
        return u.match_detections(overlap, told.scores)

    hits = jax.vmap(of_image)(told, boxes, kinds)
    truths = jnp.bincount(jnp.where(kinds < 0, CLASSES, kinds).ravel(), length=CLASSES + 1)[:-1]
    scores, variance, classes, right = (
        each.ravel() for each in (told.scores, told.variance, told.classes, hits)
    )
    return Judged(scores, variance, classes, right, truths)


@jax.jit
def listed(outputs: Any, least: float) -> u.Detections:
    """Lists what cells say, `Gaussian` or not."""
    return u.detect(lambda outputs: outputs, 8, least=least)(outputs)


def of_outputs(outputs: Any, some: Scenes, least: float) -> Judged:
    """Judges what cells say."""
    return judge(listed(outputs, least), some.boxes, some.kinds)


def scored(judged: Judged) -> Row:
    """Computes mAP, and F1 of detections above a probability of one half."""
    precise = u.mean_average_precision(*(judged.scores, judged.hits, judged.classes, judged.truths))
    sure = judged.scores >= 0.5
    found_and_there = sure.sum() + judged.truths.sum()
    return {
        "mAP": float(precise),
        "F1": float(2 * (judged.hits & sure).sum() / found_and_there),
    }


def precisions(run: Run[Settings], one: Learnt) -> Iterator[Row]:
    """Precision in floats, in int8, and with noise of weights."""
    x = one.test.images
    g, codes = compression.ptq(one.f, one.params, one.held.images[:256])[:2]
    yield {"network": FLOATS, **scored(of_outputs(jax.jit(one.f)(one.params, x), one.test, 0.05))}
    yield {"network": INT8, **scored(of_outputs(jax.jit(g)(codes, x), one.test, 0.05))}

    @jax.jit
    def noisy(level: Any) -> Any:
        return jaxeff.noisy(one.f, {"*": Additive(level)})(run.key, one.params, x)

    for level in run.settings.levels:
        told = scored(of_outputs(noisy(jnp.float32(level)), one.test, 0.05))
        yield {"network": "noise", "level": level, **told}


def ways(run: Run[Settings], one: Learnt) -> dict[str, Callable[[jax.Array], Any]]:
    """The networks that doubt, each a function of images."""
    passed = jax.jit(jaxeff.moments(one.f, method="diagonal"))
    draw = jax.jit(lambda x: drawn(run, one.f, one.posterior, x))
    return {
        MEAN: functools.partial(jax.jit(one.f), one.params),
        PASS: functools.partial(passed, one.posterior),
        f"{run.settings.draws} draws": draw,
    }


def doubts(run: Run[Settings], one: Learnt, seed: int, networks: Any) -> Iterator[Row]:
    """How well doubt orders what is wrong, and how much of what is strange it refuses."""
    rng = np.random.default_rng((run.seed, seed, 1))
    others = data.load(run.settings.others)
    things, n = others.test_images[..., 0], len(one.test.images)
    strange = compose(rng, things, np.zeros(len(things), int), n)
    for name, network in networks.items():
        held, known, other = (
            of_outputs(network(some.images), some, 0.3) for some in (one.held, one.test, strange)
        )
        scores = {
            "probability": lambda each: 1 - each.scores,
            "variance": lambda each: each.variance,
        }
        for what in list(scores)[: 1 if name == MEAN else 2]:
            doubt, there, alarms = scores[what], known.classes >= 0, other.classes >= 0
            right = there & known.hits
            sure = doubt(held)[(held.classes >= 0) & held.hits]
            if not (sure.size and right.any() and alarms.any()):
                continue  # a network that has hardly learnt
            # Nineteen of twenty right detections on held-out scenes are kept.
            limit = u.coverage_threshold(sure, 0.95)
            kept = doubt(other)[alarms] <= limit
            yield {
                "network": name,
                "doubt": what,
                "aurc": float(u.aurc(doubt(known)[there], ~known.hits[there])),
                "errors": float(jnp.mean(~known.hits[there])),
                "auroc": float(u.auroc(doubt(known)[right], doubt(other)[alarms])),
                "alarms": float(alarms.sum() / n),
                "alarms_kept": float(kept.sum() / n),
            }


def margins(one: Learnt, network: Any) -> Iterator[Row]:
    """How often boxes with a margin hold what they are of, and how large they are."""

    def found_in(some: Scenes) -> tuple[Gaussian, jax.Array]:
        (logits, boxes), (classes, corners) = network(some.images), cells(some)
        right = (classes > 0) & (logits.mean.argmax(-1) == classes)
        return Gaussian(boxes.mean[right], boxes.var[right]), corners[right]

    (told, truth), (others, truths) = found_in(one.held), found_in(one.test)
    for name, method, of in (
        ("pixels", u.BoxMargins(), lambda o: o.mean),
        ("shares", u.BoxMargins(relative=True), lambda o: o.mean),
        ("deviations", u.BoxMargins(), lambda o: o),
    ):
        calibration = u.conformalize(of(told), truth, method, 0.9)
        region = u.conformal(of, calibration)(others)
        inside = u.covered(calibration, region, truths)
        area = jnp.prod(region[:, 2:] - region[:, :2], -1) / jnp.prod(
            truths[:, 2:] - truths[:, :2], -1
        )
        yield {
            "margin": name,
            "held": len(truth),
            "objects": len(truths),
            "coverage": float(inside.mean()),
            "bare": float(method.contains(others.mean, truths).mean()),
            "area": float(jnp.median(area)),
        }


def detector(run: Run[Settings], seed: int) -> Iterator[Row]:
    """All rows of one detector."""
    one = learn(run, seed)
    networks = ways(run, one)
    parts = {
        PRECISION: precisions(run, one),
        DOUBTS: doubts(run, one, seed, networks),
        BOXES: margins(one, networks[PASS]),
    }
    for part, rows in parts.items():
        for row in rows:
            yield {"part": part, "seed": seed, **row}


def pixels(run: Run[Settings], task: tuple[str, int]) -> Iterator[Row]:
    """Mean IoU of a U-Net, in floats and in int8."""
    seed = task[1]
    known, held, test = scenes(run, seed, slots=1)
    key = jax.random.fold_in(run.key, seed)
    f, start = built(key, nn.UNet, 1 + CLASSES)
    loss = cross_entropy(f, weights=WEIGHTS, ignored=-1)
    params = fit(
        key, loss, start, (known.images, known.pixels), optimizer=optax.adam(1e-2),
        epochs=run.settings.pixel_epochs, batch_size=run.settings.batch_size, progress=False,
    ).params  # fmt: skip
    g, codes = compression.ptq(f, params, held.images[:256])[:2]
    for name, network, weights in ((FLOATS, f, params), (INT8, g, codes)):
        said = jax.jit(network)(weights, test.images).argmax(-1)
        share = u.mean_iou(said, test.pixels, 1 + CLASSES, ignored=-1)
        yield {"part": PIXELS, "seed": seed, "network": name, "mIoU": float(share)}


def of_part(part: str, by: tuple[str, ...], columns: tuple[str, ...]) -> Any:
    """Selects means over seeds."""
    return h.means(h.where(part=part), by, columns, columns)


NUMBERS = {
    PRECISION: (("network", "level"), ("mAP", "F1")),
    DOUBTS: (("network", "doubt"), ("aurc", "errors", "auroc", "alarms", "alarms_kept")),
    BOXES: (("margin",), ("coverage", "bare", "area", "objects", "held")),
    PIXELS: (("network",), ("mIoU",)),
}


def selected(part: str) -> Any:
    """Selects the means of a part."""
    return of_part(part, *NUMBERS[part])


def differences(report: Report) -> Iterator[Row]:
    """Selects what int8 costs, and what one pass has over the mean network and over draws."""
    precise = {row["network"]: row for row in selected(PRECISION)(report)}
    said = {(row["network"], row["doubt"]): row for row in selected(DOUBTS)(report)}
    pixel = {row["network"]: row["mIoU"] for row in selected(PIXELS)(report)}
    draws = next((name for name, _ in said if name.endswith("draws")), None)
    if len(precise) < 3 or len(pixel) < 2 or draws is None:
        return
    one, mean = said[PASS, "variance"], said[MEAN, "probability"]
    yield {
        "int8": precise[FLOATS]["mAP"] - precise[INT8]["mAP"],
        "pixels": pixel[FLOATS] - pixel[INT8],
        "order": said[PASS, "probability"]["aurc"] - said[draws, "probability"]["aurc"],
        "strange": one["auroc"] - mean["auroc"],
    }


claim = functools.partial(h.Claim, of=differences, needs="default")
STUDY = h.Study(
    "perception", __doc__,
    {
        "fast": Settings(data="digits", others="digits-ood", scenes=400, epochs=16, pixel_epochs=2,
                         draws=4, seeds=1, levels=(0.1,)),
        "default": Settings(),
        "full": Settings(scenes=20000, seeds=5),
    },
    (
        h.Part(lambda run: list(range(run.settings.seeds)), detector),
        h.Part(lambda run: [(PIXELS, seed) for seed in range(run.settings.seeds)], pixels),
    ),
    (
        claim("mean average precision that int8 loses", "int8", h.at_most(0.02)),
        claim("mean IoU of pixels that int8 loses", "pixels", h.at_most(0.02)),
        claim("AURC of probabilities: what one pass is worse than draws", "order", h.at_most(0.01)),
        claim("AUROC of strange things: what the variance of one pass has over the probability of "
              "the mean network", "strange", h.above(0)),
        h.Claim("boxes with margins in {margin}: share that holds the object", "coverage",
                h.at_least(0.88), source=".9 or more", of=selected(BOXES), needs="default"),
    ),
    (
        h.Plot(
            "noise",
            h.Curves("level", "mAP", of_part(PRECISION, ("level",), ("mAP",)), error=True,
                     style="o-", axes={"xlabel": "noise, share of a kernel's range",
                                       "ylabel": "mean average precision"}),
        ),
    ),
    tuple(
        h.Listing(title, (*NUMBERS[part][0], *NUMBERS[part][1]), selected(part))
        for part, title in (
            (PRECISION, "detectors"), (DOUBTS, "doubt"), (BOXES, "boxes with margins"),
            (PIXELS, "pixels"),
        )
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
