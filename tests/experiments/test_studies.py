"""What every study owes: help, settings, judging and drawing from its rows alone, going on.

Rows are those of fast runs, see `canning`.
"""

import json
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

from experiments.__main__ import MODULES, load
from experiments.harness import Found, command, figures
from experiments.harness.report import plain
from tests.experiments.canning import open_can

ROOT = Path(__file__).parents[2]
TOP = ["experiment", "size", "config", "versions", "rows", "checks", "differences"]


@pytest.fixture(params=MODULES, scope="module")
def study(request):
    return load(request.param)


def test_help_names_every_setting(study, capsys):
    with pytest.raises(SystemExit) as left:
        study.main(["--help"])
    assert left.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert study.about.splitlines()[0].split()[0] in printed
    options = list(command.find_options(type(study.sizes["default"])))
    for option in options:
        assert f"--{option.name}" in printed
        assert option.help, f"{option.name} has no line in the docstring"


def test_settings_are_three_of_one_kind(study):
    default = study.sizes["default"]
    assert is_dataclass(default)
    assert {type(settings) for settings in study.sizes.values()} == {type(default)}
    assert plain(study.sizes["fast"]) != plain(default)
    assert plain(study.sizes["full"]) != plain(default)


@pytest.mark.parametrize("arguments", [["--seed", "x"], ["--suite", "nope"], ["--fast", "--full"]])
def test_wrong_options_are_one_line(study, arguments, capsys):
    with pytest.raises(SystemExit) as left:
        study.main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_judges_from_its_rows(study):
    checks = {}
    for size in command.SIZES:
        report = open_can(study.name, size)
        study.judge(report)
        checks[size] = {check["name"]: check for check in report.checks}
    assert checks["full"]
    assert checks["fast"].keys() == checks["default"].keys() == checks["full"].keys()
    for name, check in checks["full"].items():
        assert check["passed"] in (True, False)
        for size in ("fast", "default"):
            lower = checks[size][name]
            needed = lower.get("needs", "fast")
            decided = command.SIZES.index(size) >= command.SIZES.index(needed)
            assert lower["passed"] == (check["passed"] if decided else None)
    report = open_can(study.name)
    json.dumps([plain(study.show(report)), report.extra], allow_nan=False)


def faults(figure):
    """What would be wrong to look at."""
    found = []
    legends = [*figure.legends]
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        found += [f"{a} over {b}" for a, b in figures.colliding(axes)]
        for line in axes.lines:
            if not line.get_label().startswith("_") and not len(line.get_xdata()):
                found.append(f"{line.get_label()} is empty")
        legends += [legend] if (legend := axes.get_legend()) else []
    panels = [axes.get_window_extent() for axes in figure.axes if axes.get_visible()]
    for legend in legends:
        box = legend.get_window_extent()
        if any(box.overlaps(panel) for panel in panels):
            found.append("a legend lies over a panel")
    return found


@pytest.mark.slow
def test_draws_from_its_rows(study):
    drawn = study.draw(open_can(study.name))
    assert drawn
    for name, figure in drawn.items():
        figures.finish(figure)
        assert any(axes.has_data() for axes in figure.axes)
        assert not (name, faults(figure))[1], (name, faults(figure))
        figures.plt.close(figure)


def _as_found(run, found):
    return found


def test_goes_on_after_a_cut(study, tmp_path, capsys):
    """Its rows, judging and tables go through the harness; a run cut in the middle ends alike."""
    can = open_can(study.name)
    calls = []

    def run(run):
        def make(i):
            if len(calls) == len(can.rows) // 2:
                raise KeyboardInterrupt
            calls.append(i)
            return [can.rows[i]]

        return Found(run.each(range(len(can.rows)), make), can.extra, can.arrays)

    def settled(settings):
        """With what the kept run found here, such as its data."""
        open_ones = [f.name for f in fields(settings) if getattr(settings, f.name) == "auto"]
        return replace(settings, **{name: can.config[name] for name in open_ones})

    replayed = replace(study, parts=(run,), plots=(), derive=_as_found, settle=settled)
    arguments = ["--fast", "--results", str(tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        replayed.main(arguments)
    whole = len(can.rows)
    half = whole // 2
    assert calls == [*range(half)]
    calls[:] = [None] * whole  # so that what is left is made
    replayed.main(arguments)
    assert calls[whole:] == [*range(half, whole)]
    report = json.loads((tmp_path / f"{study.name}-fast.json").read_text())
    assert list(report)[: len(TOP)] == TOP
    assert report["rows"] == can.rows
    study.judge(can)
    assert report["checks"] == can.checks
    printed = capsys.readouterr().out
    assert "FAILED" in printed or all(check["passed"] is not False for check in can.checks)


def test_the_reproduction_uses_nothing_beyond_it():
    """Studies of what the thesis shows don't import those of `beyond`, which its README defines."""
    folder = ROOT / "experiments"
    lines = [
        f"{path.relative_to(folder)}: {line.strip()}"
        for path in folder.rglob("*.py")
        if "beyond" not in path.relative_to(folder).parts
        for line in path.read_text().splitlines()
        if re.match(r"\s*(from experiments\.beyond|import experiments\.beyond"
                    r"|from experiments import .*\bbeyond\b)", line)
    ]  # fmt: skip
    assert not lines


def test_what_reproduces_names_what_the_source_has(study):
    beyond = {load(name).name for name in MODULES if name.startswith("beyond.")}
    if study.name in beyond | {"quickstart"}:  # which shows what the library does, in a minute
        return
    report = open_can(study.name, "full")
    study.judge(report)
    assert any(check["source"] for check in report.checks)
