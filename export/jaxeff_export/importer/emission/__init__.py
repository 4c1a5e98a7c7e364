"""Emits Relax and tensor programs for graphs of StableHLO operations."""

from jaxeff_export.importer.emission._bodies import (
    accumulator,
    called_regions,
    evaluate_region,
    rounded,
)
from jaxeff_export.importer.emission._elementwise import immediate, is_immediate
from jaxeff_export.importer.emission._emitter import (
    CompositeRule,
    Emitter,
    constant,
    known_ops,
    rule,
)
from jaxeff_export.importer.emission._folding import fold
from jaxeff_export.importer.emission._in_place import update_in_place
from jaxeff_export.importer.emission._kernel import KernelBuilder, copy, declare
from jaxeff_export.importer.emission._lanes import lanes_of
from jaxeff_export.importer.emission._loops import CodeBuilder, kernel
from jaxeff_export.importer.emission._views import Index, View, int64

__all__ = [
    "CodeBuilder",
    "CompositeRule",
    "Emitter",
    "Index",
    "KernelBuilder",
    "View",
    "accumulator",
    "called_regions",
    "constant",
    "copy",
    "declare",
    "evaluate_region",
    "fold",
    "immediate",
    "int64",
    "is_immediate",
    "kernel",
    "known_ops",
    "lanes_of",
    "rounded",
    "rule",
    "update_in_place",
]
