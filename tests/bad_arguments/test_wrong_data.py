"""Every call of a network refuses data that it can't use in words, or is right about them.

Words are those of the library: a TypeError or ValueError of its own that names the argument, in at
most 500 letters, and shows no numbers of arrays.
"""

import re

import pytest

from jaxeff.core import MisfitError
from jaxeff.core._misfits import LONGEST, is_own
from tests.bad_arguments import exceptions, faces, tried

FUNCTIONS = faces.public("functions")


def complaints(name: str) -> list[str]:
    """What is taken without a reason, or refused by an error that says too little."""
    from tests.bad_arguments import wrong_data  # its arrays take seconds, at collection too

    function, parameter = FUNCTIONS[name], tried.CALLS[name]
    values = wrong_data.call_of(name, function)
    lines = []
    for what, wrong in wrong_data.wrong_data(values[parameter]).items():
        unread = name in tried.SHAPES and what in ("NaN", "infinity", "none")
        if unread or f"{name}: {what}" in wrong_data.RIGHT:
            continue
        changed = wrong_data.argument(parameter, name, values[parameter], wrong)
        try:
            faces.call(function, {**values, parameter: changed})
        except Exception as error:
            complaint = _too_little(error, parameter)
        else:
            complaint = "is taken"
        if complaint:
            lines.append(f"{what}: {complaint}")
    return lines


def _too_little(error: Exception, parameter: str) -> str | None:
    said = str(error)
    told = f"{type(error).__name__} of {len(said)} letters: {said:.200}"
    if not isinstance(error, TypeError | ValueError | FloatingPointError):
        return f"is of another class, {told}"
    if not isinstance(error, MisfitError) and not is_own(error):
        return f"fails inside, {told}"
    # Of `args` deploy names the one that is wrong as f does, `x`, and the example that they are.
    words = (
        parameter,
        *exceptions.WORDS.get(parameter, ()),
        *("x is", "example") * (parameter == "args"),
    )
    if not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", said, re.I) for word in words):
        return f"isn't named, {told}"
    return f"is too long, {told}" if len(said) > LONGEST or "Array(" in said else None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", tried.CALLS)
def test_wrong_data_are_refused_in_words(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not (lines := complaints(name)), "\n".join(lines)


def test_enough_is_tried():
    from tests.bad_arguments import wrong_data

    assert len(tried.CALLS) >= 40
    assert len(wrong_data.INPUTS) >= 25
