"""What every study shares, so that a new one costs its science only.

A `Study` names three sizes, runs, judges and draws. The harness has the command line, which comes
from the settings' dataclass, the rows that outlive a kill, the JSON, tables, checks and figures.
"""

from experiments.harness.claims import (
    Claim,
    Rule,
    above,
    at_least,
    at_most,
    below,
    equals,
    near,
    true,
)  # fmt: skip
from experiments.harness.command import ADDED, SELECTS, SIZELESS, Count, Least, Refused, choose
from experiments.harness.plots import Bars, Curves, Dots, Panel, Panels, Plot, histograms, painted
from experiments.harness.report import Report, Row
from experiments.harness.rows import (
    Chosen,
    Selection,
    average,
    averaged,
    error,
    every,
    exponent,
    extra,
    grouped,
    having,
    highest,
    least,
    mean,
    means,
    most,
    pivot,
    plus_minus,
    summary,
    where,
)  # fmt: skip
from experiments.harness.run import Found, Run, apart, without_curves
from experiments.harness.stacks import Stacks, labelled
from experiments.harness.study import Kept, Listing, Part, Study
from jaxeff.core import Table

__all__ = [
    "ADDED", "SELECTS", "SIZELESS", "Bars", "Chosen", "Claim", "Count", "Curves", "Dots", "Found",
    "Kept", "Least", "Listing", "Panel", "Panels", "Part", "Plot", "Refused", "Report", "Row",
    "Rule", "Run", "Selection", "Stacks", "Study", "Table", "above", "apart", "at_least", "at_most",
    "average", "averaged", "below", "choose", "equals", "error", "every", "exponent", "extra",
    "grouped", "having", "highest", "histograms", "labelled", "least", "mean", "means", "most",
    "near", "painted", "pivot", "plus_minus", "summary", "true", "where", "without_curves",
]  # fmt: skip
