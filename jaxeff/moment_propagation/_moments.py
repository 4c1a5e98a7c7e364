"""`moments(f)`: the mean and variance of a function's results, in one pass.

```python
import jax

import jaxeff
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
logits = jaxeff.moments(f)(posterior, x)            # a Gaussian: logits.mean, logits.var
```

Any leaf of the arguments may be a `Gaussian`: parameters, inputs, both, some of them. Layers whose
inputs are all deterministic run as they are; the others follow the rules of this package, layer by
layer, and every result is taken as Gaussian with independent entries again (moment matching).

Sharp edges
- Diagonal covariance is the approximation: what entries share (noise at the input, a residual
  stream, parameters that are used twice) is forgotten. `assumptions` lists where, and by how much;
  `moments_check` says whether it matters; `calibrate_moments`, `correlations=True` and
  `method="linear"` make up for it. `experiments.moment_variances` holds them against Monte Carlo.
- What a kernel shares over positions is followed to their mean, at some three times the diagonal's
  price: the variances of a trained network of depthwise convolutions go from a median of .27
  of the sampled ones to .96 (.89 to 1.00). Where positions are flattened instead it isn't: LeNet-5
  has .83 (.58 to .97). `moments(f, shared=False)` is the diagonal pass.
- Attention with random weights in a residual stream has variances several times too small, and a
  warning says so: a trained vision transformer's have a median of .15 of the sampled ones.
- Discrete results (an argmax, a comparison) are those of the means; computing on with one is an
  error, and so is any primitive without a rule that meets a random value.
- Quantization that `jaxeff.quantized` put there acts on the mean and keeps the variance.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax

from jaxeff.core import check_function, check_params, instance_of, string_mapping, validate
from jaxeff.moment_propagation._covariance import correlated
from jaxeff.moment_propagation._linear import check_method, first_order_pass
from jaxeff.moment_propagation._moment_pass import Propagation
from jaxeff.moment_propagation._noise import with_noise
from jaxeff.moment_propagation.dependence import Assumption, Assumptions
from jaxeff.moment_propagation.rules import Rule
from jaxeff.moment_propagation.values import MomentsError, is_gaussian
from jaxeff.noise.models import check_noise

_FORMS = ("variance", "raw")


@validate(rules=instance_of(Mapping), noise=string_mapping, f=None)
def moments(
    f: Callable[..., Any],
    *,
    method: str = "layers",
    rules: Mapping[Any, Rule] | None = None,
    form: str = "variance",
    correlations: bool | Literal["full"] = False,
    strict: bool = False,
    noise: Mapping[str, Any] | None = None,
    shared: bool = True,
) -> Callable[..., Any]:
    """Turns a function of arrays into one of random arrays.

    Args:
        f: A pure function `f(params, *args)`.
        method: "layers" propagates moments from layer to layer, by rules. "linear" is the delta
            method: the mean is `f`'s result at the means, and the variance the sum over random
            entries of their variance times the squared derivative of the result. It takes any
            differentiable function, needs no rules, is exact to first order with everything that
            results share, and costs a pass backward per result of an example. It is for noise up
            to some 10 % of a weight array's spread; at more, take `correlations=True`.
        rules: Rules for primitives that have none, or in place of the built-in ones: from the
            primitive to `rule(node, *values)`, which gets arrays and `Gaussian`s and returns a
            list with one of either per result. `node.params` holds the primitive's parameters.
        form: Moments that layers pass on: "variance" (the default, safe in float32) or "raw",
            E[x^2] between an activation and the next linear layer, as the source's operators do.
        correlations: Take into account everything that results share (see `correlated`), at the
            cost of one pass backward per result of an example. "full" returns what the entries
            of an example share as well: a `JointGaussian` for each floating-point leaf. The
            linear method always takes into account what results share, and "full" returns it.
        strict: Refuse to assume independence: a function with a place that `assumptions` would
            list is an error.
        noise: A spec of noise models, as `jaxeff.noisy` takes it, whose means and variances are
            propagated too: `Dropout`, `Additive`, `Multiplicative`, `Mixed`, or any model that is
            a `jaxeff.noise.MomentNoise`. Every draw is a random value of its own, so what shares
            one (`per="channel"`) is dependent, which `correlations=True` takes into account.
        shared: Follow the noise of a convolution's kernel, which all positions share, or of a dense
            layer's, which tokens or time steps share, to a mean, sum or maximum over all of them,
            where there is one. It costs some three times the diagonal pass there, to run and to
            compile, and nothing elsewhere. False is the diagonal pass. The factors of a calibrated
            posterior hold it already, unless they were measured beside this (`shared=True` there).

    Returns:
        A function of the same arguments, any leaf of which may be a `Gaussian`. It returns what
        `f` returns with a `Gaussian` for each floating-point leaf (variance zero where no random
        value reached it, and then the mean is `f`'s result bit for bit) and arrays for the
        others.

    Raises:
        ValueError: `method`, `form` or `correlations` is unknown, or the linear method is given
            rules or a form; when called: a `Gaussian` leaf holds NaN, a
            negative variance, or a variance that doesn't fit its mean; noise has no moments, or
            acts inside a loop.
        TypeError: `f` is a Flax model; when called: an argument is a sampler's or guide's
            posterior, a result, a model, or holds what is no array.
        MomentsError: When called: a random value meets a computation without a rule, or, if
            `strict`, dependent values meet where independence would be assumed.

    Warns:
        MomentsWarning: When called: the pass takes something as independent that makes variances
            far too large or too small, as experience has it; the message says what, where and what
            to do.
    """
    check_function("moments: f", f)
    if noise is not None:
        check_noise(noise)
    if form not in _FORMS:
        raise ValueError(f"moments: form {form!r} is unknown; choose one of {_FORMS}.")
    check_method("moments", method)
    if method == "linear" and (rules is not None or form != "variance"):
        raise ValueError("moments: method='linear' takes no rules and no form; leave them out.")
    if correlations not in (False, True, "full"):
        raise ValueError(f"moments: correlations is False, True or 'full', not {correlations!r}.")

    @functools.wraps(f)
    def propagated(*args: Any, **kwargs: Any) -> Any:
        # A sampler's result or a model in the place of parameters is named before anything is
        # traced.
        for position, argument in enumerate(args):
            check_params(f"moments: argument {position}", argument)
        found: list[Assumption] = []
        propagation = Propagation(rules or {}, form, found.append, shared=shared)
        given = (f, args) if noise is None else with_noise(f, noise, args, kwargs)
        result = _propagated(propagation, method, correlations, *given, kwargs)
        if strict and found:
            raise MomentsError(
                "moments: strict=True, and independence would be assumed:\n"
                f"{Assumptions.merged(found)}\nLeave `strict` out to accept that."
            )
        return result

    return propagated


def _propagated(
    propagation: Propagation,
    method: str,
    correlations: bool | Literal["full"],
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    random = any(is_gaussian(v) for v in jax.tree.leaves((args, kwargs), is_leaf=is_gaussian))
    if random and (correlations or method == "linear"):
        return correlated(
            first_order_pass(propagation, method), f, args, kwargs, correlations == "full"
        )
    return propagation.run(f, args, kwargs)


__all__ = ["MomentsError", "moments"]
