"""What ONNX-ML's operators compute: scaling, linear models, trees, and what stands around them.

Trees are walked by gathers, all at once: each example has a place in each tree, which moves to a
child at every step, and a leaf's child is the leaf. Where ONNX leaves a result open, such as that
of two classes of which the leaves name one, it is ONNX Runtime's.

Sharp edges: coefficients of linear models are weights, thresholds and leaves of trees constants.
Labels that are texts can't be results. The norm MAX is that of absolute values, scikit-learn's and
the reference's; ONNX Runtime takes the largest number with its sign. The label of two classes that
leaves name both is that of the larger score, where ONNX Runtime asks for a positive second one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import helper, numpy_helper

from jaxeff_export.onnx_files import _operators as operators
from jaxeff_export.onnx_files._graph import OnnxError
from jaxeff_export.onnx_files._operators import Call, Value

ML_DOMAIN = "ai.onnx.ml"
_UNROLLED = 16
"""Steps down a tree that are computed one after the other; deeper trees are a loop."""
_TINY = 1e-30  # below which a norm is taken for this, as the reference does

# ------------------------------------------------------------------------------ single columns


def _numbers(x: Value) -> Any:
    """Returns examples as floats."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(np.float32)


def _setting(call: Call, name: str, length: int, default: float) -> Any:
    """Returns an attribute of one number, or one for each column."""
    values = np.asarray(call.get(name) or [default], np.float32)
    if values.size not in (1, length):
        raise call.refused(f"has {values.size} numbers in {name!r} for {length} columns")
    return values


def _scaler(call: Call, x: Value) -> Value:
    x = _numbers(x)
    offset, scale = (_setting(call, n, x.shape[-1], d) for n, d in (("offset", 0), ("scale", 1)))
    return ((x - offset) * scale).astype(np.float32)


def _normalizer(call: Call, x: Value) -> Value:
    x, norm = _numbers(x), call["norm"]
    norms = {
        "MAX": lambda: jnp.abs(x).max(-1, keepdims=True),
        "L1": lambda: jnp.abs(x).sum(-1, keepdims=True),
        "L2": lambda: jnp.sqrt((x * x).sum(-1, keepdims=True)),
    }
    if norm not in norms:
        raise call.refused(f"has the norm {norm!r}, and ONNX knows {[*norms]}")
    return (x / jnp.maximum(norms[norm](), _TINY)).astype(np.float32)


def _binarizer(call: Call, x: Value) -> Value:
    x = jnp.asarray(x)
    return (x > call["threshold"]).astype(x.dtype)


def _imputer(call: Call, x: Value) -> Value:
    x = jnp.asarray(x)
    kind = "float" if jnp.issubdtype(x.dtype, jnp.floating) else "int64"
    values = np.asarray(call[f"imputed_value_{kind}s"], x.dtype)
    missing = call.get(f"replaced_value_{kind}", 0)
    if values.size not in (1, x.shape[-1]):
        raise call.refused(f"has {values.size} numbers for {x.shape[-1]} columns")
    absent = jnp.isnan(x) if missing != missing else x == missing
    return jnp.where(absent, values, x)


def _columns(call: Call, x: Value, at: Value) -> Value:
    operators.inside(call, at, np.shape(x)[-1], -1, 0)
    taken = jnp.take(jnp.asarray(x), jnp.asarray(at).ravel(), -1, mode="clip")
    return taken[None] if taken.ndim == 1 else taken


def _joined(call: Call, *values: Value) -> Value:
    rows = [_numbers(x) for x in values]
    return jnp.concatenate([x.reshape(x.shape[0], -1) for x in rows], 1).astype(np.float32)


def _one_hot(call: Call, x: Value) -> Value:
    x, categories = jnp.asarray(x), call.get("cats_int64s")
    if not categories:
        raise call.refused("has categories that are texts: encode them before the model")
    return (x[..., None] == np.asarray(categories, x.dtype)).astype(np.float32)


