"""Pipelines of scikit-learn, as ONNX-ML's operators write them, are functions that deploy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import datasets, ensemble, linear_model, pipeline, preprocessing, tree

import jaxeff

onnx = pytest.importorskip("onnx")
from jaxeff_export import OnnxError, deploy, from_onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

pytestmark = pytest.mark.promotes("dtype", "rank")  # what is compared here does
ML = "ai.onnx.ml"


@pytest.fixture(scope="module")
def wine():
    x, y = datasets.load_wine(return_X_y=True)
    return x.astype(np.float32), y


def built(nodes, columns, outputs, ml=3):
    """A model of one input `x`; results are named with their dtype."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", columns])
    shapes = {TensorProto.FLOAT: ["n", None]}
    results = [
        helper.make_tensor_value_info(n, t, shapes.get(t, ["n"])) for n, t in outputs.items()
    ]
    graph = helper.make_graph(nodes, "pipeline", [x], results)
    sets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, ml)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


def node(op, inputs, outputs, **attributes):
    attributes = {name: value for name, value in attributes.items() if value is not None}
    return helper.make_node(op, inputs.split(), outputs.split(), op, domain=ML, **attributes)


def nodes_of(trees):
    """Lists the nodes of scikit-learn's trees as ONNX does; of leaves also the sites."""
    columns = {
        name: []
        for name in (
            "treeids",
            "nodeids",
            "featureids",
            "values",
            "modes",
            "truenodeids",
            "falsenodeids",
        )
    }
    for number, each in enumerate(trees):
        for i in range(each.node_count):
            leaf = each.children_left[i] < 0
            row = (
                number,
                i,
                0 if leaf else each.feature[i],
                0 if leaf else each.threshold[i],
                "LEAF" if leaf else "BRANCH_LEQ",
                0 if leaf else each.children_left[i],
                0 if leaf else each.children_right[i],
            )
            for column, value in zip(columns.values(), row, strict=True):
                column.append(
                    value
                    if isinstance(value, str)
                    else value.item()
                    if hasattr(value, "item")
                    else value
                )
    columns["values"] = [float(v) for v in columns["values"]]
    return {f"nodes_{name}": column for name, column in columns.items()}


def leaves_of(trees, kind, weights):
    """Lists what leaves say, `weights(tree, node)`, as ONNX does."""
    rows = [
        (number, i, target, float(weight))
        for number, each in enumerate(trees)
        for i in np.flatnonzero(each.children_left < 0).tolist()
        for target, weight in enumerate(weights(each, i))
    ]
    names = (f"{kind}_treeids", f"{kind}_nodeids", f"{kind}_ids", f"{kind}_weights")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def runtime(model, x, name="x"):
    onnxruntime = pytest.importorskip("onnxruntime")
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {name: x})


