"""Writes the C text of a library: interface, driver, threads, parameters, example, bare metal."""

from jaxeff_export.clib.codegen import _driver as driver
from jaxeff_export.clib.codegen import _dual as dual
from jaxeff_export.clib.codegen import _example as example
from jaxeff_export.clib.codegen._example import record
from jaxeff_export.clib.codegen._interface import STATE, fields_of, identifier, kept_apart
from jaxeff_export.clib.codegen._rendering import assembly, pack, render

__all__ = [
    "STATE",
    "assembly",
    "driver",
    "dual",
    "example",
    "fields_of",
    "identifier",
    "kept_apart",
    "pack",
    "record",
    "render",
]