def _label_encoder(call: Call, x: Value) -> Value:
    def table(name: str) -> np.ndarray:
        for ending, dtype in (("int64s", np.int64), ("floats", np.float32), ("tensor", None)):
            if (values := call.get(f"{name}_{ending}")) is not None:
                array = np.asarray(values, dtype).ravel()
                if array.dtype.kind not in "OSU":
                    return array
        raise call.refused(f"has {name} that are texts: encode them before the model")

    x, keys, values = jnp.asarray(x), table("keys"), table("values")
    if keys.shape != values.shape or not keys.size:
        raise call.refused(f"has {keys.size} keys and {values.size} values")
    kind = "int64" if values.dtype.kind == "i" else "float"
    default = np.ravel(call.get("default_tensor", call.get(f"default_{kind}", 0)))[0]
    # NaN is a key like others here.
    same = (x[..., None] == keys.astype(x.dtype)) | (
        (x != x)[..., None] & (keys != keys)
    )  # fmt: skip
    result = jnp.asarray(values)[jnp.argmax(same, -1)]
    return jnp.where(same.any(-1), result, jnp.asarray(default, result.dtype))


# ------------------------------------------------------------------------- scores and classes


def _softmax_of_others(scores: Any) -> Any:
    """Computes the softmax that leaves scores of zero out of the exponentials."""
    largest = scores.max(-1, keepdims=True)
    powers = jnp.where(jnp.abs(scores) > 1e-7, jnp.exp(scores - largest), 0)
    powers = jnp.where(powers == 0, scores * jnp.exp(-largest), powers)
    total = powers.sum(-1, keepdims=True)
    return jnp.where(total == 0, 0.5, powers / jnp.where(total == 0, 1, total))


def _probit(scores: Any) -> Any:
    """Computes 2**.5 erfinv(2 p - 1) by the approximation that runtimes take (Winitzki, 2008)."""
    x = 2 * scores - 1
    log = jnp.log((1 - x) * (1 + x))
    v = 2 / (np.pi * 0.147) + log / 2
    return np.sqrt(2).astype(np.float32) * jnp.sign(x) * jnp.sqrt(jnp.sqrt(v * v - log / 0.147) - v)


_TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "NONE": lambda scores: scores,
    "SOFTMAX": jax.nn.softmax,
    "LOGISTIC": jax.nn.sigmoid,
    "SOFTMAX_ZERO": _softmax_of_others,
    "PROBIT": _probit,
}


def _transformed(call: Call, scores: Any) -> Any:
    name = call.get("post_transform", "NONE")
    name = [*_TRANSFORMS][name] if isinstance(name, int) and 0 <= name < len(_TRANSFORMS) else name
    if name not in _TRANSFORMS:
        raise call.refused(f"has the post_transform {name!r}, and ONNX knows {[*_TRANSFORMS]}")
    return _TRANSFORMS[name](scores)


def _opposite(call: Call, score: Any, probable: bool) -> Any:
    """Returns the scores of two classes of that of the second, [examples, 1]."""
    name = call.get("post_transform", "NONE")
    if name == "PROBIT":
        raise call.refused("has the post_transform PROBIT of one score, which ONNX leaves open")
    if name == "LOGISTIC":
        return jax.nn.sigmoid(jnp.concatenate([-score, score], -1))
    return jnp.concatenate([1 - score if probable else -score, score], -1)


def _labels(call: Call, ints: str, places: Any) -> Any:
    """Returns the labels at places; of texts these, which nothing can read."""
    if texts := call.get("classlabels_strings"):
        return np.asarray(texts, object)
    labels = operators.in_range(np.asarray(call[ints], np.int64))
    return jnp.take(labels, places, mode="clip")


def _count_labels(call: Call, ints: str) -> int:
    count = max(len(call.get(name) or ()) for name in (ints, "classlabels_strings"))
    if count < 2:
        raise call.refused(f"has {count} labels; a classifier needs two")
    return count


# ------------------------------------------------------------------------------- linear models


