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
"""

import contextlib
import operator
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import PRNGKeyArray

from jaxeff.core import ClosedJaxpr, Literal
from jaxeff.core import jax_internals as _compat
from jaxeff.program import _control_flow as control
from jaxeff.program.ir import SPREAD_TAG, Layer, Node, Program, form_of, inlined
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading import argument_leaves, mark, trace

Rule = Callable[..., Sequence[Any]]
Promote = Callable[[Any, Any], Any]
Prepare = Callable[[Program, Sequence[Any]], Program]


def site_key(key: PRNGKeyArray | None, layer: Layer) -> PRNGKeyArray | None:
    """Returns the key of one site, derived from the transform's key.

    It is `fold_in(fold_in(key, crc32(base name)), occurrence)`, so one site's noise doesn't depend
    on which others there are; a scan's body gets a key per iteration.

    ```python
    import jax

    from jaxeff.nn import small_classifier
    from jaxeff.program import site_key, trace

    f, params, (x, _) = small_classifier()
    program = trace(f, params, x)
    fc1, fc2 = (layer for layer in program.sites if layer.site in ("fc1", "fc2"))
    key = jax.random.key(0)
    assert site_key(key, fc1) != site_key(key, fc2)         # what a rule gets as its key
    assert site_key(None, fc1) is None
    ```
    """
    if key is None or not layer.site:
        return None
    (name,), (use,) = site_numbers([layer])
    return jax.random.fold_in(jax.random.fold_in(key, name), use)


def site_numbers(layers: Sequence[Layer]) -> tuple[list[int], list[int]]:
    """Returns what is folded into a key for each site: first its name's number, then its use's.

    ```python
    import jax

    from jaxeff.nn import small_classifier
    from jaxeff.program import site_key, site_numbers, trace

    f, params, (x, y) = small_classifier(2)
    layers = [layer for layer in trace(f, params, x).layers if layer.site]
    (name, *_), (use, *_) = site_numbers(layers)
    folded = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), name), use)
    assert folded == site_key(jax.random.key(0), layers[0])
    ```
    """
    names = [zlib.crc32(layer.base.encode()) for layer in layers]
    return names, [layer.occurrence for layer in layers]


def run_layers(
    program: Program, values: Sequence[Any], outputs_of: Callable[[Layer, list[Any]], Sequence[Any]]
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

    Each layer runs under a name scope that records its site, so a transform of the result sees the
    same sites.

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
            if layer.site
            else contextlib.nullcontext()
        )
        # A key that nothing draws with is two equations of the program all the same.
        is_plain = isinstance(rule, _AtSites) and not rule.acts_on(layer)
        with scope:
            outputs = rule(layer, None if is_plain else site_key(key, layer), *arguments)
        if layer.kind == "input":
            if _same_leaves(outputs, arguments):
                scope = contextlib.nullcontext()  # an argument that stays is nobody's result
            else:
                with scope:
                    outputs = _led_through(outputs, arguments)
        with scope:
            return [_tag_spread(value) for value in outputs]

    return run_layers(program, values, outputs_of)


def _same_leaves(outputs: Any, arguments: Any) -> bool:
    after, before = jax.tree.leaves(outputs), jax.tree.leaves(arguments)
    return len(after) == len(before) and all(map(operator.is_, after, before))


def _led_through(outputs: Any, arguments: Any) -> Any:
    """Tags what a rule left of an input, such as its mean, as a result beside the others."""
    before = set(map(id, jax.tree.leaves(arguments)))
    return jax.tree.map(lambda x: checkpoint_name(x, INPUT_TAG) if id(x) in before else x, outputs)


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


@dataclass(frozen=True)
class _AtSites:
    """A rule of the layers that have a setting."""

    settings: Mapping[str, Any]
    rule: Rule

    def acts_on(self, layer: Layer) -> bool:
        return self.settings.get(layer.site) is not None

    def __call__(self, layer: Layer, key: PRNGKeyArray | None, *values: Any) -> Sequence[Any]:
        if not self.acts_on(layer):
            return plain_rule(layer, key, *values)
        return self.rule(self.settings[layer.site], layer, key, *values)


def at_sites(settings: Mapping[str, Any], rule: Rule) -> Rule:
    """Makes the rule that changes the layers that have a setting, and no others.

    Args:
        settings: A setting by site, from `resolve`.
        rule: `rule(setting, layer, key, *values) -> sequence of outputs`, for a layer with one.
    """
    return _AtSites(settings, rule)


INPUT_TAG = "jaxeff.input"
CLOSED_TAG = "jaxeff.closed:"
READ_OUT_TAG = "jaxeff.read_out:"
CHOSEN_TAG = "jaxeff.chosen:"

INTEGER = "integer"
CORRELATIONS = "correlations"

# What a program is, why nothing acts on it, and what to do instead.
_REASONS = {
    INTEGER: (
        "integer(f, spec)",
        "whose layers hand integer codes to each other",
        "Take {transform} of f itself, or of quantized(f, spec), which computes the same in "
        "floating point",
    ),
    CORRELATIONS: (
        "moments(f) by the linear method",
        "whose variances are products of slopes that it would change one by one",
        "Take moments of the {transform} function (noise: moments(f, noise=spec)), or "
        "moments(f, method='diagonal')",
    ),
}


class ClosedError(ValueError):
    """A transform was put around a function whose layers it can't act on."""


