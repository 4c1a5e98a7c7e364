"""Repositories of the Hub: what is put there comes back, and what goes wrong names the way out.

A stand-in of the Hub lays files out as its client's cache has them; the client reads them itself.
"""

import inspect
import json
import shutil
import sys
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.compression import LSQ, Int, LayerQuantization, Uniform, calibrate
from jaxeff.core import Setting, register_setting
from jaxeff.nn import small_classifier
from jaxeff.store import CheckpointError
from jaxeff.weights import WeightsError, load_from_hub, push_to_hub

PARAMS = {
    "stem": {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.ones(3, jnp.bfloat16)},
    "key": jax.random.key(3),
}


class LocalHub:
    """The Hub's client on a cache alone; what is uploaded becomes a commit there."""

    def __init__(self, monkeypatch, cache):
        self.client = pytest.importorskip("huggingface_hub")
        constants = import_module("huggingface_hub.constants")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        self.cache, self.private, self.commits = cache, {}, 0

    def create_repo(self, *args, **kwargs):
        bound = inspect.signature(self.client.HfApi.create_repo).bind(self, *args, **kwargs)
        self.private[bound.arguments["repo_id"]] = bound.arguments["private"]

    def upload_folder(self, *args, **kwargs):
        call = inspect.signature(self.client.HfApi.upload_folder).bind(self, *args, **kwargs)
        repo, folder = call.arguments["repo_id"], call.arguments["folder_path"]
        assert repo in self.private
        self.commits += 1
        commit = f"{self.commits:040x}"
        root = self.cache / f"models--{repo.replace('/', '--')}"
        shutil.copytree(folder, root / "snapshots" / commit)
        (root / "refs").mkdir(exist_ok=True)
        (root / "refs" / "main").write_text(commit)
        return f"https://huggingface.co/{repo}/commit/{commit}"

    def snapshot_download(self, *args, **kwargs):
        return self.client.HfApi().snapshot_download(*args, **kwargs)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    return LocalHub(monkeypatch, tmp_path / "cache")


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert jnp.asarray(one).dtype == jnp.asarray(other).dtype
        assert jnp.all(one == other)


def test_what_is_pushed_comes_back_by_name_by_commit_and_from_a_folder(hub, tmp_path):
    address = push_to_hub("somebody/small-net", PARAMS, private=True, api=hub)
    assert address == f"https://huggingface.co/somebody/small-net/commit/{1:040x}"
    assert hub.private == {"somebody/small-net": True}
    moved = {"stem": PARAMS["stem"]}
    push_to_hub("somebody/small-net", moved, api=hub)
    same(load_from_hub("somebody/small-net").params, moved)
    loaded = load_from_hub("somebody/small-net", revision=f"{1:040x}", like=PARAMS)
    same(loaded.params, PARAMS)
    assert loaded.spec is None
    assert "# small-net\n" in loaded.card
    folder = tmp_path / "here"
    assert push_to_hub(folder, PARAMS) == str(folder)
    for repo in (folder, str(folder), loaded.folder):
        same(load_from_hub(repo).params, PARAMS)


def test_a_spec_comes_back_as_it_was(tmp_path):
    measured = Uniform(4, range=(jnp.float32(-0.1), jnp.float32(0.3)))
    spec = {
        "*:linear": Int(8), "fc*": Int(4, activations=False), "fc2": None,
        "conv": LayerQuantization(LSQ(3), measured),
        "last": jaxeff.Additive(jnp.linspace(0, 1, 3)), "heads": jaxeff.LoRA(rank=2),
    }  # fmt: skip
    push_to_hub(tmp_path / "net", PARAMS, spec=spec)
    loaded = load_from_hub(tmp_path / "net").spec
    assert list(loaded) == list(spec)
    assert jax.tree.structure(loaded) == jax.tree.structure(spec)
    for one, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(spec), strict=True):
        assert type(one) is type(other)
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_calibrated_network_has_the_same_integers(tmp_path):
    f, params, (x, _) = small_classifier(16)
    spec = calibrate(f, params, x, {"*:linear": Int(8)}).spec
    push_to_hub(tmp_path, params, spec=spec)
    loaded = load_from_hub(tmp_path)
    ours, theirs = jaxeff.integer(f, spec), jaxeff.integer(f, loaded.spec)
    same(theirs.convert(loaded.params, x), ours.convert(params, x))