def _linear_arrays(attributes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the coefficients of a linear model, [results, columns], and its intercepts."""
    coefficients = np.asarray(attributes.get("coefficients") or (), np.float32)
    intercepts = np.asarray(attributes.get("intercepts") or (), np.float32)
    rows = intercepts.size or int(attributes.get("targets", 1))
    if rows < 1 or not coefficients.size or coefficients.size % rows:
        raise OnnxError(
            f"from_onnx: a linear model has {coefficients.size} coefficients for {rows} results."
        )
    zeros = np.zeros(rows, np.float32)
    return {
        "coefficients": coefficients.reshape(rows, -1),
        "intercepts": intercepts if intercepts.size else zeros,
    }


def with_linear_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Makes initializers of what linear models have as attributes, so that they are weights."""
    taken = {name for node in model.graph.node for name in (*node.input, *node.output)}
    for node in _linear_models(model.graph):
        options = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        for name, array in _linear_arrays(options).items():
            weight = f"{node.name or node.output[0]}.{name}"
            while weight in taken:
                weight += "_"
            taken.add(weight)
            node.input.append(weight)
            model.graph.initializer.append(numpy_helper.from_array(array, weight))
    return model


def without_linear_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Puts the weights of linear models back into their attributes."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in _linear_models(model.graph):
        if len(node.input) == 1:
            continue
        values = [numpy_helper.to_array(tensors[name]) for name in node.input[1:]]
        for name, array in zip(("coefficients", "intercepts"), values, strict=True):
            kept = [a for a in node.attribute if a.name != name]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute(name, array.ravel().tolist())])
        for name in node.input[1:]:
            model.graph.initializer.remove(tensors[name])
        del node.input[1:]
    return model


def _linear_models(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    names = ("LinearRegressor", "LinearClassifier")
    return [n for n in graph.node if n.domain == ML_DOMAIN and n.op_type in names]


def _products(call: Call, x: Value, coefficients: Value = None, intercepts: Value = None) -> Any:
    if coefficients is None:  # of a graph inside a node
        arrays = _linear_arrays(call.attributes)
        coefficients, intercepts = arrays["coefficients"], arrays["intercepts"]
    x, coefficients = _numbers(x), jnp.asarray(coefficients)
    x = x.reshape(1, -1) if x.ndim == 1 else x
    if coefficients.shape[1] != x.shape[1]:
        rows, columns = coefficients.shape
        raise call.refused(f"has coefficients of {rows} times {columns} for {x.shape[1]} columns")
    return x.astype(np.float32) @ coefficients.T + jnp.asarray(intercepts)


def _linear_regressor(call: Call, *values: Value) -> Value:
    return _transformed(call, _products(call, *values))


def _linear_classifier(call: Call, *values: Value) -> Any:
    scores, count = _products(call, *values), _count_labels(call, "classlabels_ints")
    if scores.shape[-1] == 1 and count == 2:
        positive = (scores[:, 0] > 0).astype(operators.int64())
        return _labels(call, "classlabels_ints", positive), _opposite(call, scores, True)
    if count != scores.shape[-1]:
        raise call.refused(f"has {count} labels for {scores.shape[-1]} classes")
    labels = _labels(call, "classlabels_ints", jnp.argmax(scores, -1).astype(operators.int64()))
    return labels, _transformed(call, scores)


# --------------------------------------------------------------------------------------- trees

_MODES: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("BRANCH_LEQ", jnp.less_equal), ("BRANCH_LT", jnp.less), ("BRANCH_GTE", jnp.greater_equal),
    ("BRANCH_GT", jnp.greater), ("BRANCH_EQ", jnp.equal), ("BRANCH_NEQ", jnp.not_equal),
)  # fmt: skip
_MEMBER, _LEAF, _EQUAL = 6, -1, 4


