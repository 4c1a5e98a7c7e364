"""Architectures of other libraries: rows of those that are refused, crash or are absent."""

import json

import jax
import pytest
from flax import nnx

import jaxeff
from experiments.beyond import trials
from experiments.beyond.architectures import __main__ as study
from experiments.beyond.architectures import models, worker
from experiments.harness import Report
from jaxeff.nn import SmallCNN


def _small(name):
    class Broken(nnx.Module):
        def __call__(self, x):
            return {}["missing"]

    class Mixed(nnx.Module):
        def __init__(self):
            self.net = SmallCNN(rngs=nnx.Rngs(0))

        def __call__(self, x):
            # Rounded, it has no slope, and the linear method is no way out.
            return jax.numpy.round(jax.numpy.linalg.eigh(self.net(x)[:, :1, None])[0])

    return {"net": lambda: SmallCNN(rngs=nnx.Rngs(0)), "broken": Broken, "eigh": Mixed}[name]()


@pytest.fixture
def rows(monkeypatch, capsys):
    """Rows of a library whose second network crashes, and the third is refused by moments."""
    image = jax.ShapeDtypeStruct((1, 28, 28, 1), "float32")
    monkeypatch.setattr(worker, "build", lambda library, name: (_small(name), (image,)))
    monkeypatch.setattr(trials, "allow", lambda seconds: None)
    tasks = [f"net/{column}" for column in study.COLUMNS]
    worker.main(["60", "flax", *tasks, "broken/functional", "eigh/functional", "eigh/moments"])
    found = []
    for line in capsys.readouterr().out.splitlines():
        row = json.loads(line)
        name, column = row.pop("task").split("/")
        found.append({"library": "flax", "architecture": name, "column": column, **row})
    return found


def test_a_row_says_what_became_of_a_column(rows):
    assert [row["status"] for row in rows] == [*["right"] * 4, "crash", "right", "refused"]
    read, pruned, integer, _, broken, _, refused = rows
    params = jaxeff.functional(_small("net"))[1]
    assert read["number"] == sum(leaf.size for leaf in jax.tree.leaves(params))
    assert read["sites"] > 4
    assert read["undescribed"] == []
    assert 0.2 < pruned["number"] < 0.6
    assert integer["number"] == 1.0
    assert broken["words"] == "KeyError: 'missing'"
    assert "eigh" in refused["words"]


def test_tables_list_every_refusal_and_claims_count_crashes(rows):
    report = Report("architectures", "default", {}, rows, {}, {})
    (table,) = study.refusals(report)
    assert [line[-1] for line in table.rows] == ["broken", "eigh"]
    (lines,) = study.listed(report)
    assert len(lines.rows) == 3
    assert study._defects(rows) == 1
    assert study._share(rows[-2:]) == 0.5


def test_a_library_that_is_absent_is_left_out(monkeypatch):
    def absent(library):
        raise ImportError(f"no {library} here")

    said = []
    monkeypatch.setattr(models, "names", absent)

    class Everything:
        settings = study.Settings(("timm",))
        say = staticmethod(said.append)

        def stream(self, tasks, make, again):
            assert list(tasks) == []
            return []

    assert study.read(Everything()) == []
    assert said == ["timm is left out: no timm here"]