def closed(values: Any, kind: str) -> Any:
    """Tags results as those of a closed function; integers and booleans stay as they are.

    Some transforms compute more than the layers of their function. `integer` passes codes from
    layer to layer; first-order variances are derived in reverse. Another transform would change
    such a program without an error and return wrong numbers. So these transforms *close* their
    results with a tag, and a transform that reads a program refuses closed ones that it can't act
    on, by name (`check_open`).

    Sharp edge: a closed result that isn't used (only the means of first-order moments are) closes
    nothing.

    ```python
    import jax.numpy as jnp
    from jaxeff.program import INTEGER, closed

    assert closed(jnp.float32(2.0), INTEGER) == 2.0         # a tag alone: the number stays
    ```
    """
    return jax.tree.map(lambda x: _tagged(x, CLOSED_TAG + kind), values)


def chosen(values: Any, method: str) -> Any:
    """Tags results as those of a method that a transform has chosen at its arguments.

    ```python
    import jax
    import jax.numpy as jnp
    from jaxeff.program import chosen, methods_chosen

    program = jax.make_jaxpr(lambda x: chosen(2 * x, "linear"))(jnp.ones(3))
    assert methods_chosen(program) == {"linear"}
    ```
    """
    return jax.tree.map(lambda x: _tagged(x, CHOSEN_TAG + method), values)


def methods_chosen(closed: ClosedJaxpr) -> set[str]:
    """Finds the methods that were chosen in a jaxpr, in its calls too.

    ```python
    import jax
    import jax.numpy as jnp
    from jaxeff.program import methods_chosen

    assert not methods_chosen(jax.make_jaxpr(jnp.sin)(jnp.ones(3)))
    ```
    """
    names = {eqn.params["name"] for eqn in inlined(closed) if eqn.primitive is prim.NAME}
    return {n.removeprefix(CHOSEN_TAG) for n in names if n.startswith(CHOSEN_TAG)}


def read_out(value: Any, transform: str) -> Any:
    """Tags a layer's result as read out of codes or light by a transform.

    It is only marked, not closed: a physical read-out misleads moments alone.

    ```python
    import jax.numpy as jnp
    from jaxeff.program import read_out, read_out_by, trace


    def lit(params, x):                                     # a layer read by a detector
        return read_out(x @ params, "photonic")


    (layer,) = (layer for layer in trace(lit, jnp.ones((3, 2)), jnp.ones((1, 3))).layers
                if layer.kind == "linear")
    assert read_out_by(layer.nodes) == "photonic"
    ```
    """
    return _tagged(value, READ_OUT_TAG + transform)


def check_open(program: Program, transform: str, allowed: Iterable[str] = ()) -> None:
    """Checks that a transform can act on the layers of a program.

    ```python
    from jaxeff.nn import small_classifier
    from jaxeff.program import INTEGER, check_open, closed, trace

    f, params, (x, _) = small_classifier(4)


    def coded(params, x):                                   # as if its layers passed codes
        return closed(f(params, x), INTEGER)


    check_open(trace(f, params, x), "noisy")
    check_open(trace(coded, params, x), "cost", allowed=(INTEGER,))      # reads codes, too
    try:
        check_open(trace(coded, params, x), "noisy")
    except ValueError as error:
        assert str(error).startswith("noisy can't act on integer(f, spec)")
    ```

    Args:
        program: The program.
        transform: Name of the transform.
        allowed: Kinds of closed functions that it acts on rightly.

    Raises:
        ClosedError: It can't, for the function was made by one that closes it.
    """
    for layer in program.walk():
        kind = _tag_of(layer.nodes, CLOSED_TAG)
        if kind and kind not in allowed:
            what, why, instead = _REASONS[kind]
            raise ClosedError(
                f"{transform} can't act on {what}, {why}. {instead.format(transform=transform)}."
            )


