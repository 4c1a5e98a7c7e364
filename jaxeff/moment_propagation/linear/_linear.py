"""The delta method: `moments(f, method="linear")`.

The function is replaced by its tangent at the means. For independent random entries w of
variances v,

    E[y] = f(m),   Var[y_k] = sum_w v_w (dy_k / dw)^2,

which is exact to first order in the noise and holds everything that results share, through any
differentiable program: loops, attention, functions that no rule is known for. One pass forward over
the whole batch, and one backward for each result of an example, all of them side by side
(`_backward`).

Sharp edges
- Against Monte Carlo the error is a few per cent (median over results) up to noise of 10 % of the
  spread of each weight array, and grows with noise (`experiments.beyond.moment_variances`).
- A slope of zero is no variance: what is discrete is certain, and so is what the function stops
  the gradient of, and what it rounds without a gradient of its own.
- The mean is the function's result at the means: noise doesn't shift it.
- A result of one example costs a pass backward, about twice what the function costs. Beyond
  `LINEAR_RESULTS` of them other methods are cheaper.
- Examples that the function mixes, as by a batch's statistics, aren't told apart: each result of
  each example is derived through the whole batch.
- A `while_loop` whose number of steps is unknown has no derivative in reverse.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.moment_propagation import _calibrated as calibrated
from jaxeff.moment_propagation import _moment_pass as moment_pass
from jaxeff.moment_propagation import _values
from jaxeff.moment_propagation._moment_pass import RandomProgram
from jaxeff.moment_propagation.linear import _flow as flows
from jaxeff.moment_propagation.linear._backward import (
    Backward,
    SlopesByValue,
    forward,
    owned_variances,
)
from jaxeff.moment_propagation.linear._flow import ExampleFlow
from jaxeff.moment_propagation.linear._outputs import (
    OutputLayer,
    last_layer,
    let_through,
    variance_through,
)
from jaxeff.moment_propagation.linear._slopes import (
    RowSlopes,
    Slopes,
    SpreadSum,
    add_slopes,
    to_shared,
)
from jaxeff.program import CORRELATIONS, Program, closed, once_for_equal, plain_rule
from jaxeff.program.ir import Value

LINEAR_RESULTS = 64
"""Results of an example up to which the linear method is worth its price."""
CHUNK_ENTRIES = 2**25
"""Slopes that are held at once: 128 MiB in float32."""
HIDDEN_ENTRIES = 2**28
"""Slopes of a hidden state that may be held at once, 1 GiB; of more, each result is derived."""
_UNROLLED = 4


def linear_moments(of: RandomProgram, full: bool = False) -> Any:
    """Computes the moments of a function's results to first order.

    If `full`, every floating-point result is a `JointGaussian`, with the covariances of an
    example's entries.

    Raises:
        MomentsError: A primitive has no derivative in reverse, as an endless loop; or, if `full`, a
            result has more than one axis for an example.
    """
    program = let_through(of.program, of.random)
    outputs = _Pass(program, of.values).results(full)
    if full:
        out = jax.tree.unflatten(program.out_tree, outputs)
    else:
        out = moment_pass.gaussian_results(program, outputs)
    out = calibrated.with_result_factors(out, of.factors)
    # Closed, so that no other transform acts on what the variances are made of.
    return jax.tree.map(_closed_result, out, is_leaf=calibrated.is_result)


def results_of_an_example(of: RandomProgram) -> int:
    """Counts the random results of an example, each of which takes a pass backward."""
    flow = _Pass(of.program, of.values).examples_apart()
    random = [v for v in of.program.outputs if flow.is_random(v)]
    return sum(
        v.aval.size // (flow.examples or 1) if flows.is_apart(flow, v) else v.aval.size
        for v in random
    )


def _closed_result(result: Any) -> Any:
    if not calibrated.is_result(result):
        return result
    spread = result.var if _values.is_gaussian(result) else result.cov
    return type(result)(result.mean, closed(spread, CORRELATIONS))


@dataclass(frozen=True)
class _Pass:
    """A function read at its arguments: the program, and one value per input of it."""

    program: Program
    values: Sequence[Any]

    def results(self, full: bool) -> list[Any]:
        """Returns the results, those that are random as `Gaussian`s, or joint ones if `full`."""
        program = self.program
        means = [v.mean if _values.is_gaussian(v) else v for v in self.values]
        apart = self.examples_apart(full)
        rule = once_for_equal(program, plain_rule)
        env = forward(program, means, rule)
        outputs = [flows.value_of(v, env) for v in program.outputs]
        random = [i for i, v in enumerate(program.outputs) if apart.is_random(v) and v.aval.size]
        by_row = [i for i in random if flows.is_apart(apart, program.outputs[i])]
        spreads: dict[int, Array] = {}
        for numbers, flow in ((by_row, apart), ([i for i in random if i not in by_row], None)):
            if not numbers:
                continue
            flow = flow or self._flow([False] * len(self.values))
            # Of size one along axes that they don't depend on.
            inputs = {
                v: x.common if isinstance(x, _values.Pooled) else x.var
                for v, x in zip(program.inputs, self.values, strict=True)
                if v in flow.random
            }
            owned = {v: a for v, a in inputs.items() if v in flow.owned}
            owned = owned_variances(program, env, owned, flow)
            seeded = _Seeded(program, flow, env, inputs, owned, numbers)
            last = None if full else seeded.last_layer()
            if last is not None:
                spreads[numbers[0]] = self._through(last, seeded)
            else:
                spreads.update(seeded.covariances() if full else seeded.variances())
        make = _values.JointGaussian if full else _values.Gaussian
        return [
            make(y, spreads[i]) if i in spreads else self._certain(y, full)
            for i, y in enumerate(outputs)
        ]

    def _through(self, last: OutputLayer, seeded: "_Seeded") -> Array:
        """Computes the variances of the one result through the last hidden state."""
        known = {
            **self.program.constants,
            **dict(zip(self.program.inputs, self.values, strict=True)),
        }
        examples = seeded.flow.examples or 1
        var = variance_through(
            last, lambda n: seeded.of_hidden(last, n), examples, seeded.env, known
        )
        if last.sources:
            operands = last.operands(known, seeded.env[last.hidden])
            diagonal = moment_pass.Propagation({}, "variance", lambda _: None)
            (summed,) = diagonal.layer(last.layer, None, *operands)
            var = var + _values.to_variance(summed).var
        # Rounding may leave a sum of squares below zero where its parts cancel.
        return jnp.maximum(var, 0)

    def _certain(self, y: Any, full: bool) -> Any:
        if full and jnp.issubdtype(jnp.result_type(y), jnp.floating):
            y = jnp.asarray(y)
            return _values.JointGaussian(
                y, jnp.zeros((*y.shape, y.shape[-1] if y.ndim else 1), y.dtype)
            )
        return y

    def examples_apart(self, full: bool = False) -> ExampleFlow:
        """Follows examples to the results: those of the first data whose results are apart."""
        for rows in flows.example_leaves(self.program.inputs):
            flow = self._flow(rows)
            several = full or (flow.examples or 0) > 1
            if several and any(flows.is_apart(flow, v) for v in self.program.outputs):
                return flow
        return self._flow([False] * len(self.values))

    def _flow(self, rows: Sequence[bool]) -> ExampleFlow:
        random = [_values.is_gaussian(x) for x in self.values]
        flow = ExampleFlow.of(self.program, rows, random)
        inputs = zip(self.program.inputs, rows, random, strict=True)
        flows.sole_readers(flow, self.program, [v for v, r, x in inputs if x and not r])
        return flow


@dataclass(frozen=True)
class _Seeded:
    """Results, by their positions `numbers`, whose examples are told apart, or aren't.

    Attributes:
        program: The program.
        flow: What is known of its values.
        env: All its values.
        inputs: Variances of its random inputs.
        owned: Variances of what is owned.
        numbers: The positions of these results.
    """

    program: Program
    flow: ExampleFlow
    env: Mapping[Any, Any]
    inputs: Mapping[Value, Array]
    owned: Mapping[Value, Array]
    numbers: Sequence[int]

    def variances(self) -> dict[int, Array]:
        """Computes the variances of results, by number."""
        ends = np.cumsum([0, *map(self._seeds, self.numbers)])
        # Whole chunks, the last one filled up: the rest of a chunk would be compiled a second time.
        count = int(ends[-1])
        chunk = min(max(CHUNK_ENTRIES // self._entries(), 1), max(count, 1))
        numbers = jnp.arange(-(-count // chunk) * chunk) % max(count, 1)

        def of(entries: Array) -> Array:
            return self._spread(self._seeds_of(entries, ends), len(entries), full=False)

        spread = _in_chunks(of, numbers, chunk)[:count]
        parts = zip(self.numbers, ends[:-1], ends[1:], strict=True)
        return {i: self._shaped(i, spread[start:end]) for i, start, end in parts}

    def last_layer(self) -> OutputLayer | None:
        """Finds a last layer to derive the one result through, if the slopes before it fit."""
        last = last_layer(self.program, list(self.inputs))
        if last is None or self._axis(last.hidden) not in (None, 0):
            return None
        return last if last.units * self._entries() <= HIDDEN_ENTRIES else None

    def of_hidden(self, last: OutputLayer, position: Array) -> tuple[Array, list[Array]]:
        """Computes a position's covariances of hidden units, and slopes by tied arrays."""
        value, units = last.hidden, last.units
        seeds = self._seed(value, position * units + jnp.arange(units))
        reached: SlopesByValue = {value: seeds}
        # One zero for all of them where nothing random reaches the hidden state.
        covariance = self._spread(reached, units, full=True)
        covariance = jnp.broadcast_to(covariance, (units, units, self.flow.examples or 1))
        shapes = [(units, self.flow.examples or 1, *v.aval.shape) for v in last.tied]
        tied = [self._of_each(reached.get(v)) for v in last.tied]
        zeros = (jnp.zeros(shape, value.aval.dtype) for shape in shapes)
        return jnp.moveaxis(covariance, -1, 0), [
            zero if one is None else one for one, zero in zip(tied, zeros, strict=True)
        ]

    def _of_each(self, slopes: Slopes | None) -> Array | None:
        if slopes is None:
            return None
        # Of one example that is everything there is one row.
        if isinstance(slopes, RowSlopes) and slopes.axis is None:
            return slopes.slopes[:, None]
        return to_shared(slopes).slopes

    def covariances(self) -> dict[int, Array]:
        """Computes the covariances of each result's entries, by number."""
        reached = {}
        for number in self.numbers:
            value = self.program.outputs[number]
            axis, size = self._axis(value), self._seeds(number)
            if value.aval.shape != ((size,) if axis is None else (self.flow.examples, size)):
                raise _values.MomentsError(
                    "moments: covariance=True takes results that are vectors, one per example; "
                    f"result {number} has shape {value.aval.shape}. Reshape it to one axis, or "
                    "take variances alone."
                )
            seeds = self._seed(value, jnp.arange(size))
            spread = self._spread({value: seeds}, size, full=True)
            reached[number] = jnp.moveaxis(spread, -1, 0) if axis is not None else spread[..., 0]
        return reached

    def _axis(self, value: Value) -> int | None:
        return None if self.flow.examples is None else self.flow.axis(value)

    def _seeds(self, number: int) -> int:
        """Counts the entries of one example in a result."""
        return self.program.outputs[number].aval.size // (self.flow.examples or 1)

    def _seed(self, value: Value, entries: Array) -> RowSlopes:
        """Returns slopes of a result's entries, by number, by themselves; others have none."""
        axis, shape = self._axis(value), list(value.aval.shape)
        if axis is not None:
            shape[axis] = 1
        one = entries[:, None] == jnp.arange(math.prod(shape))[None]
        seeds = one.astype(value.aval.dtype).reshape(-1, *shape)
        return RowSlopes(jnp.broadcast_to(seeds, (len(entries), *value.aval.shape)), axis)

    def _seeds_of(self, entries: Array, starts: Any) -> SlopesByValue:
        reached: SlopesByValue = {}
        for number, start in zip(self.numbers, starts[:-1], strict=True):
            value = self.program.outputs[number]
            reached[value] = add_slopes(reached.get(value), self._seed(value, entries - start))
        return reached

    def _spread(self, reached: SlopesByValue, seeds: int, full: bool) -> Array:
        """Goes back from seeds to all random inputs."""
        spread = SpreadSum(self.flow.examples or 1, full)
        back = Backward(self.flow, spread, seeds)
        total = back.program(self.program, self.env, self.owned, reached)
        arrays = [(reached[v], var, v.aval.shape) for v, var in self.inputs.items() if v in reached]
        return jnp.asarray(total + spread.of_arrays(arrays))

    def _entries(self) -> int:
        """Returns how many numbers one seed makes: slopes by activations and by shared arrays."""
        shared = sum(v.aval.size for v in self.inputs if v not in self.flow.owned)
        rows = sum(v.aval.size for layer in self.program.layers for v in layer.outputs)
        return rows + shared * (self.flow.examples or 1) + 1

    def _shaped(self, number: int, spread: Array) -> Array:
        """Brings `[entries, examples]` to the shape of a result."""
        value = self.program.outputs[number]
        axis, shape = self._axis(value), value.aval.shape
        if axis is None:
            return spread.reshape(shape)
        rest = shape[:axis] + shape[axis + 1 :]
        return jnp.moveaxis(spread.reshape(*rest, -1), -1, axis)


def _in_chunks(f: Callable[[Array], Array], numbers: Array, chunk: int) -> Array:
    """Maps a function over chunks of numbers, one after the other."""
    chunks = numbers.reshape(-1, chunk)
    if len(chunks) > _UNROLLED:
        return jax.lax.map(f, chunks).reshape(len(numbers), -1)
    # Convolutions in a loop take XLA six times as long on a processor: a few are unrolled.
    return jnp.concatenate([f(one) for one in chunks])