def test_linear_models_are_scikit_learns_and_their_weights_train_and_go_back(wine):
    x, y = wine
    fitted = pipeline.make_pipeline(
        preprocessing.StandardScaler(), linear_model.LogisticRegression(max_iter=500)
    ).fit(x, y)
    scaler, linear = fitted[0], fitted[1]
    model = built(
        [
            node(
                "Scaler", "x", "s", offset=scaler.mean_.tolist(), scale=(1 / scaler.scale_).tolist()
            ),
            node(
                "LinearClassifier",
                "s",
                "label raw",
                coefficients=linear.coef_.ravel().tolist(),
                intercepts=linear.intercept_.tolist(),
                post_transform="SOFTMAX",
                classlabels_ints=[10, 20, 30],
            ),
            node("Normalizer", "raw", "p", norm="L1"),
        ],
        13,
        {"label": TensorProto.INT64, "p": TensorProto.FLOAT},
    )
    f, params = jaxeff.functional(model)
    assert jax.tree.map(jnp.shape, params) == {
        "LinearClassifier": {"coefficients": (3, 13), "intercepts": (3,)}
    }
    label, p = jax.jit(f)(params, x)
    np.testing.assert_array_equal(label, 10 * (1 + fitted.predict(x)))
    np.testing.assert_allclose(p, fitted.predict_proba(x), atol=2e-6)
    assert "LinearClassifier" in jaxeff.sites(lambda p, x: f(p, x)[1], params, x)
    changed = jax.tree.map(lambda w: w / 2, params)
    after = jaxeff.restore(model, changed)
    onnx.checker.check_model(after)
    np.testing.assert_allclose(runtime(after, x)[1], f(changed, x)[1], atol=1e-6)


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_scores_of_linear_classifiers_are_onnx_runtimes(post, classes):
    rng = np.random.default_rng(classes)
    x = rng.normal(size=(40, 4)).astype(np.float32)
    model = built(
        [
            node(
                "LinearClassifier",
                "x",
                "label p",
                coefficients=rng.normal(size=4 * classes).tolist(),
                intercepts=rng.normal(size=classes).tolist(),
                post_transform=post,
                classlabels_ints=[*range(5, 5 + max(2, classes))],
            )
        ],
        4,
        {"label": TensorProto.INT64, "p": TensorProto.FLOAT},
    )
    for ours, theirs in zip(
        from_onnx(model)[0](from_onnx(model)[1], x), runtime(model, x), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_trees_are_scikit_learns(wine):
    x, y = wine
    forest = ensemble.RandomForestClassifier(7, random_state=0).fit(x, y)
    trees = [each.tree_ for each in forest.estimators_]
    shares = leaves_of(
        trees, "class", lambda t, i: t.value[i, 0] / t.value[i, 0].sum() / len(trees)
    )
    attributes = {**nodes_of(trees), **shares, "classlabels_int64s": [3, 4, 5]}
    outputs = {"label": TensorProto.INT64, "p": TensorProto.FLOAT}
    f, params = from_onnx(
        built([node("TreeEnsembleClassifier", "x", "label p", **attributes)], 13, outputs)
    )
    label, p = jax.jit(f)(params, x)
    np.testing.assert_array_equal(label, 3 + forest.predict(x))
    np.testing.assert_allclose(p, forest.predict_proba(x), atol=1e-6)

    deep = tree.DecisionTreeRegressor(random_state=0).fit(x[:, :1], x[:, 1:3])
    assert deep.get_depth() > 8
    values = leaves_of([deep.tree_], "target", lambda t, i: t.value[i, :, 0])
    attributes = {**nodes_of([deep.tree_]), **values, "n_targets": 2}
    model = built([node("TreeEnsembleRegressor", "x", "y", **attributes)], 1, {"y": 1})
    f, params = from_onnx(model)
    np.testing.assert_allclose(f(params, x[:, :1]), deep.predict(x[:, :1]), atol=1e-6)


def chain(modes, values, **more):
    """One tree: node i compares column i, goes on to i + 1, or ends in a leaf of its own."""
    n = len(modes)
    return {
        "nodes_treeids": [0] * (2 * n + 1),
        "nodes_nodeids": [*range(2 * n + 1)],
        "nodes_featureids": [*range(n), *[0] * (n + 1)],
        "nodes_values": [*values, *[0.0] * (n + 1)],
        "nodes_modes": [*modes, *["LEAF"] * (n + 1)],
        "nodes_truenodeids": [*range(n, 2 * n), *[0] * (n + 1)],
        "nodes_falsenodeids": [*range(1, n), 2 * n, *[0] * (n + 1)],
        "target_treeids": [0] * (n + 1),
        "target_nodeids": [*range(n, 2 * n + 1)],
        "target_ids": [0] * (n + 1),
        "target_weights": [float(i + 1) for i in range(n + 1)],
        "n_targets": 1,
        **more,
    }


@pytest.mark.parametrize("tracks", [0, 1])
def test_every_kind_of_node_and_missing_numbers_are_onnx_runtimes(tracks):
    modes = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
    x = np.random.default_rng(0).integers(-1, 2, (300, 6)).astype(np.float32)
    x[::7, ::2] = np.nan
    missing = [tracks] * 6 + [0] * 7
    for order in (modes, modes[:1] * 6):
        attributes = chain(
            order,
            [-0.5, 0.0, 1.0, 0.0, 1.0, 0.0],
            base_values=[0.25],
            nodes_missing_value_tracks_true=missing,
        )
        model = built([node("TreeEnsembleRegressor", "x", "y", **attributes)], 6, {"y": 1})
        f, params = from_onnx(model)
        np.testing.assert_array_equal(f(params, x), runtime(model, x)[0])
        assert len(np.unique(f(params, x))) >= 3


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_how_trees_are_put_together_is_onnx_runtimes(how):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 3)).astype(np.float32), rng.normal(size=(200, 2))
    fitted = ensemble.ExtraTreesRegressor(5, max_depth=20, random_state=0).fit(x, y)
    trees = [each.tree_ for each in fitted.estimators_]
    # Not each leaf names each result; none does where nothing says so.
    values = leaves_of(trees, "target", lambda t, i: t.value[i, : 1 + i % 2, 0])
    attributes = {**nodes_of(trees), **values, "n_targets": 2, "aggregate_function": how}
    model = built([node("TreeEnsembleRegressor", "x", "y", **attributes)], 3, {"y": 1})
    f, params = from_onnx(model)
    np.testing.assert_allclose(jax.jit(f)(params, x), runtime(model, x)[0], atol=2e-6)


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("least", [0.0, -0.5])
def test_two_classes_of_which_leaves_name_the_first_are_onnx_runtimes(post, least):
    attributes = chain(["BRANCH_LEQ"] * 3, [0.0] * 3)
    weights = [least, 0.4, 0.7, 0.1]
    attributes = {
        name.replace("target_", "class_"): value
        for name, value in attributes.items()
        if name != "n_targets"
    } | {"class_weights": weights, "classlabels_int64s": [0, 1], "post_transform": post}
    outputs = {"label": TensorProto.INT64, "p": TensorProto.FLOAT}
    model = built([node("TreeEnsembleClassifier", "x", "label p", **attributes)], 3, outputs)
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    f, params = from_onnx(model)
    for ours, theirs in zip(f(params, x), runtime(model, x), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_trees_of_onnx_ml_5_ask_for_members():
    tensor = numpy_helper.from_array
    sets = [np.float32([1.5, 4, 7, np.nan, 2, np.nan])]
    attributes = {
        "nodes_modes": tensor(np.uint8([6, 0, 6])),
        "nodes_featureids": [0, 1, 1],
        "nodes_splits": tensor(np.float32([0, 0.5, 0])),
        "nodes_truenodeids": [1, 0, 2],
        "nodes_falsenodeids": [2, 1, 3],
        "nodes_trueleafs": [0, 1, 1],
        "nodes_falseleafs": [0, 1, 1],
        "leaf_targetids": [0, 1, 0, 1],
        "leaf_weights": tensor(np.float32([1, 2, 3, 4])),
        "tree_roots": [0],
        "n_targets": 2,
        "membership_values": tensor(sets[0]),
        "aggregate_function": 1,
        "post_transform": 0,
    }
    model = built([node("TreeEnsemble", "x", "y", **attributes)], 2, {"y": 1}, ml=5)
    x = np.float32([[a, b] for a in (1.5, 4, 7, 2, 0) for b in (0, 2, 1)])
    f, params = from_onnx(model)
    expected = []
    for a, b in x:  # by hand
        if a in (1.5, 4, 7):
            expected.append([1, 0] if b <= 0.5 else [0, 2])
        else:
            expected.append([3, 0] if b == 2 else [0, 4])
    np.testing.assert_array_equal(f(params, x), np.float32(expected))


def test_columns_are_encoded_and_filled():
    x = np.float32([[1, np.nan, 7], [2, -1, 9]])
    model = built(
        [
            node(
                "Imputer",
                "x",
                "i",
                imputed_value_floats=[0.0, 5.0, 0.0],
                replaced_value_float=float("nan"),
            ),
            node("Binarizer", "i", "b", threshold=1.5),
            node(
                "LabelEncoder",
                "i",
                "l",
                keys_floats=[1.0, 5.0, 7.0],
                values_floats=[3.0, 4.0, 8.0],
                default_float=-2.0,
            ),
            node("FeatureVectorizer", "b l", "y"),
        ],
        3,
        {"y": 1},
    )
    f, params = from_onnx(model)
    expected = [[0, 1, 1, 3, 4, 8], [1, 0, 1, -2, -2, -2]]
    np.testing.assert_array_equal(f(params, x), np.float32(expected))


def one_tree(**changes):
    attributes = chain(["BRANCH_LEQ"] * 2, [0.0, 1.0]) | changes
    return built([node("TreeEnsembleRegressor", "x", "y", **attributes)], 2, {"y": 1})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes_truenodeids": [2, 77, 0, 0, 0]}, "children that are no nodes"),
        ({"nodes_falsenodeids": [1, 0, 0, 0, 0]}, "a node is behind itself"),
        ({"nodes_featureids": [0, 9, 0, 0, 0]}, "columns that an input of 2 doesn't have"),
        ({"nodes_featureids": [0, 1]}, "2 nodes_featureids, not 5"),
        ({"nodes_nodeids": [0, 1, 2, 2, 4]}, "two nodes of one number"),
        ({"target_nodeids": [2, 3, 99]}, "weights of leaves that there aren't"),
        ({"target_ids": [0, 0, 5]}, "a result beyond its 1"),
        ({"n_targets": 2**40}, "too many for a table"),
        ({"nodes_modes": ["BRANCH_LEQ", "MAYBE", "LEAF", "LEAF", "LEAF"]}, "kinds \\['MAYBE'\\]"),
        ({"aggregate_function": "MEDIAN"}, "ONNX knows"),
        ({"base_values": [1.0, 2.0]}, "2 base_values for 1 results"),
    ],
)
def test_damaged_trees_are_refused(changes, words):
    f, params = from_onnx(one_tree(**changes))
    with pytest.raises(OnnxError, match=words):
        f(params, np.zeros((1, 2), np.float32))


