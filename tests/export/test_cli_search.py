"""The command `search`: what it prints and leaves, and that nonsense costs a line and no time."""

import json
import re
import sys

import numpy as np
import pytest
from command_line import call, refused
from jaxeff_export import Artifact, Bundle

MODELS = """
import jax
import jax.numpy as jnp

keys = jax.random.split(jax.random.key(0), 3)
x = jax.random.normal(keys[0], (64, 256))
labels = jnp.argmax(x[:, :10], -1)
params = {
    "a": jax.random.normal(keys[1], (256, 2060)) / 16,
    "b": jax.random.normal(keys[2], (2060, 10)) / 45,
}

def f(params, x):
    return jax.nn.relu(x @ params["a"]) @ params["b"]

def wide():
    return f, (params, x, labels)

def unlabelled():
    return f, (params, x)

def swapped():
    return f, (x, params, labels)

def misnamed():
    return lambda params, x: x @ params["c"], (params, x, labels)

def fewer_labels():
    return f, (params, x, labels[:50])

def other_labels():
    return f, (params, x, labels + 100)

def real_labels():
    return f, (params, x, x[:, 0])

def several():
    return lambda params, x: (f(params, x), x), (params, x, labels)
"""
SMALL = ("--episodes", 2, "--steps", 1, "--epochs", 1, "--round-to", 1030)
"""A kernel of few bits takes multiples of eight channels, so there is less to measure."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the models in it, which is the current one."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "searched_models.py").write_text(MODELS)
    (folder / "unfinished_models.py").write_text("def wide(:\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        yield folder
        sys.modules.pop("searched_models", None)


def search(*arguments):
    return call("search", *arguments, *SMALL)


@pytest.fixture(scope="module")
def searched(place):
    """What the command printed."""
    result = search("searched_models:wide", "small", "--share", 0.35, "--folder", "kept")
    assert result.exit_code == 0, result.output
    return result.stdout


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_bundle_is_what_was_printed(searched, place):
    rows = [[c.strip() for c in line.split("│")[1:-1]] for line in searched.splitlines()
            if line.startswith("│")]  # fmt: skip
    assert [row[0] for row in rows] == ["a", "b"]
    assert [row[1].split(" of ")[1] for row in rows] == ["2060", "10"]
    bundle = Bundle.load(place / "small")
    codes = Artifact.load(place / "small" / "artifact.zip").inputs[:-1]
    width = int(rows[0][1].split()[0])
    assert any(spec.shape == (256, width) for spec in codes)
    few = [row[2] != "float" for row in rows]
    assert sum(spec.dtype == "int8" and len(spec.shape) == 2 for spec in codes) == sum(few)
    assert bundle.check().passed
    assert searched.rstrip().endswith("small holds the compressed model")


def test_the_latency_was_measured_from_end_to_end(searched, place):
    latency = re.search(r"latency (\S+) of the whole model's \(asked 0.35\)", searched)
    kept = map(json.loads, (place / "kept" / "episodes.jsonl").read_text().splitlines()[1:])
    landed = [one["rows"]["ratio"] for one in kept if one["task"][0] == "refinement"]
    assert any(f"{0.35 * ratio:.4g}" == latency[1] for ratio in landed)


def test_the_same_command_measures_nothing_again(searched, place):
    before = contents(place / "kept")
    again = search("searched_models:wide", "again", "--share", 0.35, "--folder", "kept")
    assert again.exit_code == 0, again.output
    assert contents(place / "kept") == before
    x = np.asarray(sys.modules["searched_models"].x[:1])
    ours, theirs = (Bundle.load(place / name).run(x) for name in ("small", "again"))
    np.testing.assert_array_equal(ours, theirs)
    assert [line for line in again.stdout.splitlines() if "│" in line or "latency" in line] == [
        line for line in searched.splitlines() if "│" in line or "latency" in line
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("--share", 0.2), "setting 'target' is 0.35 there and 0.2 here"),
        (("--share", 0.35, "--seed", 1), "key is"),
        (("--share", 0.35, "--target", "cortex-a72"), "kernels.jsonl are of another run"),
    ],
)
def test_a_folder_of_another_search_is_left_alone(searched, place, changed, message):
    before = contents(place)
    result = search("searched_models:wide", "small", "--folder", "kept", *changed)
    assert refused(result, message)
    assert contents(place) == before


def test_a_share_out_of_reach(searched, place):
    """What was measured is kept, and the bundle that was there."""
    before = contents(place)
    arguments = ("searched_models:wide", "small", "--folder", "far", "--of", "pruning")
    result = search(*arguments, "--share", 0.001)
    assert refused(result, "a target of 0.001 can't be reached: the strongest policy of 'pruning'")
    after = contents(place)
    assert {path: after[path] for path in before} == before
    least = re.search(r"leaves (\S+) of the latency", result.stderr)[1]
    assert float(least) > 0.001
    measured = after[place / "far" / "kernels" / "kernels.jsonl"]
    again = search(*arguments, "--share", 0.001)
    assert refused(again, f"leaves {least} of the latency")
    assert (place / "far" / "kernels" / "kernels.jsonl").read_bytes() == measured


@pytest.mark.slow
def test_a_board_that_is_not_there(place):
    result = search("searched_models:wide", "b", "--board", "rpc://127.0.0.1:1")
    assert refused(result, "nothing answers at 127.0.0.1:1")
    assert not (place / "b").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no_such_module:f", "b"), "no_such_module:f gives no (f, (parameters, *inputs))"),
        (("unfinished_models:wide", "b"), "SyntaxError"),
        (("searched_models:unlabelled", "b"), "gives no (f, (parameters, inputs, labels))"),
        (("searched_models:swapped", "b"), "searched_models:swapped fails on its example"),
        (("searched_models:misnamed", "b"), "in <lambda>: KeyError: 'c'"),
        (("searched_models:fewer_labels", "b"), "the same number of examples"),
        (("searched_models:other_labels", "b"), "labels must be 0 to 9; found 100 to 109"),
        (("searched_models:real_labels", "b"), "must be integer class labels"),
        (("searched_models:several", "b"), "searched_models:several is no classifier"),
        (("searched_models:wide", "b", "--share", 0), "--share 0 is no share"),
        (("searched_models:wide", "b", "--share", "nan"), "--share nan is no share"),
        (("searched_models:wide", "b", "--share", 30), "--share 30 is no share"),
        (("searched_models:wide", "b", "--of", "distillation"), "not 'distillation'"),
        (("searched_models:wide", "b", "--target", "pi"), "unknown target 'pi'"),
        (("searched_models:wide", "b", "--board", "pi"), "unknown board 'pi'"),
        (("searched_models:wide", "."), "holds other files"),
        (("searched_models:wide", "searched_models.py"), "is not a folder"),
        (("searched_models:wide", "b", "--folder", "searched_models.py"), "File exists"),
        (("searched_models:wide", "b", "--folder", "b/kept"), "lies in the bundle's folder"),
    ],
)
def test_nonsense_is_told_before_anything_is_measured(place, monkeypatch, arguments, message):
    def never(*_, **__):
        raise AssertionError("something is measured")

    monkeypatch.setattr("jaxeff_export.latency._table.TableLatency._measure", never)
    before = contents(place)
    assert refused(search(*arguments), message)
    assert contents(place) == before