class _Trees(NamedTuple):
    """Nodes of all trees in one table.

    Attributes:
        roots: Nodes that trees begin at.
        features: Each node's column.
        values: What it is compared with.
        modes: How: places in `_MODES`, or `_LEAF`.
        yes: The node behind it where the comparison holds; of a leaf itself.
        no: The node behind it where it doesn't.
        missing: Whether it holds of NaN.
        weights: What a leaf adds to each result, [nodes, results].
        named: Whether it names that result, [nodes, results].
    """

    roots: np.ndarray
    features: np.ndarray
    values: np.ndarray
    modes: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray
    weights: np.ndarray
    named: np.ndarray

    def checked(self, call: Call) -> "_Trees":
        """Refuses children that there aren't."""
        for children in (self.yes, self.no, self.roots):
            if children.size and not (children.min() >= 0 and children.max() < len(self.modes)):
                raise call.refused("has children that are no nodes of its trees")
        if not self.roots.size:
            raise call.refused("has no trees")
        return self

    def depth(self, call: Call) -> int:
        """Counts the steps from the roots to the deepest leaf."""
        steps, at = 0, np.unique(self.roots)
        while (at := at[self.modes[at] != _LEAF]).size:
            steps += 1
            if steps > len(self.modes):
                raise call.refused("has trees in which a node is behind itself")
            at = np.unique(np.concatenate([self.yes[at], self.no[at]]))
        return steps

    def leaves(self, call: Call, x: Any) -> Any:
        """Walks all trees at once: the leaf of each example in each tree."""
        columns = x.shape[1]
        branches = self.modes != _LEAF
        if branches.any() and not (
            self.features[branches].min() >= 0 and self.features[branches].max() < columns
        ):
            raise call.refused(f"compares columns that an input of {columns} doesn't have")
        names = ("features", "values", "modes", "yes", "no", "missing")
        table = {name: jnp.asarray(getattr(self, name)) for name in names}
        modes = sorted({*self.modes[branches].tolist()})

        def step(at: Any) -> Any:
            here = {name: jnp.take(column, at, mode="clip") for name, column in table.items()}
            number = jnp.take_along_axis(x, here["features"], 1, mode="clip")
            holds = jnp.zeros(at.shape, bool)
            for mode in modes:
                answer = _MODES[mode][1](number, here["values"])
                holds = (
                    answer if len(modes) == 1 else jnp.where(here["modes"] == mode, answer, holds)
                )
            if self.missing.any():
                holds |= here["missing"] & jnp.isnan(number)
            return jnp.where(holds, here["yes"], here["no"])

        at = jnp.broadcast_to(jnp.asarray(self.roots)[None], (x.shape[0], len(self.roots)))
        depth = self.depth(call)
        if depth > _UNROLLED:
            return jax.lax.fori_loop(0, depth, lambda _, at: step(at), at)
        for _ in range(depth):
            at = step(at)
        return at

    def results(self, call: Call, x: Value, how: str | int) -> Any:
        """Sums what leaves add, or takes their mean or extremes: [examples, results]."""
        x = _numbers(x)
        x = x.reshape(1, -1) if x.ndim == 1 else x
        at = self.leaves(call, x)
        weights = np.asarray(self.weights, np.float32)
        names = ("AVERAGE", "SUM", "MIN", "MAX")
        how = names[how] if isinstance(how, int) and 0 <= how < len(names) else how
        if how in ("SUM", "AVERAGE"):
            total = jnp.take(weights, at, 0, mode="clip").sum(1)
            return total / len(self.roots) if how == "AVERAGE" else total
        if how not in names:
            raise call.refused(f"has the aggregate_function {how!r}, and ONNX knows {[*names]}")
        # A leaf that doesn't name a result says nothing of it.
        worst = np.float32(np.inf if how == "MIN" else -np.inf)
        listed = jnp.take(np.where(self.named, weights, worst), at, 0, mode="clip")
        extreme = listed.min(1) if how == "MIN" else listed.max(1)
        return jnp.where(jnp.isinf(extreme), 0, extreme)


def _columns_of(call: Call, names: Mapping[str, Any], count: int | None = None) -> list[np.ndarray]:
    """Returns attributes with one number for each node; those that aren't there are filled."""
    columns = []
    for name, default in names.items():
        values = call.get(f"{name}_as_tensor")
        values = call.get(name) if values is None else values
        if (values is None or not len(values)) and default is not None:
            values = np.full(count, default)
        if values is None or len(values) != (len(values) if count is None else count):
            raise call.refused(f"has {0 if values is None else len(values)} {name}, not {count}")
        columns.append(np.ravel(values))
        count = len(values)
    return columns


def _weighed(call: Call, nodes: int, targets: int, rows: Sequence[Any]) -> Sequence[np.ndarray]:
    """Returns leaves' weights, and which results they name, of lists of nodes, results, weights."""
    at, target, weight = (np.asarray(row) for row in rows)
    if at.size and not (target.min() >= 0 and target.max() < targets):
        raise call.refused(f"has leaves for a result beyond its {targets}")
    if nodes * targets > operators.LARGEST:
        raise call.refused(f"has {nodes} nodes and {targets} results, too many for a table")
    weights, named = np.zeros((nodes, targets)), np.zeros((nodes, targets), bool)
    np.add.at(weights, (at, target), weight)
    named[at, target] = True
    return weights, named


