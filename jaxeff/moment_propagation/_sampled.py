"""`sampled(f)`: the local reparametrization trick, draws of results in place of weights.

```python
import jax
import jaxeff
from jaxeff.moment_propagation import sampled
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
logits = sampled(f)(jax.random.key(0), posterior, x)
```

Where a layer reads random parameters, the mean and variance of its result are those of moment
propagation, exact for a dot product or convolution, and the result is drawn from them (Kingma et
al., section 2.3): m + sqrt(v) times noise of its own for every entry and every example. So the
gradients of a batch's loss have a smaller variance than with one draw of the weights for all of it,
and weights need no density: a Gaussian stands for whatever has that mean and variance, such as
discrete weights (Shayer et al., section 3), by the central limit theorem.

Sharp edges:
    Results that share a weight are drawn independently: the entries of a convolution's result, the
    uses of a layer that is used twice, the steps of a loop.
    Results of few products aren't normal; draw weights instead (`Gaussian.sample`) where that
    matters.

References:
    Kingma et al., "Variational Dropout and the Local Reparameterization Trick", arXiv:1506.02557.
    Shayer et al., "Learning Discrete Weights Using the Local Reparameterization Trick",
    arXiv:1710.07739.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from jaxeff.core import check_function, check_key, check_params, validate
from jaxeff.moment_propagation._moment_pass import Propagation
from jaxeff.moment_propagation._reading import read
from jaxeff.moment_propagation.values import is_random, to_variance
from jaxeff.program import Layer, evaluate


@validate()
def sampled(f: Callable[..., Any]) -> Callable[..., Any]:
    """Draws the results of layers whose parameters are random.

    Args:
        f: A pure function `f(params, *args)`.

    Returns:
        A function `g(key, params, *args)`, any leaf of whose arguments may be a `Gaussian`. It
        returns what `f` returns, drawn; it is differentiable with respect to means and variances.

    Raises:
        TypeError: `f` is a Flax model; when called: the key is none, or an argument holds what is
            no array.
        MomentsError: When called: a random parameter meets a computation without a rule.
    """
    check_function("sampled: f", f)

    @functools.wraps(f)
    def g(key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Any:
        check_key("sampled: key", key)
        for position, argument in enumerate(args):
            check_params(f"sampled: argument {position}", argument)
        program, values, factors = read(f, args, kwargs)
        propagation = Propagation({}, "variance", lambda _: None)

        def rule(layer: Layer, at: Any, *inputs: Any) -> Sequence[Any]:
            outputs = propagation.layer(factors, layer, None, *inputs)
            if not layer.site:  # prepares a parameter, which is drawn where it is used
                return outputs
            return [_drawn(at, i, value) for i, value in enumerate(outputs)]

        # A site's draw is certain for the next layer, so no variance passes through two sites.
        outputs = evaluate(program, rule, key, values)
        # Results that no site has made (a random argument returned as it is) are drawn here.
        drawn = [_drawn(key, i, value) for i, value in enumerate(outputs)]
        return jax.tree.unflatten(program.out_tree, drawn)

    return g


def _drawn(key: Any, i: int, value: Any) -> Any:
    return to_variance(value).sample(jax.random.fold_in(key, i)) if is_random(value) else value
