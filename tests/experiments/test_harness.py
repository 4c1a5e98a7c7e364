"""The harness by the example of `experiments/README.md`, which is run as it is printed."""

import importlib.util
import json
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import matplotlib.pyplot as plt
import numpy as np
import pytest

from experiments.harness import (
    ADDED,
    SELECTS,
    SIZELESS,
    Found,
    Least,
    Refused,
    Report,
    Run,
    Study,
    command,
    figures,
    journals,
    run,
)
from experiments.harness import report as harness_report
from experiments.harness.sizes import reached, shortfalls, shown_size
from jaxeff import data
from jaxeff.data import VARIABLE
from jaxeff.store import CheckpointError

README = Path(__file__).parents[2] / "experiments" / "README.md"


@pytest.fixture(scope="module")
def coins(tmp_path_factory):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    path = tmp_path_factory.mktemp("example") / "coins.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("coins", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "coins", module)  # where an imported one would be
        yield module.STUDY


@pytest.fixture
def quiet(coins):
    """Without its figure, which takes most of its time."""
    return replace(coins, plots=())


def refused(study, *arguments, capsys):
    """What is said to a command line that can't be run."""
    with pytest.raises(SystemExit) as left:
        study.main([*map(str, arguments)])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def read(path):
    return json.loads(path.read_text())


