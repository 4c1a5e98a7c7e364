"""Boxes and pixels against loops of NumPy and scikit-learn; coverage of margins by simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as sk
from scipy import stats

from jaxeff import Gaussian
from jaxeff import uncertainty as u

RNG = np.random.default_rng(0)


def boxes_of(rng, n, spread=30):
    low = rng.uniform(0, spread, (n, 2))
    return np.concatenate([low, low + rng.uniform(3, 15, (n, 2))], 1).astype(np.float32)


def iou_of(a, b):
    height = min(a[2], b[2]) - max(a[0], b[0])
    width = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(height, 0) * max(width, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def suppressed(boxes, scores, classes, iou):
    """All that greedy suppression leaves, best first."""
    order, left = list(np.argsort(-scores, kind="stable")), []
    while order:
        best = order.pop(0)
        left.append(best)
        order = [
            other for other in order
            if classes[other] != classes[best] or iou_of(boxes[best], boxes[other]) <= iou
        ]  # fmt: skip
    return left


def test_iou_is_that_of_pixels_counted_one_by_one():
    corners = np.sort(RNG.integers(0, 12, (2, 6, 2, 2)), axis=2).reshape(2, 6, 4)
    grid = np.arange(12)

    def pixels(box):
        rows, columns = (grid >= box[0]) & (grid < box[2]), (grid >= box[1]) & (grid < box[3])
        return rows[:, None] & columns

    one, other = (np.array([pixels(box) for box in each]) for each in corners)
    shared = (one[:, None] & other[None]).sum((2, 3))
    either = (one[:, None] | other[None]).sum((2, 3))
    expected = np.where(either, shared / np.maximum(either, 1), 0)
    assert (expected > 0).any()
    np.testing.assert_allclose(u.box_iou(*corners.astype(np.float32)), expected, rtol=1e-6)
    gradient = jax.grad(lambda b: u.box_iou(b, b).sum())(jnp.zeros((2, 4)))
    assert jnp.isfinite(gradient).all()


def test_suppression_is_that_of_a_loop():
    step = jax.jit(jax.vmap(lambda b, s, c: u.nms(b, s, 12, iou=0.3, classes=c)))
    boxes = np.stack([boxes_of(RNG, 25) for _ in range(6)])
    scores = np.round(RNG.uniform(0, 1, (6, 25)), 1).astype(np.float32)  # with ties
    classes = RNG.integers(0, 2, (6, 25))
    place, valid = step(boxes, scores, classes)
    counts = set()
    for i in range(6):
        expected = suppressed(boxes[i], scores[i], classes[i], 0.3)
        counts.add(len(expected))
        np.testing.assert_array_equal(place[i][valid[i]], expected[:12])
        assert valid[i].sum() == min(len(expected), 12)
    assert max(counts) > 12  # more than there are places for


def test_suppression_leaves_out_what_is_not_there():
    boxes = jnp.array([[0.0, 0, 4, 4], [0, 0, 0, 0], [9, 9, 12, 12], [0, 0, 4, 5]])
    kept = u.nms(boxes, jnp.array([0.5, 0.9, -jnp.inf, 0.6]), 4)
    np.testing.assert_array_equal(kept.place[kept.valid], [1, 3])  # one without extent once
    np.testing.assert_array_equal(kept.valid, [True, True, False, False])
    unknown = jax.jit(lambda s: u.nms(boxes, s, 2))(jnp.array([0.5, jnp.nan, 0.1, 0.2]))
    np.testing.assert_array_equal(unknown.place, [0, 2])
    with pytest.raises(ValueError, match="scores must be one for each of 4"):
        u.nms(boxes, jnp.ones(3), 2)


def test_matches_are_those_of_a_loop():
    for seed in range(8):
        rng = np.random.default_rng(seed)
        overlap = np.round(rng.uniform(0, 1, (9, 5)), 1).astype(np.float32)
        scores = rng.permutation(9).astype(np.float32)
        free, expected = set(range(5)), np.zeros(9, bool)
        for i in np.argsort(-scores):
            best = max(free, key=lambda j: overlap[i, j], default=None)
            if best is not None and overlap[i, best] >= 0.7:
                free.remove(best)
                expected[i] = True
        np.testing.assert_array_equal(u.match_detections(overlap, scores, 0.7), expected)


def test_precision_and_recall_are_scikit_learns():
    scores = np.round(RNG.uniform(0, 1, 60), 1).astype(np.float32)
    hits = RNG.uniform(0, 1, 60) < scores
    ours = jax.jit(u.precision_recall)(scores, hits, hits.sum())
    precision, recall, thresholds = sk.precision_recall_curve(hits, scores)
    places = np.searchsorted(-np.asarray(ours.scores), -thresholds)
    np.testing.assert_allclose(ours.precision[places], precision[:-1], rtol=1e-6)
    np.testing.assert_allclose(ours.recall[places], recall[:-1], rtol=1e-6)
    area = u.average_precision(scores, hits, hits.sum(), envelope=False)
    np.testing.assert_allclose(area, sk.average_precision_score(hits, scores), rtol=1e-5)
    # Objects that nothing finds: each counts with a precision of zero.
    half = u.average_precision(scores, hits, 2 * hits.sum(), envelope=False)
    np.testing.assert_allclose(2 * half, area, rtol=1e-5)


def enveloped(scores, hits, truths):
    """The area under the best precision at a recall or above it, object by object."""
    order = np.argsort(-scores, kind="stable")
    right = np.cumsum(hits[order])
    precision = right / np.arange(1, len(scores) + 1)
    return sum(precision[right >= k].max(initial=0) for k in range(1, truths + 1)) / truths


def test_mean_average_precision_is_that_of_each_class_alone():
    scores = RNG.permutation(80).astype(np.float32)
    classes = RNG.integers(-1, 3, 80)
    hits = (RNG.uniform(0, 1, 80) < scores / 80) & (classes >= 0)
    truths = np.array([hits[classes == kind].sum() + 2 for kind in range(3)] + [0])
    each = [
        enveloped(scores[classes == kind], hits[classes == kind], truths[kind]) for kind in range(3)
    ]
    ours = jax.jit(u.mean_average_precision)(scores, hits, classes, truths)
    np.testing.assert_allclose(ours, np.mean(each), rtol=1e-5)
    assert jnp.isnan(u.average_precision(scores, hits, 0))


@pytest.mark.parametrize("ignored", [None, 4])
def test_mean_iou_is_scikit_learns(ignored):
    labels = RNG.integers(0, 3, (2, 8, 9))
    told = np.where(RNG.uniform(0, 1, labels.shape) < 0.6, labels, RNG.integers(0, 4, labels.shape))
    if ignored is not None:
        labels = np.where(RNG.uniform(0, 1, labels.shape) < 0.2, ignored, labels)
    counts = labels != ignored
    expected = sk.jaccard_score(labels[counts], told[counts], average="macro")
    ours = u.mean_iou(told, labels, 6, ignored=ignored)  # two classes never occur
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    with pytest.raises(ValueError, match="labels"):
        u.mean_iou(told, labels + 9, 6)


def cells(key, shape=(2, 3, 4)):
    keys = jax.random.split(key, 3)
    logits = 3 * jax.random.normal(keys[0], (*shape, 4))
    low = jax.random.uniform(keys[1], (*shape, 2), maxval=30)
    return logits, jnp.concatenate(
        [low, low + 3 + 9 * jax.random.uniform(keys[2], (*shape, 2))], -1
    )


def test_detections_are_those_of_a_loop():
    logits, boxes = cells(jax.random.key(0))
    ours = jax.jit(u.detect(lambda x: x, 6, iou=0.2, least=0.4))((logits, boxes))
    probs = np.asarray(jax.nn.softmax(logits)).reshape(2, 12, 4)[..., 1:]
    for i in range(2):
        top, kind = probs[i].max(-1), probs[i].argmax(-1)
        there = np.flatnonzero(top >= 0.4)
        corners = np.asarray(boxes[i]).reshape(12, 4)
        left = there[suppressed(corners[there], top[there], kind[there], 0.2)]
        n = min(len(left), 6)
        assert n > 0
        np.testing.assert_array_equal(ours.boxes[i, :n], corners[left[:n]])
        np.testing.assert_array_equal(ours.classes[i], [*kind[left[:n]], *[-1] * (6 - n)])
        np.testing.assert_allclose(ours.scores[i], [*top[left[:n]], *[0] * (6 - n)], rtol=1e-6)
    assert not ours.variance.any()
    with pytest.raises(ValueError, match="rows, columns"):
        u.detect(lambda x: x)((logits[0], boxes[0]))


def test_cells_of_high_variance_are_refused():
    logits, boxes = cells(jax.random.key(0), (1, 2, 2))
    logits = jnp.zeros_like(logits).at[0, 0, :, 2].set(9.0)
    var = jnp.ones_like(logits).at[0, 0, 1, 2].set(4.0)
    gaussian = Gaussian(logits, var), Gaussian(10 * boxes, boxes)
    every = jax.jit(u.detect(lambda x: x, 3))(gaussian)
    np.testing.assert_array_equal(every.classes, [[1, 1, -1]])
    np.testing.assert_array_equal(every.variance[0, :2], [1, 4])  # the surer one first
    surer = jax.jit(u.detect(lambda x: x, 3, doubt=2))(gaussian)
    np.testing.assert_array_equal(surer.classes, [[1, -1, -1]])
    assert every.scores[0, 1] < every.scores[0, 0] < 1


def drawn(key, n):
    """Boxes whose sides err by unequal amounts, and by more where boxes are larger."""
    keys = jax.random.split(key, 3)
    size = 5 + 20 * jax.random.uniform(keys[0], (n, 2))
    boxes = jnp.concatenate([-size, size], 1)
    std = 0.1 * jnp.concatenate([size, size], 1) * jnp.array([[1.0, 1, 2, 3]])
    return Gaussian(boxes, std**2), boxes + std * jax.random.t(keys[2], 4, (n, 4))


CASES = {
    "pixels": (u.BoxMargins(), lambda o: o.mean),
    "relative": (u.BoxMargins(relative=True), lambda o: o.mean),
    "deviations": (u.BoxMargins(), lambda o: o),
}


@pytest.mark.oracle
@pytest.mark.parametrize("case", CASES)
def test_coverage_of_boxes_over_many_splits_is_beta_binomial(case):
    """Mean over 2,000 splits within four standard errors of the theory's."""
    method, of = CASES[case]
    n, fresh, splits = 49, 100, 2000

    @jax.jit
    @jax.vmap
    def hits(key):
        first, second = jax.random.split(key)
        outputs, targets = drawn(first, n)
        calibration = u.conformalize(of(outputs), targets, method, 0.8)
        outputs, targets = drawn(second, fresh)
        region = u.conformal(of, calibration)(outputs)
        return u.covered(calibration, region, targets).sum()

    counts = np.asarray(hits(jax.random.split(jax.random.key(3), splits)))
    theory = stats.betabinom(fresh, 40, n + 1 - 40)  # ceil(50 * 0.8)
    assert abs(counts.mean() - theory.mean()) < 4 * theory.std() / splits**0.5