def test_texts_and_dictionaries_are_refused_with_the_way_out():
    classifier = node(
        "LinearClassifier",
        "x",
        "label p",
        coefficients=[1.0, -1.0],
        intercepts=[0.0, 0.0],
        classlabels_strings=["cat", "dog"],
        post_transform="SOFTMAX",
    )
    x = np.ones((2, 1), np.float32)
    f, params = from_onnx(built([classifier], 1, {"label": TensorProto.STRING, "p": 1}))
    with pytest.raises(OnnxError, match=r"result 'label' is texts.*extract_model"):
        f(params, x)
    f, params = from_onnx(built([classifier], 1, {"p": 1}))  # the way out
    np.testing.assert_allclose(
        f(params, x)[0], [np.e**2 / (1 + np.e**2), 1 / (1 + np.e**2)], rtol=1e-6
    )
    model = built(
        [classifier, node("ZipMap", "p", "z", classlabels_strings=["cat", "dog"])], 1, {"p": 1}
    )
    kind = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(1, ()))
    model.graph.output.append(helper.make_value_info("z", helper.make_sequence_type_proto(kind)))
    f, params = from_onnx(model)
    with pytest.raises(OnnxError, match=r"ZipMap .*dictionaries.*'zipmap': False"):
        f(params, x)
    encoder = node("LabelEncoder", "x", "y", keys_floats=[1.0], values_strings=["a"])
    f, params = from_onnx(built([encoder], 1, {"y": TensorProto.STRING}))
    with pytest.raises(OnnxError, match="values that are texts: encode them before the model"):
        f(params, x)