@pytest.mark.slow
def test_the_example_runs(coins, tmp_path, capsys):
    coins.main(["--results", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "spread, published" in printed
    assert printed.count(" ok ") == 3
    report = read(tmp_path / "coins.json")
    assert list(report)[:7] == [
        "experiment", "size", "config", "versions", "rows", "checks", "differences",
    ]  # fmt: skip
    assert report["config"] == {
        "size": "default",
        "seed": 0,
        "tosses": [10, 100, 1000],
        "coins": 400,
    }
    assert report["differences"] == ["The book tosses no coins."]
    assert all(check["passed"] for check in report["checks"])
    assert (tmp_path / "coins" / "spread.png").read_bytes().startswith(b"\x89PNG")


def test_a_size_that_cannot_decide_says_so(quiet, tmp_path, capsys):
    quiet.main(["--fast", "--results", str(tmp_path)])
    printed = capsys.readouterr().out
    assert printed.count("undecided (needs default)") == 3
    assert "FAILED" not in printed
    checks = read(tmp_path / "coins-fast.json")["checks"]
    assert [(check["passed"], check["needs"]) for check in checks] == [(None, "default")] * 3


def test_data_that_are_missing_are_a_line_and_no_traceback(quiet, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (part,) = quiet.parts
    study = replace(quiet, parts=(replace(part, make=lambda run, task: data.load("mnist")),))
    assert "train-images-idx3-ubyte" in refused(study, "--results", tmp_path, capsys=capsys)


@pytest.mark.slow
def test_no_run_overwrites_another(quiet, tmp_path):
    for arguments in ([], ["--fast"], ["--full"], ["--coins", "5"], ["--tosses", "4", "9"],
                      ["--fast", "--seed", "1"]):  # fmt: skip
        quiet.main([*arguments, "--results", str(tmp_path)])
    assert {path.name for path in tmp_path.glob("*.json")} == {
        "coins.json", "coins-fast.json", "coins-full.json", "coins-coins=5.json",
        "coins-tosses=4,9.json", "coins-fast-seed=1.json",
    }  # fmt: skip


def test_a_run_goes_on_where_it_was_killed(quiet, tmp_path):
    done = []

    def killed(run):
        def toss(n):
            if len(done) == 1:
                raise KeyboardInterrupt
            done.append(n)
            return [{"tosses": n, "spread": 0.1, "source_spread": 0.1}]

        return run.each(run.settings.tosses, toss)

    study, arguments = replace(quiet, parts=(killed,)), ["--results", str(tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        study.main(arguments)
    assert not (tmp_path / "coins.json").exists()
    with (tmp_path / "coins" / "work" / "rows.jsonl").open("a") as file:
        file.write('{"task": 100, "ro')  # half a line, which a kill leaves
    quiet.main(arguments)
    rows = read(tmp_path / "coins.json")["rows"]
    assert [row["tosses"] for row in rows] == [10, 100, 1000]
    assert [row["spread"] == 0.1 for row in rows] == [True, False, False]
    quiet.main([*arguments, "--fresh"])
    assert read(tmp_path / "coins.json")["rows"][0]["spread"] != 0.1


def test_rows_of_another_folder_are_taken_over_with_the_commit_that_made_them(
    quiet, tmp_path, capsys, monkeypatch
):
    here, there = tmp_path / "here", tmp_path / "there"
    (part,) = quiet.parts
    less = replace(quiet, parts=(replace(part, tasks=lambda run: run.settings.tosses[:2]),))

    def rows(commit, folder, *arguments, study=quiet):
        monkeypatch.setattr(run, "commit", lambda: {"commit": commit})
        study.main(["--results", str(folder), *arguments])
        return read(folder / "coins.json")["rows"]

    first = rows("first", there, study=less)
    assert not any("commit" in row for row in first)
    said = refused(quiet, "--results", here, "--take", tmp_path, capsys=capsys)
    assert "nothing to take over" in said
    found = rows("second", here, "--take", str(there))
    assert [row.pop("commit", None) for row in found] == ["first", "first", None]
    assert found[:2] == first
    # They stay those of their commits, whoever reports them.
    assert [row.get("commit") for row in rows("third", here)] == ["first", "first", "second"]
    refused(quiet, "--results", here, "--take", there, "--seed", 1, capsys=capsys)


def test_a_seed_has_64_bits(quiet, capsys):
    assert "more than 64 bits" in refused(quiet, "--seed", 2**63, capsys=capsys)
    assert "--seed" in refused(quiet, "--seed", "one", capsys=capsys)


def test_a_size_decides_by_its_numbers_not_by_its_name(quiet, tmp_path, capsys):
    for number, (arguments, decided) in enumerate(
        (
            (["--coins", "399"], False),
            (["--tosses", "10", "1000"], False),
            (["--fast", "--coins", "400"], True),
            (["--coins", "401", "--tosses", "10", "100", "1000", "5"], True),
        )
    ):
        folder = tmp_path / str(number)
        quiet.main([*arguments, "--results", str(folder)])
        (path,) = folder.glob("*.json")
        assert {check["passed"] is not None for check in read(path)["checks"]} == {decided}
    assert shown_size({"size": "default", "coins": 399, "tosses": [10]}, quiet.sizes) == "narrowed"
    config = {"size": "default", "coins": 399, "tosses": [10, 100]}
    assert shortfalls(config, quiet.sizes, "default") == ["tosses", "coins"]


def test_what_measures_no_size_narrows_nothing():
    @dataclass(frozen=True)
    class Some:
        rate: float = 0.1
        engine: Annotated[str, SIZELESS] = "a"
        only: Annotated[tuple[str, ...], SELECTS] = ()
        data: str = "digits"
        own: int = 0
        auto: str = "auto"
        steps: int = 5

    sizes = {"fast": Some(), "default": Some(steps=9), "full": Some(rate=0.01, steps=20)}
    same = {"size": "default", **vars(sizes["default"])}
    assert reached(same, sizes) == "default"
    other = {"rate": 0.001, "engine": "b", "only": ["x"], "auto": "c"}
    assert reached(same | other, sizes) == "default"
    assert reached(same | {"own": 1}, sizes) == "fast"
    assert reached(same | {"data": "mnist"}, sizes) == "fast"
    assert reached(same | {"steps": 20}, sizes) == "full"
    assert reached({"size": "full", **vars(sizes["full"])}, sizes) == "full"


def test_a_claim_is_decided_regardless_of_what_it_does_not_depend_on(quiet, tmp_path):
    """Fewer coins narrow the run, and leave a claim undecided unless it says that it needs none."""
    (first, *_) = quiet.claims
    free = replace(first, regardless=("coins",))
    both = replace(quiet, claims=(first, free, first))
    both.main(["--coins", "399", "--results", str(tmp_path)])
    (path,) = tmp_path.glob("*.json")
    checks = read(path)["checks"]
    third = len(checks) // 3
    decided = [check["passed"] is not None for check in checks]
    assert decided == [False] * third + [True] * third + [False] * third


def test_what_is_kept_is_reported_while_the_rest_is_missing(coins, quiet, tmp_path, capsys):
    (part,) = quiet.parts

    def mean_spread(report):
        rows = {row["tosses"]: row["spread"] for row in report.rows}
        report.check("the spread of 1000 is the smallest", None, rows[1000], rows[1000] < rows[10])

    study = replace(quiet, claims=(*quiet.claims, mean_spread))
    arguments = ["--results", str(tmp_path)]
    assert "nothing that can be reported" in refused(study, *arguments, "--kept", capsys=capsys)
    less = replace(study, parts=(replace(part, tasks=lambda run: run.settings.tosses[:2]),))
    less = replace(less, claims=quiet.claims)
    less.main(arguments)
    study.main([*arguments, "--kept"])
    written = read(tmp_path / "coins.json")
    assert written["tasks_left"] == 1
    assert [row["tosses"] for row in written["rows"]] == [10, 100]
    *single, last = written["checks"]
    # What is of single rows is decided; what needs the missing one isn't.
    assert [check["passed"] for check in single] == [True, True]
    assert (last["name"], last["passed"]) == ("mean spread", None)
    assert last["needs"] == "the rest of the run"
    study.main(arguments)
    written = read(tmp_path / "coins.json")
    assert "tasks_left" not in written
    assert written["checks"][-1]["passed"] is True


def test_parts_that_are_not_kept_by_task_are_left_out_of_what_is_kept(quiet, tmp_path):
    never = replace(quiet, parts=(*quiet.parts, lambda run: pytest.fail("it was run")))
    quiet.main(["--results", str(tmp_path)])
    never.main(["--results", str(tmp_path), "--kept"])
    assert read(tmp_path / "coins.json")["tasks_left"] == 1


def test_a_report_says_who_made_its_rows_and_a_packed_journal_hands_them_over(
    quiet, tmp_path, monkeypatch
):
    monkeypatch.setattr(run, "commit", lambda: {"commit": "first"})
    quiet.main(["--results", str(tmp_path / "there")])
    (made,) = read(tmp_path / "there" / "coins.json")["made"]
    assert (made["commit"], made["tasks"], made["rows"]) == ("first", 3, 3)
    assert made["cpu_seconds"] > 0
    packed = tmp_path / "coins.jsonl.xz"
    identity, done = journals.read_work(tmp_path / "there" / "coins" / "work")
    journals.pack(packed, identity, done[:1])
    journals.pack(packed, identity, done[1:])  # beside those that lie there
    monkeypatch.setattr(run, "commit", lambda: {"commit": "second"})
    never = [replace(part, make=lambda *_: pytest.fail("it was made")) for part in quiet.parts]
    again = replace(quiet, parts=never)
    again.main(["--results", str(tmp_path / "here"), "--take", str(packed)])
    assert read(tmp_path / "here" / "coins.json")["made"] == [made]
    with pytest.raises(CheckpointError, match="seed is 0 there and 1 here"):
        journals.pack(packed, {**identity, "seed": 1}, done)
    packed.write_bytes(b"no journal")
    with pytest.raises(CheckpointError, match="no packed journal"):
        journals.unpack(packed)


def test_a_journal_of_another_processor_is_taken_over_though_its_levels_differ_in_a_last_digit(
    tmp_path,
):
    @dataclass(frozen=True)
    class Levels:
        levels: tuple[float, ...]

    measured = []

    def measure(run: Run[Levels]):
        return Found(
            run.each(run.settings.levels, lambda level: measured.append(level) or [{"n": 1}])
        )

    def study(level):
        return Study("any", "", dict.fromkeys(command.SIZES, Levels((level,))), (measure,), (), ())

    level = 10**-1.25
    study(level).main(["--results", str(tmp_path / "there")])
    packed = tmp_path / "any.jsonl.xz"
    journals.pack(packed, *journals.read_work(tmp_path / "there" / "any" / "work"))
    nearest, another = float(np.nextafter(level, 1)), level * (1 + 1e-9)
    take = ["--results", str(tmp_path / "here"), "--take", str(packed)]
    study(nearest).main(take)
    assert measured == [level]
    with pytest.raises(SystemExit):
        study(another).main([*take, "--fresh"])


def test_a_report_counts_the_tasks_it_asked_for_and_not_others_of_its_journal(
    quiet, tmp_path, monkeypatch
):
    def both_sides(run):
        return Found([*run.keep("heads", lambda: [{"side": "heads"}]),
                         *run.keep("tails", lambda: [{"side": "tails"}])])  # fmt: skip

    def tails(run):
        return Found(run.keep("tails", lambda: [{"side": "tails"}]))

    bare = replace(quiet, claims=(), tables=())
    monkeypatch.setattr(run, "commit", lambda: {"commit": "first"})
    replace(bare, parts=(both_sides,)).main(["--results", str(tmp_path)])
    assert [one["tasks"] for one in read(tmp_path / "coins.json")["made"]] == [2]
    replace(bare, parts=(tails,)).main(["--results", str(tmp_path)])
    assert [one["tasks"] for one in read(tmp_path / "coins.json")["made"]] == [1]


def test_rows_of_another_version_of_a_study_are_refused(quiet, tmp_path, capsys):
    quiet.main(["--results", str(tmp_path)])
    assert read(tmp_path / "coins.json")["study_version"] == 1
    said = refused(replace(quiet, version=2), "--results", tmp_path, capsys=capsys)
    assert "version" in said
    assert "--fresh" in said


def test_the_commit_may_be_told_where_there_is_no_repository(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError("git")

    monkeypatch.setattr(harness_report.subprocess, "run", missing)
    assert harness_report.commit() == {}
    monkeypatch.setenv("JAXEFF_COMMIT", "abc1234")
    assert harness_report.commit() == {"commit": "abc1234"}


def test_rows_of_other_settings_are_refused(quiet, tmp_path, capsys):
    quiet.main(["--results", str(tmp_path)])
    changed = replace(
        quiet, sizes={**quiet.sizes, "default": replace(quiet.sizes["default"], coins=9)}
    )
    said = refused(changed, "--results", tmp_path, capsys=capsys)
    assert "coins is 400 there and 9 here" in said
    assert "--fresh" in said
    changed.main(["--results", str(tmp_path), "--fresh"])


def test_results_that_cannot_be_written_are_found_first(coins, tmp_path, capsys):
    never = replace(coins, parts=(lambda run: pytest.fail("it was run"),))
    (tmp_path / "file").touch()
    for option in ("--results", "--json"):
        place = tmp_path / "file" / ("x.json" if option == "--json" else "")
        said = refused(never, "--results", tmp_path, option, place, capsys=capsys)
        assert "can't be written" in said
    made = Path("/proc/none/results")
    assert "can't be written" in refused(never, "--results", made, capsys=capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--coins", "1"], "argument --coins: 1 is less than 2"),
        (["--coins", "many"], "argument --coins: invalid int value: 'many'"),
        (["--tosses", "3", "0"], "argument --tosses: 0 is less than 1"),
        (["--fast", "--full"], "not allowed with argument"),
        (["--nope"], "unrecognized arguments: --nope"),
    ],
)
def test_wrong_options_are_one_line(coins, arguments, message, capsys):
    assert message in refused(coins, *arguments, capsys=capsys)


def test_help_suffices(coins, capsys):
    with pytest.raises(SystemExit) as left:
        coins.main(["--help"])
    assert left.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "J. Bernoulli" in printed
    assert "coins that are tossed so often [fast 8, default 400, full 400]" in printed
    for option in ("--fast", "--full", "--json", "--results", "--fresh", "--seed"):
        assert option in printed


@dataclass(frozen=True)
class Inner:
    """Within others."""

    rate: float = 0.5  # Rate of it.


@dataclass(frozen=True)
class Outer:
    """Of every kind.

    Attributes:
        inner: Settings of their own.
        path: Path of it.
        only: What to run only.
        table: No option.
        either: None, too.
    """

    inner: Inner = Inner()
    # one of two,
    # whichever it is
    which: Literal["a", "b"] = "a"
    flag: bool = True  # yes or no
    path: Path | None = None
    only: Annotated[tuple[str, ...], SELECTS] = ()
    least: Annotated[int | None, Least(1)] = None
    table: dict[str, int] = field(default_factory=dict)
    either: float | str = 1.0

    def __post_init__(self):
        if self.inner.rate > 1:
            raise Refused("a rate is at most 1")


def order(*arguments):
    return command.read("any", "About.", dict.fromkeys(command.SIZES, Outer()), arguments)


def test_options_come_from_the_settings():
    found = order("--inner-rate", "0.25", "--which", "b", "--no-flag", "--only", "x", "--only", "y")
    assert found.settings == Outer(Inner(0.25), "b", False, None, ("x", "y"))
    assert found.changed == {"inner-rate": 0.25, "which": "b", "flag": False}  # not what selects
    options = {option.name: option for option in command.find_options(Outer)}
    assert [*options] == ["inner-rate", "which", "flag", "path", "only", "least"]
    assert options["least"].arguments["metavar"] == "INT"
    said = ["rate of it", "one of two, whichever it is", "yes or no", "path of it"]
    assert [option.help for option in options.values()] == [*said, "what to run only", ""]
    with pytest.raises(Refused, match="at most 1"):
        order("--inner-rate", "2")
    with pytest.raises(Refused, match="no letter 'z': choose among x, y"):
        command.choose(["z"], ["x", "y"], "letter")


def test_what_selects_belongs_to_no_run(tmp_path):
    seen = []

    def run(run: Run[Outer]):
        seen.append(run.each(run.settings.only, lambda name: [{"name": name, "n": len(seen)}]))
        return Found(seen[-1])

    study = Study("any", "About.", dict.fromkeys(command.SIZES, Outer()), (run,), (), ())
    for names in (["a"], ["b", "a"]):
        study.main(["--only", *names, "--results", str(tmp_path)])
    assert [(row["name"], row["n"]) for row in seen[1]] == [("b", 1), ("a", 0)]


def test_reports_are_plain():
    report = Report("any", "full", {})
    report.check("of arrays", None, np.float32(0.5), np.bool_(True), needs="full")
    assert report.checks == [{"name": "of arrays", "source": None, "ours": 0.5, "passed": True}]
    json.dumps(report.checks, allow_nan=False)


def test_a_number_that_json_has_not_is_null(tmp_path):
    report = Report("coins", "fast", {}, [{"tosses": 1, "spread": float("inf")}], {})
    saved = json.loads(report.save(tmp_path / "coins.json").read_text())
    assert saved["rows"] == [{"tosses": 1, "spread": None}]


@pytest.mark.slow
def test_legends_stand_off_the_points_and_ticks_apart():
    figure, axes = plt.subplots(1, 2, figsize=(4, 3))
    for axis, names in zip(axes, ("abc", "ac"), strict=True):
        for i, name in enumerate(names):
            axis.plot([0, 1], [i, 1], color={"a": "C0", "b": "C1", "c": "C2"}[name], label=name)
    axes[0].set_xticks([0, 0.5, 1], ["a very long label", "another of the kind", "and a third one"])
    figure.set_layout_engine("constrained")
    figure.draw_without_rendering()
    assert figures.colliding(axes[0])
    figures.finish(figure)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c"]
    assert not figures.colliding(axes[0])
    below = legend.get_window_extent()
    assert not any(below.overlaps(axis.get_window_extent()) for axis in axes)
    plt.close(figure)


def test_a_label_of_two_meanings_has_a_legend_in_each_panel():
    figure, axes = plt.subplots(1, 2, figsize=(8, 3))
    for axis, color in zip(axes, ("C0", "C1"), strict=True):
        axis.plot([0, 1], color=color, label="the same")
    figures.finish(figure)
    assert not figure.legends
    for axis in axes:
        assert axis.get_legend().get_window_extent().y1 <= axis.get_tightbbox().y1
        assert axis.get_legend().get_window_extent().y1 < axis.get_window_extent().y0
    plt.close(figure)


def test_a_setting_that_came_later_leaves_kept_rows_where_they_are():
    """With its default it identifies no run; with another value it does, and what selects never."""

    @dataclass(frozen=True)
    class Settings:
        count: int = 1
        later: Annotated[int, ADDED] = 2
        chosen: Annotated[tuple[str, ...], SELECTS] = ()

    options = {option.name: option for option in command.find_options(Settings)}
    default, other = Settings(), Settings(later=3, chosen=("a",))
    assert [o.name for o in options.values() if o.identifies(default)] == ["count"]
    assert [o.name for o in options.values() if o.identifies(other)] == ["count", "later"]
