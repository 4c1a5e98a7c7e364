"""Writes the C text of a library: interface, driver, threads, parameters, example, bare metal."""

from jaxeff_export.clib.codegen import _driver as driver  # noqa: F401
from jaxeff_export.clib.codegen import _dual as dual  # noqa: F401
from jaxeff_export.clib.codegen import _example as example  # noqa: F401
from jaxeff_export.clib.codegen import _serial as serial  # noqa: F401
from jaxeff_export.clib.codegen._example import record as record
from jaxeff_export.clib.codegen._interface import STATE as STATE
from jaxeff_export.clib.codegen._interface import fields_of as fields_of
from jaxeff_export.clib.codegen._interface import identifier as identifier
from jaxeff_export.clib.codegen._interface import kept_apart as kept_apart
from jaxeff_export.clib.codegen._interface import require_name as require_name
from jaxeff_export.clib.codegen._rendering import assembly as assembly
from jaxeff_export.clib.codegen._rendering import pack as pack
from jaxeff_export.clib.codegen._rendering import render as render