@pytest.mark.slow
def test_a_card_says_what_was_done_and_measured(hub):
    f, params, data = small_classifier(64)
    key, spec = jax.random.key(0), {"*:linear": Int(8), "fc2": None}
    report = jaxeff.report(key, f, params, data, sections=("predictions",), title="Digits")
    about = {"Training data": "scikit-learn's digits."}
    push_to_hub("a/net", params, spec=spec, report=report, about=about, api=hub)
    card = load_from_hub("a/net").card
    metadata = pytest.importorskip("huggingface_hub").ModelCard(card).data
    assert metadata.library_name == "jaxeff"
    assert "quantization" in metadata.tags
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert f"{count:,} parameters, {4 * count:,} bytes" in card
    assert "| `*:linear` | `Int(" in card
    assert "| `fc2` | unchanged |" in card
    assert "## Training data\n\nscikit-learn's digits." in card
    accuracy = report.sections["predictions"]["inside"]["accuracy"]
    assert "## Digits\n" in card
    assert f"{100 * accuracy:.1f} %" in card
    push_to_hub("a/net", params, api=hub)
    assert "weren't measured" in load_from_hub("a/net").card


@register_setting
class Own(Setting):
    """A setting of somebody's own."""


def test_errors_name_the_repository_and_the_way_out(hub, tmp_path, monkeypatch):
    errors = import_module("huggingface_hub.errors")
    with pytest.raises(WeightsError, match=r"'a/b' isn't in the local cache.*give a folder"):
        load_from_hub("a/b")
    with pytest.raises(WeightsError, match=r"no folder 'nowhere'|no folder .*nowhere"):
        load_from_hub(tmp_path / "nowhere")
    with pytest.raises(WeightsError, match="'nowhere' is no folder and no name of a repository"):
        load_from_hub("nowhere")
    with pytest.raises(WeightsError, match="'net' is no folder and no name of a repository"):
        push_to_hub("net", PARAMS, api=hub)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "model.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"theirs' has no jaxeff.json .*load_weights\(params"):
        load_from_hub(tmp_path / "theirs")
    with pytest.raises(TypeError, match=r"the spec of 'fc' holds a Own.*leave the spec out"):
        push_to_hub(tmp_path / "own", PARAMS, spec={"fc": Own()})
    with pytest.raises(TypeError, match="has no create_repo"):
        push_to_hub("a/b", PARAMS, api=object())

    def raising(kind):
        def call(*_, **__):
            raise kind.__new__(kind)

        return call

    for kind, told in (
        (errors.GatedRepoError, "is gated: ask for access at https://huggingface.co/a/b"),
        (errors.RepositoryNotFoundError, "isn't on the Hub, or is private"),
        (errors.RevisionNotFoundError, "has no revision 'v2'"),
        (ValueError, "can't be fetched"),
    ):
        monkeypatch.setattr(hub, "snapshot_download", raising(kind), raising=False)
        with pytest.raises(WeightsError, match=f"'a/b' {told}"):
            load_from_hub("a/b", revision="v2", api=hub)
    for kind, told in (
        (errors.OfflineModeIsEnabled, "can't be reached: .*hf upload"),
        (errors.HfHubHTTPError, "is refused: log in by `hf auth login`"),
    ):
        monkeypatch.setattr(hub, "create_repo", raising(kind), raising=False)
        with pytest.raises(WeightsError, match=f"'a/b' {told}"):
            push_to_hub("a/b", PARAMS, api=hub)


@pytest.mark.parametrize(
    ("forged", "told"),
    [
        (lambda spec: {"room": "os", "setting": "system", "fields": {}}, "os.system is no setting"),
        (lambda spec: {"room": "jaxeff.store", "setting": "Journal", "fields": {}}, "no setting"),
        (lambda spec: spec | {"fields": {"bits": -4}}, "bits"),
        (lambda spec: spec | {"fields": {"color": 1}}, "color"),
        (lambda spec: {"array": [1, [2]], "dtype": "float32"}, "spec"),
        (lambda spec: {"array": [1], "dtype": "O"}, "spec"),
        (lambda spec: {}, "room"),
    ],
)
def test_forged_specs_are_refused(tmp_path, forged, told):
    push_to_hub(tmp_path, PARAMS, spec={"fc": Int(8)})
    path = tmp_path / "jaxeff.json"
    facts = json.loads(path.read_text())
    facts["spec"]["fc"] = forged(facts["spec"]["fc"])
    path.write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match=told):
        load_from_hub(tmp_path)


def test_without_the_client_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pip install jaxeff\[hub\]"):
        load_from_hub("a/b")