def read_out_by(nodes: Iterable[Node]) -> str:
    """Returns the transform that reads a layer out physically, or an empty string.

    ```python
    from jaxeff.nn import small_classifier
    from jaxeff.program import read_out_by, trace

    f, params, (x, _) = small_classifier(4)
    assert not any(read_out_by(layer.nodes) for layer in trace(f, params, x).layers)
    ```
    """
    return _tag_of(nodes, READ_OUT_TAG)


def _tagged(x: Any, tag: str) -> Any:
    floating = jnp.issubdtype(jnp.result_type(x), jnp.floating)
    return checkpoint_name(x, tag) if floating else x


def _tag_of(nodes: Iterable[Node], prefix: str) -> str:
    for node in nodes:
        if node.primitive is prim.NAME and node.params["name"].startswith(prefix):
            tag: str = node.params["name"].removeprefix(prefix)
            return tag
    return ""


def interpret(
    f: Callable[..., Any],
    make_rule: Callable[[Program], Rule | None],
    key: PRNGKeyArray | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    transform: str = "This transform",
) -> Any:
    """Reads `f` at its arguments and evaluates it under the rule made for its program.

    The rule is called for every layer; this one looks at all of them:

    ```python
    from jaxeff.nn import small_classifier
    from jaxeff.program import interpret, plain_rule

    f, params, (x, _) = small_classifier()
    sizes = {}


    def observing(program):
        def rule(layer, key, *values):
            outputs = plain_rule(layer, key, *values)
            sizes[layer.site] = max(float(abs(y).max()) for y in outputs)
            return outputs

        return rule


    logits = interpret(f, observing, None, (params, x), {})
    assert sizes["fc2"] == abs(logits).max()
    ```

    Args:
        f: A pure function `f(params, *args)`.
        make_rule: Gives the rule for a program, or None if there is nothing to change: then `f`
            itself is called, so that its result is the same bit for bit.
        key: The transform's PRNG key, if it has one.
        args: Positional arguments of `f`.
        kwargs: Keyword arguments of `f`.
        transform: Name of the transform in error messages.

    Returns:
        A result of the structure that `f` returns.

    Raises:
        ClosedError: The layers of `f` are none that a transform can act on
            (`jaxeff.program.closed`).
    """
    program = trace(f, *args, **kwargs)
    try:
        rule = make_rule(program)
    except ValueError:
        check_open(program, transform)  # why it can't act on the layers it finds
        raise
    if rule is None:
        return f(*args, **kwargs)
    check_open(program, transform)
    outputs = evaluate(program, rule, key, argument_leaves(args, kwargs))
    return jax.tree.unflatten(program.out_tree, outputs)


def interpret_sites(
    f: Callable[..., Any],
    settings_of: Callable[[Program], Mapping[str, Any]],
    rule: Rule,
    key: PRNGKeyArray | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    transform: str,
) -> Any:
    """Evaluates `f` with a rule for the layers that have a setting; without any it is `f` itself.

    ```python
    from jaxeff.nn import small_classifier
    from jaxeff.program import interpret_sites, plain_rule, resolve

    f, params, (x, _) = small_classifier()


    def scaled(factor, layer, key, *values):
        return [factor * y for y in plain_rule(layer, key, *values)]


    def factors(program):
        return resolve({"fc*": 0.5}, program)


    logits = interpret_sites(f, factors, scaled, None, (params, x), {}, "scaled")
    ```

    Args:
        f: A pure function `f(params, *args)`.
        settings_of: Gives the settings of a program by site.
        rule: `rule(setting, layer, key, *values)`, as for `at_sites`.
        key: The transform's PRNG key, if it has one.
        args: Positional arguments of `f`.
        kwargs: Keyword arguments of `f`.
        transform: Name of the transform in error messages.

    Returns:
        A result of the structure that `f` returns.

    Raises:
        ClosedError: As for `interpret`.
    """

    def make_rule(program: Program) -> Rule | None:
        settings = settings_of(program)
        return at_sites(settings, rule) if settings else None

    return interpret(f, make_rule, key, args, kwargs, transform)


