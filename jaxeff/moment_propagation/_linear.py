"""The delta method: `moments(f, method="linear")`.

The function is replaced by its tangent at the means. For independent entries w of variances v,

    E[y] = f(m),   Var[y_k] = sum_w v_w (dy_k / dw)^2,

which is exact to first order in the noise and holds everything that results share, through any
differentiable program: loops, attention, functions that no rule is known for. What the sum is taken
of, an example and a chunk of its results at a time, is `_covariance`'s; this module's pass gives
the function's own slopes in the place of expected ones. Where a last dense layer makes more results
than it reads units, the units are derived instead (`slopes`).

Sharp edges
- Against Monte Carlo the error is a few per cent (median over results) up to noise of 10 % of the
  spread of each weight array, and grows with noise (`experiments.moment_variances`):
  `correlations=True` has slopes that noise averages, and `calibrate_moments` measures what is left.
- A slope of zero is no variance: what is discrete is certain, and so is what the function stops
  the gradient of, and what it rounds without a gradient of its own.
- The mean is the function's result at the means: noise doesn't shift it.
- A pass backward per result of an example takes twice the function's arithmetic: a ResNet-8 with
  ten results took 23 times as long as the function, LeNet-5 15, a U-Net with 392 results 904.
  Batches too large for `CHUNK_ENTRIES` go through a loop in groups, in which XLA's convolutions are
  six times slower on a processor.
- Examples that a `while` or a branch carries together aren't told apart, so each result is derived
  by the whole batch: vmap over examples there,
  `jax.vmap(moments(f, method="linear"), in_axes=(None, 0))`.
- A `while_loop` whose number of steps is unknown has no derivative in reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from jaxtyping import Array

from jaxeff.moment_propagation._covariance import Pass
from jaxeff.moment_propagation._moment_pass import Propagation, gaussian_results
from jaxeff.moment_propagation.values import is_gaussian
from jaxeff.program import Layer, Program, evaluate, plain_rule

METHODS = ("layers", "linear")


@dataclass(frozen=True)
class Linearization:
    """A pass that evaluates a program at the means, so that its slopes are the function's own.

    Attributes:
        propagation: The moments that give the variance of a linear layer's own kernel.
        expected_slopes: Whether derivatives of its results are expected slopes.
    """

    propagation: Propagation
    expected_slopes: ClassVar[bool] = False

    def prepare(self, program: Program, values: Sequence[Any]) -> Program:
        """Returns the program as it is: nothing is integrated together."""
        return program

    def layer(
        self, factors: Mapping[str, Any], layer: Layer, key: Any, *values: Any
    ) -> Sequence[Any]:
        """Evaluates a layer."""
        return plain_rule(layer, key, *values)

    def own_variance(self, layer: Layer, *values: Any) -> Array:
        """Computes the variance of a linear layer's one result, which is exact."""
        return self.propagation.own_variance(layer, *values)

    def evaluated(self, program: Program, rule: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Evaluates a program at the means."""
        means = [v.mean if is_gaussian(v) else v for v in values]
        return gaussian_results(program, evaluate(program, rule, None, means))


def check_method(name: str, method: str) -> None:
    """Checks the name of a method."""
    if method not in METHODS:
        raise ValueError(f"{name}: method {method!r} is unknown; choose one of {METHODS}.")


def first_order_pass(propagation: Propagation, method: str) -> Pass:
    """Returns the pass that first-order variances are derived through."""
    # Expected slopes are derivatives of means alone: variances are held while they are taken.
    slopes = replace(propagation, differentiable=False)
    return Linearization(slopes) if method == "linear" else slopes
