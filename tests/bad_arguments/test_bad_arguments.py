"""Every public function refuses bad arguments, one at a time, and says which.

The functions and their parameters are read from their signatures (`faces`), what a parameter is
from its valid value (`valid`), and what is bad in its place from that kind (`bad`). So a new
function is tried as soon as it is public; one whose parameters are unknown fails here until
`valid` has values for them, or says why it is left out.

A bad value is refused by the library itself, by an error that names the argument, or what comes out
shows it: NaN of NaN, nothing of no examples. What is taken for a reason is listed in `exceptions`.
"""

import re
import traceback
from pathlib import Path
from typing import Any

import jax
import jaxeff_export
import numpy as np
import pytest

import jaxeff
from tests.bad_arguments import exceptions, faces, tried

FUNCTIONS = faces.public("functions")
TRIED = {name: f for name, f in FUNCTIONS.items() if name not in tried.LEFT_OUT}
LIBRARY = tuple(str(Path(package.__file__).parent) for package in (jaxeff, jaxeff_export))
REFUSALS = (TypeError, ValueError)


def mistakes(name: str, function: Any) -> list[str]:
    """What is taken, or refused by an error that says too little, one line each."""
    from tests.bad_arguments import bad, valid  # their arrays take seconds, at collection too

    values = valid.call_of(name, function)
    found = []
    star = faces.several(function)
    for parameter, value in values.items():
        one = value[0] if parameter == star and value else value
        for what, wrong in bad.bad_values(one).items():
            legitimate = wrong is None and (
                parameter == star or faces.may_be_none(function, parameter)
            )
            if legitimate or exceptions.is_accepted(name, parameter, what):
                continue
            try:
                given = (wrong,) if parameter == star else wrong
                result = faces.call(function, {**values, parameter: given})
            except Exception as error:
                complaint = _too_little(error, parameter)
            else:
                complaint = None if _shows(result, what) else f"is taken, result {result!r:.60}"
            if complaint:
                found.append(f"{name}({parameter}={what}): {complaint}")
    return found


def _too_little(error: Exception, parameter: str) -> str | None:
    """What an error leaves open: whose it is, and about which argument."""
    told = f"{type(error).__name__}: {error}"[:200]
    where = traceback.extract_tb(error.__traceback__)[-1].filename
    ours = isinstance(error, REFUSALS) or type(error).__module__.startswith("jaxeff")
    if not ours or not where.startswith(LIBRARY):
        return f"fails inside, {told}"
    words = (parameter, *exceptions.WORDS.get(parameter, ()))
    named = any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", told, re.I) for word in words)
    return None if named else f"isn't named, {told}"


def _shows(result: Any, what: str) -> bool:
    """Whether a result shows what was wrong: NaN of NaN, nothing of nothing."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(result) if np.ndim(leaf) >= 0]
    if what == "NaN":
        return any(a.dtype.kind == "f" and np.isnan(a).any() for a in arrays)
    return what == "empty" and bool(arrays) and all(not a.size for a in arrays)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_bad_arguments_are_refused_and_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a path that should be refused would be written
    assert not (found := mistakes(name, TRIED[name])), "\n".join(found)


def test_every_public_function_is_tried_or_left_out_for_a_reason():
    from tests.bad_arguments import bad, valid

    assert FUNCTIONS.keys() >= tried.LEFT_OUT.keys(), "left out, but not public"
    assert FUNCTIONS.keys() >= valid.OWN.keys(), "values of functions that aren't public"
    unknown = {
        f"{name}({parameter})": valid.call_of(name, f)[parameter]
        for name, f in TRIED.items()
        for parameter in valid.call_of(name, f)
        if parameter not in valid.ANYTHING and not bad.kind_of(valid.call_of(name, f)[parameter])
    }
    assert not unknown, "nothing bad is known for these; see valid.py"


def test_what_is_found_is_found():
    from tests.bad_arguments import valid

    def counts(samples: int = 3, key: Any = valid.KEY) -> float:
        return 1.0 / samples

    found = mistakes("made_up.counts", counts)
    assert any(line.startswith("made_up.counts(samples=zero): fails inside") for line in found)
    assert any(line.startswith("made_up.counts(samples=negative): is taken") for line in found)
    assert any(line.startswith("made_up.counts(key=keys): is taken") for line in found)
