"""Programs of torch.export and their files compute what PyTorch does; a file runs nothing."""

import io
import json
import os
import pickle
import zipfile

import jax
import numpy as np
import pytest

import jaxeff
from jaxeff.core._from_jax import TrainingModeWarning

torch = pytest.importorskip("torch")
pytest.importorskip("torchax")
pytestmark = [
    pytest.mark.promotes("dtype", "rank"),  # torchax does
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),  # PyTorch's own use of it
]


class Net(torch.nn.Module):
    def __init__(self, drop=0.0):
        super().__init__()
        self.stem = torch.nn.Conv2d(1, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.drop = torch.nn.Dropout(drop)
        self.fc = torch.nn.Linear(4, 3)
        self.scale = torch.tensor([1.0, 2.0])

    def forward(self, x):
        y = self.drop(torch.relu(self.norm(self.stem(x))))
        y.transpose(1, 2).mul_(self.scale[1])  # which the graph has no more
        return self.fc(y.mean((2, 3)))


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(4, 1, 6, 6)).astype("float32")


def exported(model, x, **options):
    torch.manual_seed(0)
    return torch.export.export(model, (torch.tensor(x),), **options)


def saved(program, path):
    torch.export.save(program, path)
    return path


@pytest.mark.seconds(30)
def test_a_program_and_its_file_compute_what_pytorch_does(x, tmp_path):
    program = exported(Net().eval(), x, dynamic_shapes=({0: torch.export.Dim.AUTO},))
    expected = program.module()(torch.tensor(x)).detach().numpy()
    for source in (program, saved(program, tmp_path / "net.pt2")):
        f, params = jaxeff.functional(source)
        np.testing.assert_allclose(jax.jit(f)(params, x), expected, atol=1e-6)
        np.testing.assert_allclose(f(params, x[:3]), expected[:3], atol=1e-6)
        assert {*params} == {"stem", "norm", "fc"}
        assert {"stem", "norm", "fc"} < set(jaxeff.sites(f, params, x))
        half = jax.tree.map(lambda w: w / 2, params)
        small = jaxeff.restore(source, half).module()(torch.tensor(x))
        np.testing.assert_allclose(small.detach(), f(half, x), atol=1e-6)
        with pytest.raises(ValueError, match=r"shape\[2\] to be equal to 6, but got 5.*Dim.AUTO"):
            f(params, x[:, :, 1:])
        with pytest.raises(TypeError, match="takes 1 inputs in order"):
            f(params, x, x)
    with pytest.raises(ValueError, match=r"fc/weight' is float32\[2,4\] and was"):
        jaxeff.restore(program, {**params, "fc": {"weight": np.ones((2, 4)), "bias": np.ones(2)}})
    with pytest.raises(TypeError, match="no methods"):
        jaxeff.functional(program, method="module")


@pytest.mark.seconds(20)
def test_a_program_for_training_follows_the_batch_or_says_so(x):
    net = Net(drop=0.5)
    program = exported(net, x)
    with pytest.warns(TrainingModeWarning, match="norm normalizes by the batch"):
        jaxeff.functional(program, keyed=True)
    f, params, state = jaxeff.functional(program, mutable=True, keyed=True)
    first, after = jax.jit(f)(jax.random.key(0), params, state, x)
    other, _ = f(jax.random.key(1), params, state, x)
    assert np.abs(first - other).max() > 1e-3
    net(torch.tensor(x))
    for name, value in net.norm.named_buffers():
        np.testing.assert_allclose(after["norm"][name], value, atol=1e-6)


class Ran:
    """A pickled object that makes a file where it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def changed(source, target, change):
    """Copies an archive, with other bytes of its parts."""
    parts, added = {}, {}
    with zipfile.ZipFile(source) as before:
        for name in before.namelist():
            for new, content in change(name, before.read(name)):
                (parts if new == name else added)[new] = content
    with zipfile.ZipFile(target, "w") as after:
        for name, content in (parts | added).items():
            after.writestr(name, content)
    return target


def with_text(key, text):
    """Puts a text in the place of the first of a key in a program."""

    def change(name, content):
        if name.endswith("models/model.json"):
            program = json.loads(content)
            node = program["graph_module"]["graph"]["nodes"][0]
            if key == "target":
                node["target"] = text
            elif key == "guards_code":
                program["guards_code"] = [text]
            elif key == "expr_str":
                sizes = next(iter(program["graph_module"]["graph"]["tensor_values"].values()))
                sizes["sizes"][0] = {"as_expr": {"expr_str": text, "hint": None}}
            else:
                calls = program["graph_module"]["module_call_graph"]
                calls[0]["signature"]["in_spec"] = text
            content = json.dumps(program).encode()
        yield name, content

    return change


def hostile(path):
    ran = f"__import__('os').mkdir({str(path)!r})"
    pickled = io.BytesIO()
    torch.save(Ran(path), pickled)
    enum = json.dumps({"__enum__": True, "fqn": "os:path", "name": "x"})

    def inputs(name, content):
        yield name, pickled.getvalue() if "sample_inputs" in name else content

    def weights(name, content):
        if name.endswith("weights_config.json"):
            config = json.loads(content)
            entry = next(iter(config["config"].values()))
            entry["use_pickle"] = True
            yield name.replace("model_weights_config.json", entry["path_name"]), pickled.getvalue()
            content = json.dumps(config).encode()
        yield name, content

    def objects(name, content):
        if name.endswith("constants_config.json"):
            entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True}
            config = {"config": {"x": {**entry, "tensor_meta": None}}}
            content = json.dumps(config).encode()
            yield (
                name.replace("model_constants_config.json", "opaque_obj_0"),
                pickle.dumps(Ran(path)),
            )
        yield name, content

    def compiled(name, content):
        yield name, content
        if name.endswith("model.json"):
            yield name.replace("models/model.json", "data/aotinductor/model/x.so"), b"x"

    return {
        "pickled inputs": inputs, "pickled weights": weights, "objects": objects,
        "compiled": compiled, "size": with_text("expr_str", ran),
        "large size": with_text("expr_str", "Pow(Integer(9), Pow(Integer(9), Integer(9)))"),
        "condition": with_text("guards_code", ran),
        "operation": with_text("target", "_operator.methodcaller"),
        "class": with_text("target", "torch.hub.load"),
        "container": with_text(
            "in_spec", json.dumps([1, {"type": "enum", "context": enum, "children_spec": []}])
        ),
    }  # fmt: skip


@pytest.mark.seconds(20)
def test_a_file_that_would_run_code_is_refused_and_runs_none(x, tmp_path):
    source = saved(exported(Net().eval(), x), tmp_path / "net.pt2")
    ran = tmp_path / "ran"
    for name, change in hostile(ran).items():
        path = changed(source, tmp_path / "hostile.pt2", change)
        with pytest.raises(ValueError, match=r"hostile.pt2.*torch.export.load\(path\)"):
            jaxeff.functional(path)
        assert not ran.exists(), name


@pytest.mark.seconds(20)
def test_a_damaged_file_is_named(x, tmp_path):
    content = saved(exported(Net().eval(), x), tmp_path / "net.pt2").read_bytes()
    path = tmp_path / "damaged.pt2"
    for part in (b"", b"no archive", content[: len(content) // 2], content[:-100]):
        path.write_bytes(part)
        with pytest.raises(ValueError, match=r"damaged.pt2.* is damaged or no exported program"):
            jaxeff.functional(str(path))
    with pytest.raises(FileNotFoundError):
        jaxeff.functional(tmp_path / "none.pt2")