def test_margins_are_the_largest_residual_of_a_side():
    boxes = jnp.array([[10.0, 10, 20, 30], [10, 10, 20, 30], [10, 10, 20, 30]])
    targets = boxes + jnp.array([[-1.0, 0, 0, 0], [0, 0, -3, 4], [2, 2, -2, -2]])
    method = u.BoxMargins()
    np.testing.assert_allclose(method.scores(boxes, targets), [1, 4, -2])
    np.testing.assert_allclose(method.region(boxes, 1.0)[0], [9, 9, 21, 31])
    np.testing.assert_array_equal(method.contains(method.region(boxes, 1.0), targets), [1, 0, 1])
    share = u.BoxMargins(relative=True)
    np.testing.assert_allclose(share.scores(boxes, targets), [0.1, 0.2, -0.1])
    np.testing.assert_allclose(share.region(boxes, 0.1)[0], [9, 8, 21, 32])
    deviations = Gaussian(boxes, jnp.full_like(boxes, 4.0))
    np.testing.assert_allclose(method.scores(deviations, targets), [0.5, 2, -1])
    np.testing.assert_allclose(method.region(deviations, 0.5)[0], [9, 9, 21, 31])
    with pytest.raises(TypeError, match="corners"):
        u.conformalize(boxes[:, :3], targets, method)