def _listed_trees(call: Call, of: str, targets: int) -> _Trees:
    """Reads trees whose nodes are named by a tree and a number in it; `of` is target or class."""
    trees, numbers, features, values, yes, no, missing = _columns_of(
        call,
        {
            "nodes_treeids": None, "nodes_nodeids": None, "nodes_featureids": None,
            "nodes_values": 0, "nodes_truenodeids": None, "nodes_falsenodeids": None,
            "nodes_missing_value_tracks_true": 0,
        },
    )  # fmt: skip
    known = {name: place for place, (name, _) in enumerate(_MODES)} | {"LEAF": _LEAF}
    (texts,) = _columns_of(call, {"nodes_modes": None}, len(trees))
    if strange := {*texts.tolist()} - {*known}:
        raise call.refused(f"has nodes of the kinds {sorted(map(str, strange))}")
    modes = np.asarray([known[text] for text in texts], np.int32)
    places = {name: i for i, name in enumerate(zip(trees.tolist(), numbers.tolist(), strict=True))}
    if len(places) != len(trees):
        raise call.refused("has two nodes of one number in a tree")

    def place(tree: Sequence[int], number: Sequence[int]) -> np.ndarray:
        return np.asarray([places.get(n, -1) for n in zip(tree, number, strict=True)], np.int32)

    here, leaf = np.arange(len(trees), dtype=np.int32), modes == _LEAF
    yes, no = (np.where(leaf, here, place(trees.tolist(), ids.tolist())) for ids in (yes, no))
    _, roots = np.unique(trees, return_index=True)
    rows = _columns_of(call, dict.fromkeys((f"{of}_treeids", f"{of}_nodeids", f"{of}_ids")))
    rows += _columns_of(call, {f"{of}_weights": None}, len(rows[0]))
    at = place(rows[0].tolist(), rows[1].tolist())
    if (at < 0).any():
        raise call.refused("has weights of leaves that there aren't")
    return _Trees(
        roots.astype(np.int32), np.where(leaf, 0, features).astype(np.int32),
        values.astype(np.float32), modes, yes, no, missing.astype(bool),
        *_weighed(call, len(trees), targets, (at, *rows[2:])),
    ).checked(call)  # fmt: skip


def _base(call: Call) -> np.ndarray:
    values = call.get("base_values_as_tensor")
    values = call.get("base_values") if values is None else values
    return np.asarray(() if values is None else values, np.float32).ravel()


def _with_base(call: Call, totals: Any) -> Any:
    base = _base(call)
    if base.size not in (0, totals.shape[-1]):
        raise call.refused(f"has {base.size} base_values for {totals.shape[-1]} results")
    return totals + base if base.size else totals


def _tree_regressor(call: Call, x: Value) -> Value:
    trees = _listed_trees(call, "target", call["n_targets"])
    totals = trees.results(call, x, call.get("aggregate_function", "SUM"))
    return _transformed(call, _with_base(call, totals))


def _tree_classifier(call: Call, x: Value) -> Any:
    ints = "classlabels_int64s"
    count = _count_labels(call, ints)
    trees = _listed_trees(call, "class", count)
    totals = trees.results(call, x, "SUM")
    named = np.flatnonzero(trees.named.any(0)).tolist()
    if count > 2 or len(named) != 1:
        scores = _with_base(call, totals)
        labels = _labels(call, ints, jnp.argmax(scores, -1).astype(operators.int64()))
        return labels, _transformed(call, scores)
    # All leaves speak of one class. What they say of the first is said of the second.
    base, probable = _base(call), bool((trees.weights >= 0).all())
    if base.size > 1 or (base.size and named == [1]):
        raise call.refused("has base_values beside leaves of one class, which ONNX leaves open")
    score = totals[:, named] + (base if base.size else np.float32(0))
    positive = (score[:, 0] > (0.5 if probable else 0)).astype(operators.int64())
    both = jnp.concatenate([jnp.zeros_like(score), score], -1)
    scores = _transformed(call, both) if named == [1] else _opposite(call, score, probable)
    return _labels(call, ints, positive), scores