SKLEARN = {
    "logistic": linear_model.LogisticRegression(max_iter=500),
    "ridge": linear_model.Ridge(),
    "tree": tree.DecisionTreeClassifier(random_state=0),
    "forest": ensemble.RandomForestClassifier(5, random_state=0),
    "boosted": ensemble.GradientBoostingClassifier(n_estimators=5, random_state=0),
    "boosted regressor": ensemble.GradientBoostingRegressor(n_estimators=5, random_state=0),
    "isolated": ensemble.IsolationForest(n_estimators=5, random_state=0),
    "adaboost": ensemble.AdaBoostClassifier(n_estimators=3, random_state=0),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", SKLEARN)
def test_what_skl2onnx_writes_is_what_onnx_runtime_computes(wine, name, classes):
    skl2onnx = pytest.importorskip("skl2onnx")
    x, y = (part[wine[1] < classes] for part in wine)
    model = pipeline.make_pipeline(preprocessing.StandardScaler(), SKLEARN[name]).fit(x, y)
    probable = hasattr(SKLEARN[name], "predict_proba")
    file = skl2onnx.to_onnx(
        model, x[:1], options={"zipmap": False} if probable else None,
        target_opset={"": 18, "ai.onnx.ml": 3},
    )  # fmt: skip
    f, params = from_onnx(file)
    results = jax.jit(f)(params, x)
    results = results if isinstance(results, tuple) else (results,)
    for ours, theirs in zip(results, runtime(file, x, "X"), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    # The file scales in float32: a number at a threshold may fall to its other side.
    assert np.mean(np.abs(np.ravel(results[0]) - model.predict(x)) > 1e-4) <= 0.02


@pytest.mark.slow
def test_a_pipeline_is_a_bundle_and_a_c_library(wine, tmp_path):
    x, y = wine
    forest = ensemble.ExtraTreesClassifier(4, random_state=0).fit(x, y)
    trees = [each.tree_ for each in forest.estimators_]
    shares = leaves_of(
        trees, "class", lambda t, i: t.value[i, 0] / t.value[i, 0].sum() / len(trees)
    )
    attributes = {**nodes_of(trees), **shares, "classlabels_int64s": [0, 1, 2]}
    outputs = {"label": TensorProto.INT64, "p": TensorProto.FLOAT}
    f, params = from_onnx(
        built([node("TreeEnsembleClassifier", "x", "label p", **attributes)], 13, outputs)
    )
    bundle = deploy(f, (params, x[:40]))
    label, p = bundle.run(x[:40])
    np.testing.assert_array_equal(label, forest.predict(x[:40]))
    np.testing.assert_allclose(p, forest.predict_proba(x[:40]), atol=1e-6)
    library = deploy(f, (params, x[:1]), target="cortex-m7").export_c(tmp_path / "net", name="net")
    assert library.sizes.code < 10_000
