"""The portable half of an export: names, structure, and damage noticed."""

import collections
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxeff_export import Artifact, ArtifactError, deploy, export
from jaxeff_export.artifact import rebuild
from jaxeff_export.artifact._signature import count_leaves, describe
from small_network import inputs, mlp, parameters

from jaxeff.moment_propagation import Gaussian

Pair = collections.namedtuple("Pair", ["left", "right"])


@pytest.fixture(scope="module")
def artifact():
    return export(mlp, (parameters(), inputs()))


def test_arguments_carry_their_paths(artifact):
    assert artifact.arguments == ("params", "x")
    assert [spec.name for spec in artifact.inputs] == [
        "params['b1']",
        "params['unused']",
        "params['w1'].mean",
        "params['w1'].var",
        "params['w2']",
        "x",
    ]
    assert artifact.inputs[-1].shape == (2, 8)
    assert artifact.inputs[-1].dtype == "float32"
    assert [spec.name for spec in artifact.outputs] == [
        "result['hidden'][0]",
        "result['hidden'][1][0]",
        "result['logits'].mean",
        "result['logits'].var",
    ]


def test_the_artifact_computes_the_function(artifact):
    leaves = artifact.call(*jax.tree.leaves((parameters(), inputs())))
    expected = jax.jit(mlp)(parameters(), inputs())
    result = rebuild(artifact.structure, leaves)
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for ours, theirs in zip(leaves, jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_unused_arguments_stay_in_the_module(artifact):
    main = next(line for line in artifact.text.splitlines() if "@main(" in line)
    assert main.count("%arg") == len(artifact.inputs)


def test_names_of_what_has_no_names():
    artifact = export(lambda *leaves: leaves[0] + leaves[1], (1.0, jnp.ones(2)))
    assert [spec.name for spec in artifact.inputs] == ["leaves[0]", "leaves[1]"]
    assert export(jnp.linalg.norm, (jnp.ones(2),)).arguments == ("x",)


def test_shapes_suffice(artifact):
    abstract = jax.eval_shape(lambda: (parameters(), inputs()))
    assert export(mlp, abstract).inputs == artifact.inputs


def test_what_is_no_array_is_named():
    with pytest.raises(
        TypeError, match=r"args\[0\] must be a pytree of arrays, but name is 'relu'"
    ):
        export(lambda params: params["x"], ({"x": 1.0, "name": "relu"},))


def test_tensors_of_pytorch_are_named():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"args\[0\] .* it is Tensor .* give an array, x.numpy"):
        export(lambda x: x + 1, (torch.ones(2),))


def test_saving_and_loading(artifact, tmp_path):
    path = artifact.save(tmp_path / "folder" / "mlp.zip")
    assert Artifact.load(path) == artifact
    assert path.read_bytes() == artifact.to_bytes()  # no clock, no order in it
    assert [entry.name for entry in path.parent.iterdir()] == ["mlp.zip"]


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.99])
def test_a_cut_artifact_is_refused(artifact, tmp_path, part):
    path = artifact.save(tmp_path / "mlp.zip")
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ArtifactError, match=r"mlp\.zip is damaged"):
        Artifact.load(path)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_flipped_bit_changes_what_is_read(artifact, data):
    """A flip is refused, or it hits a byte that means nothing (a date) and the content is equal."""
    content = bytearray(artifact.to_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    assert _read(bytes(content)) in (artifact, "refused")


def _read(content):
    try:
        return Artifact.from_bytes(content, "flipped")
    except ArtifactError:
        return "refused"


def test_other_files_and_versions_are_refused(artifact, tmp_path, monkeypatch):
    with pytest.raises(ArtifactError, match="cannot be read"):
        Artifact.load(tmp_path / "nothing.zip")
    (tmp_path / "text.zip").write_text("not a zip file")
    with pytest.raises(ArtifactError, match=r"text\.zip is damaged or no artifact"):
        Artifact.load(tmp_path / "text.zip")
    monkeypatch.setattr("jaxeff_export.artifact._artifact.FORMAT_VERSION", 3)
    newer = artifact.to_bytes()
    monkeypatch.undo()
    with pytest.raises(ArtifactError, match="format version 3, this jaxeff reads 1 and 2"):
        Artifact.from_bytes(newer)


@pytest.mark.parametrize(
    ("ending", "door"), [("onnx", "jaxeff_export.from_onnx"), ("pt", "jaxeff.functional")]
)
def test_a_model_of_another_library_names_its_door(tmp_path, ending, door):
    path = tmp_path / f"net.{ending}"
    path.write_bytes(b"what others write")
    with pytest.raises(ArtifactError, match=door):
        Artifact.load(path)


_trees = st.recursive(
    st.just(0.0) | st.none(),
    lambda children: (
        st.lists(children, max_size=3)
        | st.lists(children, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), children, max_size=3)
        | st.tuples(children, children).map(lambda pair: Pair(*pair))
        | st.just(Gaussian(0.0, 0.0))
    ),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(_trees)
def test_structures_are_rebuilt(tree):
    leaves, treedef = jax.tree.flatten(tree)
    numbers = list(range(len(leaves)))
    description = describe(tree)
    assert count_leaves(description) == len(leaves)
    rebuilt = rebuild(description, numbers)
    # A rebuilt named tuple is a tuple of equal content, not of the same class.
    assert jax.tree.leaves(rebuilt) == numbers
    assert describe(rebuilt) == description
    assert _plain(rebuilt) == _plain(treedef.unflatten(numbers))


def _plain(tree):
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, Gaussian):
        return ("Gaussian", tree.mean, tree.var)
    if isinstance(tree, list):
        return [_plain(item) for item in tree]
    if isinstance(tree, tuple):
        return tuple(_plain(item) for item in tree)
    return tree


def test_structure_errors():
    with pytest.raises(ValueError, match="has 2 leaves, 1 were given"):
        rebuild(describe((0.0, 0.0)), [1])
    with pytest.raises(TypeError, match="neither a string nor an integer"):
        describe({(1, 2): 0.0})


def test_a_file_has_the_module_once(artifact, tmp_path):
    """What JAX serializes has the module in it."""
    assert artifact.stablehlo in artifact.exported
    assert Artifact.load(artifact.save(tmp_path / "a.zip")) == artifact
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.read("model.stablehlo") == artifact.stablehlo
        assert len(archive.read("model.jax")) == len(artifact.exported) - len(artifact.stablehlo)


@pytest.mark.parametrize("any_batch", [False, True])
def test_deploying_traces_a_function_once_per_batch(any_batch):
    traces = []

    def f(w, x):
        traces.append(x.shape)
        return {"y": jnp.tanh(x @ w)}

    w, x = jnp.ones((3, 2)), jnp.linspace(-1.0, 1.0, 15).reshape(5, 3)
    bundle = deploy(f, (w, x), any_batch=any_batch)
    assert bundle.check().passed
    assert bundle.treedef == jax.tree.structure({"y": 0})
    # Of any batch: the example's, the unknown one, and two more that are recorded.
    assert len(traces) == (4 if any_batch else 1)