def _tree_ensemble(call: Call, x: Value) -> Value:
    """Computes the trees of ONNX-ML 5, whose leaves have a list of their own."""
    modes, features, values, yes, no, to_yes, to_no, missing = _columns_of(
        call,
        {
            "nodes_modes": None, "nodes_featureids": None, "nodes_splits": None,
            "nodes_truenodeids": None, "nodes_falsenodeids": None, "nodes_trueleafs": None,
            "nodes_falseleafs": None, "nodes_missing_value_tracks_true": 0,
        },
    )  # fmt: skip
    count = len(modes)
    targets, weights = _columns_of(call, {"leaf_targetids": None, "leaf_weights": None})
    (roots,) = _columns_of(call, {"tree_roots": None})
    yes, no = (np.where(leaf, count + i, i) for i, leaf in ((yes, to_yes != 0), (no, to_no != 0)))
    leaves = count + np.arange(len(targets))
    spread = _members(call, count + len(targets), modes, values, no)
    extra = spread.values.size
    origin = spread.origin
    empty = np.zeros(len(targets), np.int32)
    columns = [
        np.concatenate([column, leaf, more])
        for column, leaf, more in (
            (features, empty, features[origin]), (spread.first, empty, spread.values),
            (np.where(modes == _MEMBER, _EQUAL, modes), empty + _LEAF, np.full(extra, _EQUAL)),
            (yes, leaves, yes[origin]), (spread.no, leaves, spread.behind),
            (missing, empty, np.zeros(extra)),
        )
    ]  # fmt: skip
    dtypes = (np.int32, np.float32, np.int32, np.int32, np.int32, bool)
    nodes = len(columns[0])
    trees = _Trees(
        roots.astype(np.int32),
        *(c.astype(d) for c, d in zip(columns, dtypes, strict=True)),
        *_weighed(call, nodes, call["n_targets"], (leaves, targets, weights)),
    ).checked(call)
    if not {*trees.modes.tolist()} <= {_LEAF, *range(len(_MODES))}:
        raise call.refused("has nodes of a kind that ONNX doesn't have")
    scores = _transformed(call, trees.results(call, x, call["aggregate_function"]))
    return scores.astype(_numbers(x).dtype)


class _MemberChains(NamedTuple):
    """Nodes that ask for one of several numbers, as chains of nodes that ask for one each."""

    first: np.ndarray
    no: np.ndarray
    values: np.ndarray
    behind: np.ndarray
    origin: np.ndarray


def _members(
    call: Call, nodes: int, modes: np.ndarray, values: np.ndarray, no: np.ndarray
) -> _MemberChains:
    """Makes the chains; a set of numbers ends with NaN, and new nodes stand behind all others."""
    numbers = np.ravel(call.get("membership_values", ()))
    sets = np.split(numbers, np.flatnonzero(np.isnan(numbers)) + 1)
    sets = [each[~np.isnan(each)] for each in sets]
    asked = np.flatnonzero(modes == _MEMBER)
    if len(asked) > len(sets):
        raise call.refused(f"has {len(asked)} nodes with sets of numbers, and {len(sets)} sets")
    first, no = values.astype(np.float64), no.copy()
    rest: list[float] = []
    behind: list[int] = []
    origin: list[int] = []
    for node, members in zip(asked.tolist(), sets, strict=False):
        first[node] = members[0] if members.size else np.nan  # which nothing equals
        last = no[node]
        for i, number in enumerate(members[1:]):
            if not i:
                no[node] = nodes + len(rest)
            rest.append(number)
            behind.append(last if i == members.size - 2 else nodes + len(rest))
            origin.append(node)
    return _MemberChains(
        first, no, np.asarray(rest, np.float64), np.asarray(behind, np.int64),
        np.asarray(origin, np.int64),
    )  # fmt: skip


ML_OPERATORS: dict[str, Callable[..., Any]] = {
    "Scaler": _scaler, "Normalizer": _normalizer, "Binarizer": _binarizer, "Imputer": _imputer,
    "ArrayFeatureExtractor": _columns, "FeatureVectorizer": _joined, "OneHotEncoder": _one_hot,
    "LabelEncoder": _label_encoder, "LinearRegressor": _linear_regressor,
    "LinearClassifier": _linear_classifier, "TreeEnsembleRegressor": _tree_regressor,
    "TreeEnsembleClassifier": _tree_classifier, "TreeEnsemble": _tree_ensemble,
}  # fmt: skip
WAYS_OUT = {
    "ZipMap": "makes dictionaries, which no array is: convert with options={'zipmap': False}, or "
    "cut it off by onnx.utils.extract_model",
    **dict.fromkeys(
        ("DictVectorizer", "CastMap", "CategoryMapper"),
        "reads texts or dictionaries: encode them before the model, and convert what is behind it",
    ),
}
"""Why operators can't be read, and what to do."""
