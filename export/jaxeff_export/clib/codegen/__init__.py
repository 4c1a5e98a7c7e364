"""Writes the C text of a library: interface, driver, threads, parameters, example, bare metal."""

from jaxeff_export.clib.codegen import _bare_metal as bare_metal
from jaxeff_export.clib.codegen import _driver as driver
from jaxeff_export.clib.codegen import _dual as dual
from jaxeff_export.clib.codegen import _example as example
from jaxeff_export.clib.codegen import _instructions as instructions
from jaxeff_export.clib.codegen import _threads as threads
from jaxeff_export.clib.codegen._example import record
from jaxeff_export.clib.codegen._interface import STATE, fields_of, identifier, kept_apart
from jaxeff_export.clib.codegen._parameters import assembly, pack
from jaxeff_export.clib.codegen._rendering import render

__all__ = [
    "STATE",
    "assembly",
    "bare_metal",
    "driver",
    "dual",
    "example",
    "fields_of",
    "identifier",
    "instructions",
    "kept_apart",
    "pack",
    "record",
    "render",
    "threads",
]
