"""Detection and segmentation: suppression, precision and recall, IoU, and boxes with a margin.

```python
import jax.numpy as jnp

from jaxeff.uncertainty import (
    average_precision, box_iou, match_detections, mean_iou, nms, precision_recall
)

boxes = jnp.array([[0.0, 0, 10, 10], [1, 0, 11, 10], [20, 20, 30, 30]])
scores = jnp.array([0.9, 0.8, 0.7])
kept = nms(boxes, scores, 2)                                   # places 0 and 2
truth = jnp.array([[0.0, 0, 10, 9]])
hits = match_detections(box_iou(boxes, truth), scores)         # True, False, False
precision_recall(scores, hits, truths=1).precision             # 1, 0.5, 0.333
average_precision(scores, hits, truths=1)                      # 1
mean_iou(jnp.array([0, 1, 1]), jnp.array([0, 1, 0]), 2)        # 0.5
```

Boxes are corners `(top, left, bottom, right)`. Arrays have fixed shapes: what there is less of than
places is marked, by a mask or a score of minus infinity. `detect` makes of a network (or of its
`jaxeff.moments`) a function that lists objects; all jit and vmap, and `detect` and `nms` deploy.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxeff import core
from jaxeff.moment_propagation import is_gaussian
from jaxeff.uncertainty._conformal import ConformalMethod
from jaxeff.uncertainty._gaussian_logits import probit_logits


def _check_boxes(where: str, value: Any) -> None:
    core.real_array()(where, value)
    if jnp.ndim(value) < 2 or jnp.shape(value)[-1] != 4:
        raise ValueError(f"{where} must be corners [..., n, 4], not of shape {jnp.shape(value)}")


@core.validate(boxes=_check_boxes, others=_check_boxes)
def box_iou(boxes: Float[Array, "*batch n 4"], others: Float[Array, "*batch m 4"]) -> Array:
    """Computes the area that boxes share with others, divided by the area of both together.

    Args:
        boxes: Corners.
        others: Corners of those that each is compared with.

    Returns:
        ``[*batch, n, m]``, 0 to 1; 0 for boxes without extent.
    """
    one, other = jnp.asarray(boxes)[..., :, None, :], jnp.asarray(others)[..., None, :, :]
    low, high = jnp.maximum(one[..., :2], other[..., :2]), jnp.minimum(one[..., 2:], other[..., 2:])
    shared = _area(jnp.concatenate([low, high], -1))
    union = _area(one) + _area(other) - shared
    # Both branches are differentiated: the one not taken must not divide by zero.
    return jnp.where(union > 0, shared / jnp.where(union > 0, union, 1), 0.0)


def _area(boxes: Array) -> Array:
    height, width = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
    return jnp.maximum(height, 0) * jnp.maximum(width, 0)


class Kept(NamedTuple):
    """Boxes that suppression left, best first.

    Attributes:
        place: Places among the boxes, `[count]`.
        valid: Whether there is one, `[count]`; behind the last the places say nothing.
    """

    place: Int[Array, " count"]
    valid: Bool[Array, " count"]


@core.validate(
    boxes=core.all_of(_check_boxes, core.real_array(2)),
    scores=core.real_array(1),
    count=core.static_integer(),
    iou=core.probability,
    classes=core.integer_array(1),
)
def nms(
    boxes: Float[Array, "n 4"],
    scores: Float[Array, " n"],
    count: int,
    *,
    iou: float | Float[Array, ""] = 0.5,
    classes: Int[Array, " n"] | None = None,
) -> Kept:
    """Takes the best box, drops those that overlap it, and so on: non-maximum suppression.

    It needs memory for n numbers, not for the overlaps of all pairs, and stops after `count` boxes.

    Args:
        boxes: Corners.
        scores: The higher the better; minus infinity where there is no box. Of equal ones the first
            is taken.
        count: Boxes to take at the most.
        iou: Overlap above which a box is taken for the same object.
        classes: Classes of the boxes, if only boxes of one class suppress each other.

    Raises:
        ValueError: Other than one score, or one class, for each box.
    """
    boxes, left = jnp.asarray(boxes), jnp.asarray(scores)
    for name, each in (("scores", scores), ("classes", classes)):
        if each is not None and jnp.shape(each) != boxes.shape[:1]:
            raise ValueError(
                f"nms: {name} must be one for each of {len(boxes)} boxes, not of shape "
                f"{jnp.shape(each)}"
            )
    kinds = jnp.zeros(left.shape, int) if classes is None else jnp.asarray(classes)
    left = left if jnp.issubdtype(left.dtype, jnp.floating) else left.astype(float)
    # NaN is argmax's largest: it would take the places of boxes.
    left = jnp.where(jnp.isnan(left), -jnp.inf, left)

    def take(left: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        best = jnp.argmax(left)
        same = (box_iou(boxes[best][None], boxes)[0] > iou) & (kinds == kinds[best])
        # The box itself by its place: one without extent doesn't overlap itself.
        same |= jnp.arange(len(boxes)) == best
        return jnp.where(same, -jnp.inf, left), (best, left[best] > -jnp.inf)

    return Kept(*jax.lax.scan(take, left, None, length=count)[1])


class Detections(NamedTuple):
    """Objects of images, best first, in arrays with places for `count` of them.

    Attributes:
        boxes: Corners, `[batch, count, 4]`.
        scores: Probabilities of the classes, `[batch, count]`; 0 where there is no object.
        classes: Classes from 0, `[batch, count]`; -1 where there is no object.
        variance: Variance of the logit of the class, of a network's `jaxeff.moments`, else 0,
            `[batch, count]`.
    """

    boxes: Float[Array, "batch count 4"]
    scores: Float[Array, "batch count"]
    classes: Int[Array, "batch count"]
    variance: Float[Array, "batch count"]


@core.validate(
    f=core.function_of_form("f(*args)"),
    count=core.static_integer(),
    iou=core.probability,
    least=core.probability,
    doubt=core.number(0, finite=False),
)
def detect(
    f: Callable[..., Any],
    count: int = 10,
    *,
    iou: float | Float[Array, ""] = 0.5,
    least: float | Float[Array, ""] = 0.5,
    doubt: float | Float[Array, ""] = jnp.inf,
) -> Callable[..., Detections]:
    """Makes a detector list objects, instead of what every cell says.

    ```python
    import jax.numpy as jnp
    from flax import nnx

    import jaxeff
    from jaxeff.nn import CellDetector
    from jaxeff.uncertainty import detect

    f, params = jaxeff.functional(CellDetector(3, boxes=True, rngs=nnx.Rngs(0)))
    objects = detect(f, count=5)(params, jnp.ones((2, 48, 64, 1)))
    boxes = objects.boxes                                     # [2, 5, 4]
    classes = objects.classes                                 # [2, 5]
    ```

    Args:
        f: A pure function such as ``f(params, x)`` of `jaxeff.nn.CellDetector` with boxes, or
            ``jaxeff.moments(f)``. It returns logits ``[batch, rows, columns, 1 + classes]``, the
            background first, and boxes ``[batch, rows, columns, 4]``.
        count: Objects of an image at the most.
        iou: Overlap above which boxes of one class are of one object.
        least: Probability that an object's class needs.
        doubt: Variance of the class's logit above which a cell is refused: it says nothing then,
            neither that there is an object nor that there is none.

    Returns:
        A function of the same arguments. It jits, vmaps and deploys. Probabilities of Gaussian
        logits are those of `probit_logits`, which variance draws towards even ones.
    """

    def g(*args: Any, **kwargs: Any) -> Detections:
        logits, boxes = f(*args, **kwargs)
        logits, variance = _cells(probit_logits(logits)), _variance(logits)
        probs = jax.nn.softmax(logits)[..., 1:]
        classes = probs.argmax(-1)
        # The background's variance has no part: a cell is refused for what it says there is.
        doubts = jnp.take_along_axis(_cells(variance)[..., 1:], classes[..., None], -1)[..., 0]
        top = probs.max(-1)
        scores = jnp.where((top >= least) & (doubts <= doubt), top, -jnp.inf)
        corners = _cells(boxes.mean if is_gaussian(boxes) else boxes)

        def of_image(box: Array, score: Array, kind: Array, var: Array) -> Detections:
            place, valid = nms(box, score, count, iou=iou, classes=kind)
            return Detections(
                box[place], jnp.where(valid, score[place], 0), jnp.where(valid, kind[place], -1),
                var[place],
            )  # fmt: skip

        return jax.vmap(of_image)(corners, scores, classes, doubts)

    return g


def _cells(values: Array) -> Array:
    """Puts the cells of an image in a row."""
    if values.ndim != 4:
        raise ValueError(f"detect: f must return [batch, rows, columns, ...], not {values.shape}")
    return values.reshape(values.shape[0], -1, values.shape[-1])


def _variance(logits: Any) -> Array:
    return logits.var if is_gaussian(logits) else jnp.zeros_like(logits)


@core.validate(overlap=core.real_array(2), scores=core.real_array(1), least=core.finite)
def match_detections(
    overlap: Float[Array, "n m"], scores: Float[Array, " n"], least: float | Array = 0.5
) -> Bool[Array, " n"]:
    """Tells which detections of an image find an object that no better one has found.

    Detections choose in the order of their scores, each the object that it overlaps most of those
    that are left (as COCO's evaluation does; Pascal VOC's compares with the one it overlaps most
    even if that is taken).

    Args:
        overlap: How well each detection fits each object, such as `box_iou`; minus one, or anything
            below `least`, for another class or where there is no detection or object.
        scores: The higher the earlier; of equal ones the first.
        least: Overlap that counts as found.

    Raises:
        ValueError: Other than one score for each detection.
    """
    overlap, scores = jnp.asarray(overlap), jnp.asarray(scores)
    if scores.shape != overlap.shape[:1]:
        raise ValueError(
            f"match_detections: scores must be one for each row of overlap, not {scores.shape} for "
            f"{overlap.shape}"
        )
    order = jnp.argsort(-scores)

    def choose(free: Array, row: Array) -> tuple[Array, Array]:
        fit = jnp.where(free, row, -jnp.inf)
        best = jnp.argmax(fit)
        hit = fit[best] >= least
        return free & ~(hit & (jnp.arange(len(free)) == best)), hit

    hits = jax.lax.scan(choose, jnp.ones(overlap.shape[1], bool), overlap[order])[1]
    return jnp.zeros(len(scores), bool).at[order].set(hits)


class PrecisionRecall(NamedTuple):
    """Precision and recall as the threshold on the score falls.

    Attributes:
        scores: Thresholds, `[n]`, falling.
        precision: Share of detections from there up that are right, `[n]`.
        recall: Share of objects that they find, `[n]`.
    """

    scores: Float[Array, " n"]
    precision: Float[Array, " n"]
    recall: Float[Array, " n"]


def _check_count(where: str, value: Any) -> None:
    core.non_negative(where, value)
    if not jnp.issubdtype(jnp.result_type(value), jnp.integer):
        raise TypeError(f"{where} must be a whole number, not {value!r}")


@core.validate(
    scores=core.real_array(1),
    hits=core.boolean_mask,
    truths=_check_count,
    where=core.boolean_mask,
)
def precision_recall(
    scores: Float[Array, " n"],
    hits: Bool[Array, " n"],
    truths: int | Int[Array, ""],
    *,
    where: Bool[Array, " n"] | None = None,
) -> PrecisionRecall:
    """Computes precision and recall at every score of detections.

    Args:
        scores: Scores of all images' detections.
        hits: Whether each is right, as `match_detections` tells for one image.
        truths: Number of objects in all images, those that no detection finds included.
        where: Marks of the detections that count, if not all: those of one class, or the valid
            ones of arrays with places for more. The others repeat the last point, at the end.

    Raises:
        ValueError: Other than one hit, or one mark, for each score.
    """
    scores = jnp.asarray(scores)
    counted = jnp.ones(scores.shape, bool) if where is None else jnp.asarray(where, bool)
    for name, each in (("hits", hits), ("where", counted)):
        if jnp.shape(each) != scores.shape:
            raise ValueError(
                f"precision_recall: {name} must be one for each of {len(scores)} scores, not of "
                f"shape {jnp.shape(each)}"
            )
    scores = jnp.where(counted, scores.astype(float), -jnp.inf)
    order = jnp.argsort(-scores)
    ranked = scores[order]
    # Detections of one score share a threshold: all of them are in, or none.
    last = jnp.searchsorted(-ranked, -ranked, side="right") - 1
    right = jnp.cumsum(jnp.asarray(hits, bool)[order] & counted[order])[last]
    total = jnp.cumsum(counted[order])[last]
    right, total = right.astype(float), jnp.maximum(total, 1).astype(float)
    return PrecisionRecall(ranked, right / total, right / jnp.asarray(truths, float))


@core.validate(envelope=core.boolean)
def average_precision(
    scores: Float[Array, " n"],
    hits: Bool[Array, " n"],
    truths: int | Int[Array, ""],
    *,
    where: Bool[Array, " n"] | None = None,
    envelope: bool = True,
) -> Float[Array, ""]:
    """Computes the area under the curve of precision over recall.

    Args:
        scores: Scores of all images' detections.
        hits: Whether each is right.
        truths: Number of objects in all images.
        where: Marks of the detections that count, if not all.
        envelope: Whether precision at a recall is the best at that recall or a higher one, as of
            Pascal VOC since 2010 (Everingham et al. 2015, section 4.2) and of COCO, which averages
            it at 101 places; without, it is scikit-learn's `average_precision_score`.

    Returns:
        0 to 1; NaN where there are no objects.
    """
    _, precision, recall = precision_recall(scores, hits, truths, where=where)
    if envelope:
        precision = jax.lax.cummax(precision, reverse=True)
    return (jnp.diff(recall, prepend=0.0) * precision).sum()


@core.validate(
    scores=core.real_array(1),
    classes=core.integer_array(1),
    truths=core.all_of(core.integer_array(1), core.non_negative),
)
def mean_average_precision(
    scores: Float[Array, " n"],
    hits: Bool[Array, " n"],
    classes: Int[Array, " n"],
    truths: Int[Array, " classes"],
) -> Float[Array, ""]:
    """Computes the mean over classes of `average_precision` (mAP).

    ```python
    import jax.numpy as jnp
    from jaxeff.uncertainty import mean_average_precision

    scores, hits = jnp.array([0.9, 0.8, 0.7]), jnp.array([True, False, True])
    mean_average_precision(scores, hits, jnp.array([0, 1, 0]), jnp.array([2, 0]))    # 1.0
    ```

    Args:
        scores: Scores of all images' detections.
        hits: Whether each finds an object of its class.
        classes: Their classes from 0; -1 where there is no detection.
        truths: Number of objects of each class; those without objects don't count.
    """

    def of_class(kind: Array, count: Array) -> Array:
        return average_precision(scores, hits, count, where=classes == kind)

    truths = jnp.asarray(truths)
    return jnp.nanmean(jax.vmap(of_class)(jnp.arange(len(truths)), truths))


@core.validate(
    predictions=core.integer_array(),
    labels=core.integer_array(),
    num_classes=core.static_integer(),
    ignored=core.static_integer(-(2**31)),
)
def mean_iou(
    predictions: Int[Array, "*n"],
    labels: Int[Array, "*n"],
    num_classes: int,
    *,
    ignored: int | None = None,
) -> Float[Array, ""]:
    """Computes the mean over classes of what prediction and truth share of pixels (mIoU).

    Args:
        predictions: Classes that were said, of any shape.
        labels: True classes.
        num_classes: Number of classes; those that are neither said nor true don't count.
        ignored: A label of pixels that don't count.

    Returns:
        0 to 1. All images count as one: large objects weigh more than small ones.

    Raises:
        ValueError: The shapes differ, or a class is out of range.
    """
    labels, told = jnp.asarray(labels).ravel(), jnp.asarray(predictions).ravel()
    counted = jnp.ones(labels.shape, bool) if ignored is None else labels != ignored
    known = jnp.where(counted, labels, 0)
    core.check_labels("mean_iou: predictions", told, num_classes, known.shape)
    core.check_labels("mean_iou: labels", known, num_classes, known.shape)
    pairs = jnp.where(counted, known * num_classes + told, num_classes**2)
    confusion = jnp.bincount(pairs, length=num_classes**2).reshape(num_classes, num_classes)
    shared = jnp.diagonal(confusion)
    either = confusion.sum(0) + confusion.sum(1) - shared
    share = shared.astype(float) / jnp.maximum(either, 1).astype(float)
    return jnp.nanmean(jnp.where(either > 0, share, jnp.nan))


@core.register_setting
class BoxMargins(ConformalMethod):
    """Boxes with a margin on all sides, wide enough to hold the true box as often as was asked.

    Outputs and targets are corners ``[batch, 4]`` of detections and of the objects that they find:
    the guarantee is for objects that are found, not for those that are missed. Outputs may be a
    `jaxeff.Gaussian`, as `jaxeff.moments` returns; a margin is then a multiple of each corner's
    standard deviation.

    De Grancey et al., "Object Detection with Probabilistic Guarantees", SAFECOMP 2022 workshops;
    Andeol et al., "Confident Object Detection via Conformal Prediction and Conformal Risk Control",
    COPA 2023, arXiv 2304.06052, by the largest residual of a box's sides: all four are inside.

    Attributes:
        relative: Whether margins are shares of the predicted height and width, not pixels.
    """

    relative: bool = core.static(False)

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Computes how far each true box sticks out of its prediction, in units of the margin."""
        boxes, unit, targets = *_with_unit(self, outputs), _corners("targets", targets)
        low, high = boxes[:, :2] - targets[:, :2], targets[:, 2:] - boxes[:, 2:]
        return (jnp.concatenate([low, high], -1) / unit).max(-1)

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> Float[Array, "batch 4"]:
        """Returns the wider boxes; narrower ones where predictions are too wide."""
        boxes, unit = _with_unit(self, outputs)
        margin = jnp.reshape(threshold, (-1, 1)) * unit
        return jnp.concatenate([boxes[:, :2] - margin[:, :2], boxes[:, 2:] + margin[:, 2:]], -1)

    def contains(self, region: Any, targets: Any) -> Bool[Array, " batch"]:
        """Tells whether each true box lies inside as a whole."""
        region, targets = _corners("region", region), _corners("targets", targets)
        inside = jnp.concatenate(
            [region[:, :2] <= targets[:, :2], targets[:, 2:] <= region[:, 2:]], -1
        )
        return inside.all(-1)


def _corners(name: str, values: Any) -> Array:
    values = jnp.asarray(values)
    if values.ndim != 2 or values.shape[1] != 4:
        raise TypeError(f"BoxMargins: {name} must be corners [batch, 4], not {values.shape}")
    return values


def _with_unit(method: BoxMargins, outputs: Any) -> tuple[Array, Array]:
    """Returns the boxes, and what a margin of one is on each side."""
    if is_gaussian(outputs):
        return _corners("outputs", outputs.mean), outputs.std
    boxes = _corners("outputs", outputs)
    if not method.relative:
        return boxes, jnp.ones_like(boxes)
    sides = boxes[:, 2:] - boxes[:, :2]
    return boxes, jnp.concatenate([sides, sides], -1)
