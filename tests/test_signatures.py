"""One order of arguments for the whole library: `key, f, params, data, spec`.

Keys come first, then what is computed (a function or its loss), its parameters, what it is
computed with, and the spec last: `laplace(key, f, params, data, sites)`. A transform, which has no
parameters yet, takes `f, spec`. A word means one kind of thing everywhere, so a parameter's place
follows from its name.
"""

import inspect
import itertools
from typing import Any

import pytest

from tests.bad_arguments import faces

ORDER: tuple[tuple[str, ...], ...] = (
    ("key", "rng"),
    ("f", "g", "loss", "loss_at"),
    ("params", "posterior"),
    ("data", "batch", "batches", "x", "inputs", "args", "arrays", "tokens", "window", "images",
     "examples", "validation", "features", "labels", "logits", "probs"),
    ("spec", "specs", "sites", "site", "pattern", "patterns", "plan", "settings", "levels"),
)  # fmt: skip
"""Parameters by name, in the order in which a function has those it has."""

PLACE = {name: place for place, names in enumerate(ORDER) for name in names}

OTHER_NAMES = {
    "fn": "f",
    "fun": "f",
    "func": "f",
    "example_args": "args",
    "seed": "key, a random key",
    "rng_key": "key",
    "batchsize": "batch_size",
}
"""Names that a parameter doesn't have, and the one it has."""

EXCEPTIONS = {
    "jaxeff.bayes.prior_scales": "the function is optional: without it shapes tell the fan-ins",
    "jaxeff.bayes.variational.start_from": "the function is optional, as for prior_scales",
    "jaxeff.compression.quantizers.turned": "the seed is a setting's, shared by programs",
    "jaxeff.core.check_key": "the key is what is checked, behind what it is called",
    "jaxeff.core.fast_key": "a key of a seed",
    "jaxeff.pruning.scores.determinantal": "the key is optional: without it the choice is greedy",
    "jaxeff.program.evaluate": "key and values are those of the evaluated call",
    "jaxeff.program.interpret": "key, args and kwargs are those of the transformed call",
    "jaxeff.program.interpret_sites": "key, args and kwargs are those of the transformed call",
    "jaxeff.training.converge_batch_stats": "the key is optional: only some networks draw",
    "jaxeff.program.plain_rule": "a rule: a layer, and the key and values of its call",
}
"""Functions that have another order, and why."""

FUNCTIONS = faces.public("functions") | faces.on_every_face()


def mistakes(function: Any) -> list[str]:
    """What is wrong in a function's order of parameters, one line each."""
    parameters = inspect.signature(function).parameters
    wrong = [f"{name} is called {OTHER_NAMES[name]}" for name in parameters if name in OTHER_NAMES]
    behind = [  # parameters that a call gives by position, and a key in any case
        name
        for name, parameter in parameters.items()
        if parameter.kind is not parameter.KEYWORD_ONLY or name == "key"
    ]
    known = [name for name in behind if name in PLACE]
    wrong += [
        f"{later} stands behind {earlier}"
        for earlier, later in itertools.pairwise(known)
        if PLACE[later] < PLACE[earlier]
    ]
    if "key" in behind and behind[0] != "key":
        wrong.append("key isn't first")
    return wrong


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - EXCEPTIONS.keys()))
def test_arguments_have_the_one_order(name):
    assert not (wrong := mistakes(FUNCTIONS[name])), wrong


@pytest.mark.parametrize("name", sorted(EXCEPTIONS))
def test_exceptions_are_some(name):
    assert mistakes(FUNCTIONS[name]), f"{name} has the order: no exception"


def test_another_order_is_found():
    def measured(f: Any, spec: Any, params: Any, *, key: Any = None) -> None: ...

    assert mistakes(measured) == ["params stands behind spec", "key stands behind params",
                                  "key isn't first"]  # fmt: skip
