"""Checks the form of documents of unknown origin; a form is described as data.

A form is ``str``; ``bool``; `COUNT`, a whole number from 0; a list of one form, for a list of any
length; a dict of names to forms, for an object that has these entries; `MappingOf`, for an object
with any names; or a tuple of forms, for one of them.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any

COUNT = range(2**53)
"""Sizes and other counts: whole numbers that any reader of JSON takes as they are."""

SPEC = {"name": str, "shape": [(COUNT, str)], "dtype": str}
"""A `TensorSpec`, written down."""


@dataclass(frozen=True)
class MappingOf:
    """An object whose values are of one form, whatever their names."""

    form: Any


def require_form(value: Any, form: Any, where: str) -> None:
    """Refuses a value of another form.

    Args:
      value: Value read from JSON.
      form: Form that it has to have.
      where: name in error messages, such as ``inputs[0].shape``.

    Raises:
      ValueError: It is of another form; the first place where, and what is there, are named.
    """
    if isinstance(form, tuple):
        if not any(_fits(value, one) for one in form):
            _refuse(value, " or ".join(_said(one) for one in form), where)
    elif isinstance(form, list):
        if not isinstance(value, list):
            _refuse(value, "a list", where)
        for index, item in enumerate(value):
            require_form(item, form[0], f"{where}[{index}]")
    elif isinstance(form, MappingOf):
        if not isinstance(value, dict):
            _refuse(value, "an object", where)
        for name, item in value.items():
            require_form(item, form.form, f"{where}[{_short(name)}]")
    elif isinstance(form, dict):
        if not isinstance(value, dict):
            _refuse(value, "an object", where)
        for name, inner in form.items():
            place = f"{where}.{name}" if where else name
            if name not in value:
                raise ValueError(f"{place} is missing")
            require_form(value[name], inner, place)
    elif not _fits(value, form):
        _refuse(value, _said(form), where)


def _fits(value: Any, form: Any) -> bool:
    """Tells whether a value is of a form, with parts or without."""
    if form is COUNT:
        # Exactly int: True is one of its instances, but no count.
        return type(value) is int and value in COUNT
    if isinstance(form, type):
        return type(value) is form
    try:
        require_form(value, form, "")
    except ValueError:
        return False
    return True


def _said(form: Any) -> str:
    if form is COUNT:
        return "a count"
    if form in (str, bool):
        return "text" if form is str else "true or false"
    return "a list" if isinstance(form, list) else "an object"


def _refuse(value: Any, wanted: str, where: str) -> None:
    raise ValueError(f"{where} is {_short(value)}, not {wanted}")


def _short(value: Any) -> str:
    return reprlib.repr(value)
