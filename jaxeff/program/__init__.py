"""A Flax model's function, read once as a program of named layers."""

from jaxeff.program import _control_flow as control_flow
from jaxeff.program._closed import CORRELATIONS, INTEGER, check_open, closed, read_out, read_out_by
from jaxeff.program._evaluate import (
    Rule,
    at_sites,
    evaluate,
    plain_rule,
    run_layers,
    site_key,
    site_keys,
)
from jaxeff.program._interpret import interpret, interpret_sites
from jaxeff.program._patterns import SpecError, Target, deciding_patterns, select
from jaxeff.program._shared_programs import SharedPrograms
from jaxeff.program._spec import check_settings, matching, resolve
from jaxeff.program.costs import Cost, LayerCost, Summary, Widths, cost, sites, summary
from jaxeff.program.ir import KINDS, Layer, Program
from jaxeff.program.reading import CompilerWarning, expression, expression_of, trace
from jaxeff.program.streams import StreamError, streaming

__all__ = [
    "CORRELATIONS",
    "INTEGER",
    "KINDS",
    "CompilerWarning",
    "Cost",
    "Layer",
    "LayerCost",
    "Program",
    "Rule",
    "SharedPrograms",
    "SpecError",
    "StreamError",
    "Summary",
    "Target",
    "Widths",
    "at_sites",
    "check_open",
    "check_settings",
    "closed",
    "control_flow",
    "cost",
    "deciding_patterns",
    "evaluate",
    "expression",
    "expression_of",
    "interpret",
    "interpret_sites",
    "matching",
    "plain_rule",
    "read_out",
    "read_out_by",
    "resolve",
    "run_layers",
    "select",
    "site_key",
    "site_keys",
    "sites",
    "streaming",
    "summary",
    "trace",
]
