"""Claims, plots and tables that a study declares, on rows with known answers."""

import matplotlib.pyplot as plt
import pytest

from experiments.harness import (
    Bars,
    Claim,
    Curves,
    Dots,
    Found,
    Listing,
    Part,
    Plot,
    Report,
    Stacks,
    above,
    at_least,
    at_most,
    average,
    every,
    having,
    highest,
    histograms,
    labelled,
    least,
    means,
    most,
    near,
    painted,
    pivot,
    summary,
    true,
    where,
    without_curves,
)

ROWS = [
    {"net": net, "bits": bits, "seed": seed, "score": score + seed, "source_score": 2.0}
    for net, scores in (("a", (1.0, 2.0)), ("b", (3.0, 4.0)))
    for bits, score in zip((4, 8), scores, strict=True)
    for seed in (0, 1)
]


@pytest.fixture
def report():
    return Report("any", "default", {"levels": [0, 1, 2]}, [dict(row) for row in ROWS])


def checks(report, *claims):
    for claim in claims:
        claim(report)
    return [(c["name"], c["source"], c["ours"], c["passed"]) for c in report.checks]


def test_a_claim_is_judged_for_every_row(report):
    claim = Claim(
        "{net}, {bits} bits: at least {bound:g}", "score", at_least(3.5), "{source_score:g}",
        means(where(net="b"), ("net", "bits"), ("score", "source_score")),
    )  # fmt: skip
    assert checks(report, claim) == [
        ("b, 4 bits: at least 3.5", "2", 3.5, True),
        ("b, 8 bits: at least 3.5", "2", 4.5, True),
    ]


def test_a_bound_may_be_a_column_and_a_value_a_function(report):
    over = Claim(
        "{bits}", "score", above("source_score"), of=where(net="a", seed=0),
        shown="{score:g} over {source_score:g}",
    )  # fmt: skip
    assert checks(report, over) == [("4", None, "1 over 2", False), ("8", None, "2 over 2", False)]
    report.checks.clear()
    least = Claim(
        "{net}", lambda row: row["score"] / 2, at_most(lambda row: row["bits"] / 4),
        lambda row: row["seed"], where(bits=4, seed=1),
    )  # fmt: skip
    assert checks(report, least) == [("a", 1, 1.0, True), ("b", 1, 2.0, False)]


def test_rules():
    assert near("expected", 0.5)({"expected": 2.0}, 1.5)
    assert not near("expected", 0.5)({"expected": 2.0}, 2.6)
    assert true({}, [0])
    assert not near(1, "error")({"error": 0.1}, 1.2)


def test_rows_of_a_group_become_columns_or_the_highest(report):
    assert pivot(where(seed=0), ["net"], "bits", "score")(report) == [
        {"net": "a", 4: 1.0, 8: 2.0}, {"net": "b", 4: 3.0, 8: 4.0},
    ]  # fmt: skip
    best = highest(every, "score", "net")(report)
    assert [(row["net"], row["bits"], row["seed"]) for row in best] == [("a", 8, 1), ("b", 8, 1)]


def test_curves_of_rows_become_arrays_under_their_place():
    rows = [{"net": "a", "curves": {"x": [0.0, 1.0]}}, {"net": "b", "curves": None}]
    found = without_curves(Found(rows, {"k": 1}), lambda row: row["net"])
    assert found.rows == [{"net": "a"}, {"net": "b"}]
    assert found.extra == {"k": 1}
    assert list(found.arrays) == ["a/x"]
    assert found.arrays["a/x"].tolist() == [0.0, 1.0]


def test_a_part_is_made_where_its_option_is_asked_for_and_marks_its_rows():
    class Settings:
        def runs(self, part):
            return part == "cost"

    class Run:
        settings = Settings()

        def each(self, tasks, make):
            return [row for task in tasks for row in make(task)]

    def make(run, what):
        return [{"what": what}]

    assert Part.of("time", lambda run: "ab", make, "cost")(Run()) == [
        {"part": "time", "what": "a"}, {"part": "time", "what": "b"},
    ]  # fmt: skip
    assert Part.of("time", lambda run: "ab", make)(Run()) == []


def test_a_summary_has_a_row_per_group(report):
    of = summary(where(bits=4), "net", mean=average("score"), top=most("score"), low=least("seed"))
    assert of(report) == [
        {"net": "a", "mean": 1.5, "top": 2.0, "low": 0},
        {"net": "b", "mean": 3.5, "top": 4.0, "low": 0},
    ]


