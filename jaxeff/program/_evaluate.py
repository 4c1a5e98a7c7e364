"""Runs a program under a rule: the one interpreter that every transform shares.

A rule is `rule(layer, key, *values) -> sequence of outputs`, called for every layer except those of
kind control flow, whose bodies are run under the same rule. `layer.fn(*values)` is the plain
evaluation. Values are arrays, or any pytree a rule chooses to put in an array's place; a rule that
does gives `promote(value, like)`, which brings a value to another's structure, so that a loop's
carry and a branch's results keep one type.

```python
import jax

from jaxeff.nn import small_classifier
from jaxeff.program import at_sites, evaluate, plain_rule, run_layers, trace

f, params, (x, _) = small_classifier()
program, leaves = trace(f, params, x), jax.tree.leaves(((params, x), {}))


def scaled(factor, layer, key, *values):
    return [factor * y for y in plain_rule(layer, key, *values)]


(doubled,) = evaluate(program, at_sites({"fc2": 2.0}, scaled), None, leaves)
(logits,) = run_layers(program, leaves, lambda layer, inputs: plain_rule(layer, None, *inputs))
```

Randomness: a site's key is `fold_in(fold_in(key, crc32(base name)), occurrence)`, so one site's
noise doesn't depend on which others there are; a scan's body gets a key per iteration.

```python
from jaxeff.program import site_key

fc1, fc2 = (layer for layer in program.sites if layer.site in ("fc1", "fc2"))
key = jax.random.key(0)
assert site_key(key, fc1) != site_key(key, fc2)         # what a rule gets as its key
assert site_key(None, fc1) is None
```

Each layer runs under a name scope that records its site, so a transform of the result sees the same
sites.
"""

import contextlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import PRNGKeyArray

from jaxeff.core import Literal
from jaxeff.program import _control_flow as control
from jaxeff.program.ir import SPREAD_TAG, Layer, Program
from jaxeff.program.reading import mark

Rule = Callable[..., Sequence[Any]]
Promote = Callable[[Any, Any], Any]
Prepare = Callable[[Program, Sequence[Any]], Program]


def site_key(key: PRNGKeyArray | None, layer: Layer) -> PRNGKeyArray | None:
    """Returns the key of one site, derived from the transform's key."""
    if key is None or not layer.site:
        return None
    name = jax.random.fold_in(key, zlib.crc32(layer.base.encode()))
    return jax.random.fold_in(name, layer.occurrence)


def site_keys(key: PRNGKeyArray, layers: Sequence[Layer]) -> PRNGKeyArray:
    """Returns the keys of several sites, `[layers]`, as `site_key` would one by one.

    ```python
    import jax

    from jaxeff.nn import small_classifier
    from jaxeff.program import site_key, site_keys, trace

    f, params, (x, _) = small_classifier(2)
    layers = [layer for layer in trace(f, params, x).layers if layer.site]
    keys = site_keys(jax.random.key(0), layers)
    assert keys[0] == site_key(jax.random.key(0), layers[0])
    ```
    """
    names = np.array([zlib.crc32(layer.base.encode()) for layer in layers], np.uint32)
    occurrences = np.array([layer.occurrence for layer in layers], np.uint32)
    # One function of all of them: every call of a random function is compiled anew.
    of_names = jax.vmap(jax.random.fold_in, (None, 0))(key, names)
    return jax.vmap(jax.random.fold_in)(of_names, occurrences)


def run_layers(
    program: Program,
    values: Sequence[Any],
    outputs_of: Callable[[Layer, list[Any]], Sequence[Any]],
) -> list[Any]:
    """Runs a program's layers in order, each by a function of the layer and its inputs.

    Args:
        program: Result of `trace`.
        values: One per flattened argument.
        outputs_of: `outputs_of(layer, inputs) -> outputs`.

    Returns:
        One value per flattened result.
    """
    env: dict[Any, Any] = dict(program.constants)
    env.update(zip(program.inputs, values, strict=True))
    for layer in program.layers:
        outputs = outputs_of(layer, [env[v] for v in layer.inputs])
        env.update(zip(layer.outputs, outputs, strict=True))
    return [v.val if isinstance(v, Literal) else env[v] for v in program.outputs]


def evaluate(
    program: Program,
    rule: Rule,
    key: PRNGKeyArray | None,
    values: Sequence[Any],
    promote: Promote | None = None,
    prepare: Prepare | None = None,
) -> list[Any]:
    """Runs a program's layers in order.

    Args:
        program: Result of `trace`.
        rule: Evaluates one layer.
        key: The transform's PRNG key, or None for a deterministic transform.
        values: One per flattened argument.
        promote: Brings a value to the structure of another; only for rules with values of their
            own.
        prepare: Groups the layers of a program (of each loop's body, too) anew, given its inputs.

    Returns:
        One value per flattened result.
    """
    if prepare is not None:
        program = prepare(program, values)

    def run(body: Program, body_key: Any, body_values: Sequence[Any]) -> list[Any]:
        return evaluate(body, rule, body_key, body_values, promote, prepare)

    def outputs_of(layer: Layer, arguments: list[Any]) -> Sequence[Any]:
        if layer.kind == "control flow":
            return control.run(layer, key, arguments, run, promote)
        scope = (
            jax.named_scope(mark(layer.kind, layer.site, layer.occurrence))
            if layer.site and layer.kind != "input"
            else contextlib.nullcontext()
        )
        with scope:
            outputs = rule(layer, site_key(key, layer), *arguments)
            return [_tag_spread(value) for value in outputs]

    return run_layers(program, values, outputs_of)


def _tag_spread(value: Any) -> Any:
    """Marks all but the first leaf of a distribution, so that a later transform knows the mean."""
    leaves, structure = jax.tree.flatten(value)
    if len(leaves) < 2:
        return value
    tagged = [checkpoint_name(leaf, SPREAD_TAG) for leaf in leaves[1:]]
    return jax.tree.unflatten(structure, [leaves[0], *tagged])


def plain_rule(layer: Layer, key: PRNGKeyArray | None, *values: Any) -> Sequence[Any]:
    """Returns the rule that changes nothing."""
    del key
    return layer.fn(*values) if layer.nodes else values


def at_sites(settings: Mapping[str, Any], rule: Rule) -> Rule:
    """Makes the rule that changes the layers that have a setting, and no others.

    Args:
        settings: A setting by site, from `resolve`.
        rule: `rule(setting, layer, key, *values) -> sequence of outputs`, for a layer with one.
    """

    def at_site(layer: Layer, key: PRNGKeyArray | None, *values: Any) -> Sequence[Any]:
        setting = settings.get(layer.site)
        if setting is None:
            return plain_rule(layer, key, *values)
        return rule(setting, layer, key, *values)

    return at_site