def once_for_equal(program: Program, rule: Rule) -> Rule:
    """Makes a rule that is traced once for layers that are equal but for their names.

    Each of them calls one function in the program that is being traced, as `jax.jit` within it.

    ```python
    import jax
    import jax.numpy as jnp

    from jaxeff.program import evaluate, once_for_equal, plain_rule, trace

    def f(w, x):
        for _ in range(3):
            x = jnp.sin(x @ w)
        return x

    w, x = jnp.ones((3, 3)), jnp.ones((2, 3))
    program = trace(f, w, x)

    def again(w, x):
        return evaluate(program, once_for_equal(program, plain_rule), None, [w, x])

    first, *calls = jax.make_jaxpr(again)(w, x).eqns     # the first reads no parameters before
    sine, product, *_ = called = [call.params["jaxpr"] for call in calls]
    assert called == [sine, product, sine, product, sine]
    ```

    Args:
        program: What the rule is for; other layers are evaluated as they are.
        rule: It neither depends on a layer's name nor draws, and keeps nothing of its values.
    """
    if not _compat.is_staged():
        return rule
    numbers: dict[Any, int] = {}
    forms: dict[Layer, int] = {}
    for layer in program.layers:
        form = form_of(layer) if layer.nodes and not layer.programs else None
        if form is not None:
            forms[layer] = numbers.setdefault(form, len(numbers))
    count = Counter(forms.values())
    traced: dict[int, Callable[..., Any]] = {}

    def shared(layer: Layer, key: PRNGKeyArray | None, *values: Any) -> Sequence[Any]:
        number = forms.get(layer)
        # What is known now a rule may look at, and a derivative of a call isn't the same equations.
        known = not all(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))
        apart = known or key is not None or not _compat.is_staged()
        if apart or number is None or count[number] < 2:
            return rule(layer, key, *values)

        def equal_layer(*values: Any) -> Sequence[Any]:
            return rule(layer, None, *values)

        if number not in traced:
            traced[number] = jax.jit(equal_layer)
        outputs: Sequence[Any] = traced[number](*values)
        return outputs

    return shared


class SharedPrograms:
    """Runs functions of arrays compiled, the same ones once.

    `programs(f, *args)` is `jax.jit(f)(*args)`. Keep one for a loop over layers, and drop it after.

    Layers of one shape share compiled functions. Each layer is a function of its own to `jit`,
    which would compile every block of a decoder anew. What is lowered for two blocks is the same
    text, as long as weights, statistics and numbers of grids are arguments: so the text is what
    compiled functions are kept by. Tracing and lowering a layer takes milliseconds where compiling
    it takes tenths of a second.
    """

    def __init__(self) -> None:
        self._compiled: dict[Any, Any] = {}
        # The function of the last call, the form of its arguments, its program and its results'.
        self._last: tuple[Any, Any, Any, Any] | None = None

    def __call__(self, f: Callable[..., Any], *args: Any) -> Any:
        """Computes `f(*args)`; what `f` closes over becomes part of the program."""
        leaves, structure = jax.tree.flatten(args)
        form = structure, [jax.typeof(leaf) for leaf in leaves]
        # A loop over batches or over candidates calls one function: it is lowered once.
        if self._last is None or self._last[0] is not f or self._last[1] != form:
            self._last = f, form, *self._program(f, args)
        *_, program, results = self._last
        return jax.tree.unflatten(results, jax.tree.leaves(program(*args)))

    def _program(self, f: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any]:
        """Returns a function's compiled program, and the structure of its results."""

        # One name for all: that of a function is part of the text.
        def shared(*args: Any) -> Any:
            return f(*args)

        lowered = jax.jit(shared).lower(*args)
        # Settings that differ in name alone lower to the same text, but are arguments of two forms.
        key = lowered.as_text(), lowered.in_tree
        if key not in self._compiled:
            self._compiled[key] = lowered.compile()
        # The structure of results is that of this function, though its program is another's.
        return self._compiled[key], lowered.out_tree