def test_rows_without_a_value_do_not_count(report):
    report.rows[0]["score"] = None
    assert (
        len(checks(report, Claim("{net}", "score", at_least(0), when=lambda r: r["bits"] == 4)))
        == 3
    )


def test_what_a_size_cannot_decide_is_undecided(report):
    Claim("any", "score", at_least(0), of=where(net="a", bits=4, seed=0), needs="full")(report)
    assert report.checks[0]["passed"] is None


def test_a_listing_fills_templates_and_leaves_out_what_has_no_rows(report):
    (table,) = Listing("scores", {"net": "{net}{bits}", "half": lambda r: r["score"] / 2})(report)
    assert table.rows[0] == ["a4", "0.5"]
    assert Listing("none", of=having("nothing"))(report) == []
    (table,) = Listing(lambda report: f"of {report.name}")(report)
    assert table.title == "of any"


def test_a_plot_has_a_panel_per_facet_and_a_line_per_hue(report):
    averages = means(where(), ("net", "bits"), ("score",))
    plot = Plot(
        "scores",
        Curves("bits", "score", averages, hue="{net}", error=True, axes={"xlabel": "bits"}),
        Dots("net", {"score": "score", "source_score": "source"}, where(seed=0), facet="{bits}"),
        Bars("bits", "score", where(seed=0), hue="{net}"),
        columns=3,
    )
    (figure,) = plot(report).values()
    visible = [axis for axis in figure.axes if axis.get_visible()]
    assert [axis.get_title() for axis in visible] == ["", "4", "8", ""]
    assert visible[0].get_legend_handles_labels()[1] == ["a", "b"]
    assert visible[1].get_legend_handles_labels()[1] == ["score", "source"]
    assert [label.get_text() for label in visible[1].get_yticklabels()] == ["b", "a"]
    assert len(visible[3].patches) == 4
    plt.close(figure)
    assert Plot("none", Curves("bits", "score", having("nothing")))(report) == {}


def test_a_row_may_hold_a_curve(report):
    report.rows[:] = [{"curve": [1, 2, 3], "name": n, "own": [4, 5, 6]} for n in "ab"]
    for x, places in (("levels", [0, 1, 2]), ("own", [4, 5, 6])):
        (panel,) = Curves(x, "curve", hue="{name}")(report)
        figure, axis = plt.subplots()
        panel.paint(axis)
        assert [list(line.get_xdata()) for line in axis.lines[:2]] == [places] * 2
        plt.close(figure)


def test_panels_of_a_function_and_of_histograms():
    panel = painted("shares", histograms({"all": [0.0, 0.1, 0.9]}, (0, 0.5, 1)), xlabel="nats")
    (figure,) = Plot("shares", lambda report: [panel])(None).values()
    (axis,) = figure.axes
    assert [patch.get_height() for patch in axis.patches] == pytest.approx([4 / 3, 2 / 3])
    assert axis.get_xlabel() == "nats"
    plt.close(figure)


def test_a_pivot_has_every_column(report):
    wide = pivot(where(seed=0), ("bits",), "net {net}", "score")
    assert wide(report) == [
        {"bits": 4, "net a": 1.0, "net b": 3.0}, {"bits": 8, "net a": 2.0, "net b": 4.0},
    ]  # fmt: skip
    del report.rows[-2]  # b's of eight bits
    assert wide(report)[1] == {"bits": 8, "net a": 2.0, "net b": None}
    only = pivot(where(seed=0), ("net",), "bits", "score", [8, 2])
    assert only(report) == [{"net": "a", 8: 2.0}]


def test_parts_are_stacked_in_colours_of_their_own(report):
    report.rows[:] = [{"run": "a", "first": 1.0, "last": 2.0}, {"run": "b", "last": 4.0}]
    parts = {"first": "at first", "last": "at last"}
    (panel,) = Stacks("run", parts, then=labelled("%g"))(report)
    figure, axis = plt.subplots()
    panel.paint(axis)
    first, second = axis.containers
    assert [(bar.get_x(), bar.get_width()) for bar in first] == [(0, 1)]
    assert [(bar.get_x(), bar.get_width()) for bar in second] == [(1, 2), (0, 4)]
    assert first[0].get_facecolor() != second[0].get_facecolor()
    assert [text.get_text() for text in axis.texts] == ["1", "2", "4"]
    plt.close(figure)
