"""Training members together, every one as if alone, and members that disagree without repulsion.

Repulsion in function space needs inputs from elsewhere; `bootstrap_weights` and `with_prior` are
two ways to disagreement that don't.

```python
import jax
import optax

import jaxeff
from jaxeff.ensembles import Members, member_loss
from jaxeff.nn import small_classifier
from jaxeff.training import fit

key = jax.random.key(0)
f, params, data = small_classifier()
g, networks = jaxeff.ensemble(key, f, params, {"*": Members(3)})
result = fit(key, member_loss(g), networks, data, optimizer=optax.adam(1e-2), epochs=1,
             batch_size=64)
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff import core
from jaxeff.ensembles._ensemble import Ensemble
from jaxeff.training import normalized_call, valid_labels

if TYPE_CHECKING:
    from jaxeff.bayes.posteriors import Likelihood


@dataclass(frozen=True, eq=False)
class MemberLoss:
    """A loss of an ensemble's outputs; `jaxeff.training.fit` calls it.

    `member_loss` is the sum over members of each one's mean loss over the batch, so a parameter of
    one member has the gradient that it has in a network of its own, and what is shared has the sum
    of all.

    Sharp edges:
        The sum makes the step of what is shared grow with the number of members, but for optimizers
        like Adam that don't see the scale of a gradient.
        All members see the same batches in the same order; a member of a deep ensemble trained in
        another program sees others. Weights in the data (`bootstrap_weights`) tell them apart.
        Weight decay acts on the random networks of `with_prior` too; mask it there
        (`optax.masked`).

    Attributes:
        g: The ensemble.
        likelihood: Meaning of one member's outputs.
        keyed: Whether `g` takes a random key first.
        mutable: Whether `g` takes a state and returns a new one.
        members: Number of members.
    """

    g: Callable[..., Any]
    likelihood: Likelihood
    keyed: bool
    mutable: bool
    members: int

    def __call__(self, key: Any, params: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        """Computes the loss, as `jaxeff.training.make_epoch` calls it."""
        del step
        outputs, state = self.outputs(key, params, state, batch[0])
        return self.of_outputs(outputs, batch), (self.metrics(outputs, batch), state)

    def outputs(self, key: Any, params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        """Computes members' predictions, `[members, batch, ...]`, and the new state."""
        g = self.g.apart if isinstance(self.g, Ensemble) else self.g
        return normalized_call(g, keyed=self.keyed, mutable=self.mutable)(key, params, state, x)

    def logits(self, key: Any, params: Any, state: Any, x: Any) -> Any:
        """Computes members' predictions alone: what `fit` asks data that don't fit by."""
        return self.outputs(key, params, state, x)[0]

    def of_outputs(self, outputs: Any, batch: Any) -> Float[Array, ""]:
        """Computes the loss of given outputs: members' means over the batch, summed."""
        _, targets, *weights = batch
        # Summed over members: each has the gradient that it would have alone, whatever
        # their number.
        each = jax.vmap(lambda out: self._each(out, targets))(outputs)
        if weights:
            # Data lead with examples, outputs with members.
            each = each * weights[0].T.astype(each.dtype)
        return each.mean(1).sum()

    def metrics(self, outputs: Any, batch: Any) -> dict[str, Any]:
        """Computes the accuracy of a classifier's mean prediction over members."""
        if self.likelihood != "categorical":
            return {}
        return {"accuracy": jnp.mean(jax.nn.softmax(outputs).mean(0).argmax(-1) == batch[1])}

    def check(self, key: Any, params: Any, state: Any, data: Any, batch_size: int) -> None:
        """Checks that data fit the loss; runs nothing.

        Raises:
            TypeError: Data are no tuple of inputs and targets, or labels of another dtype or shape.
            ValueError: A label is out of range, or weights are not `[examples, members]`.
        """
        if not isinstance(data, tuple | list) or len(data) not in (2, 3):
            raise TypeError(
                "the data of this loss must be (inputs, targets) or (inputs, targets, weights), "
                f"not a {type(data).__name__}"
                + (f" of {len(data)}" if isinstance(data, tuple | list) else "")
            )
        examples = jnp.shape(jax.tree.leaves(data[1])[0])[0]
        if len(data) == 3 and jnp.shape(data[2]) != (examples, self.members):
            raise ValueError(
                f"the weights of examples must have one entry per example and member, "
                f"{[examples, self.members]}, not {list(jnp.shape(data[2]))}: "
                "bootstrap_weights(key, examples, members) draws some"
            )
        if self.likelihood == "categorical":
            first = jax.tree.map(lambda leaf: leaf[:batch_size], data[0])
            outputs = jax.eval_shape(self.outputs, key, params, state, first)[0]
            core.check_labels(
                "the data's labels", data[1], outputs.shape[-1], positions=outputs.shape[2:-1]
            )

    def _each(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        if self.likelihood == "categorical":
            # A label out of range would read another class's logit: multiplied by NaN, it shows.
            each = optax.softmax_cross_entropy_with_integer_labels(outputs, targets)
            each *= valid_labels(targets, outputs).astype(each.dtype)
            return each.reshape(len(each), -1).mean(1)  # over the tokens of an example, if any
        each = -_resolved(self.likelihood)(outputs).log_prob(targets)
        return each.reshape(len(each), -1).sum(1)


@core.validate(g=core.pure_function, members=core.static_integer())
def member_loss(
    g: Ensemble | Callable[..., Any],
    likelihood: Likelihood = "categorical",
    *,
    members: int | None = None,
    keyed: bool = False,
    mutable: bool = False,
) -> MemberLoss:
    """Makes the loss of an ensemble.

    Args:
        g: Result of `ensemble`, or a transform of it: `g(params, x) -> [members, batch, ...]`.
        likelihood: Meaning of a member's outputs: "categorical" (logits and integer labels),
            "gaussian" (mean and log-variance), or a function to a NumPyro distribution.
        members: Number of members; asked for only where `g` is a transform of an ensemble.
        keyed: Whether `g` takes a random key first, as `noisy(g, spec)` does.
        mutable: Whether `g` takes a state after its parameters and returns a new one.

    Returns:
        The loss, for batches `(x, targets)` or `(x, targets, weights)` with a weight for every
        example and member, `[batch, members]`.

    Raises:
        TypeError: `g` says not how many members it has, and neither does `members`.
        ValueError: The likelihood is unknown.
    """
    _resolved(likelihood)
    return MemberLoss(g, likelihood, keyed, mutable, count_members("member_loss", g, members))


def count_members(where: str, g: Any, members: int | None) -> int:
    """Counts the members of an ensemble, or of a transform of it."""
    count = getattr(g, "count", None) if members is None else members
    if not isinstance(count, int):
        raise TypeError(
            f"{where}: g must be what jaxeff.ensemble returned; of a transform of it, such as "
            "noisy(g, spec), say how many members there are: members=10"
        )
    return count


@core.validate(g=core.instance_of(Ensemble))
def optimize_members(
    g: Ensemble, optimizer: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Makes an optimizer for members behind a trained network, which stays as it is.

    Members behind a trained network leave it as it is with `optimize_members`:

    ```python
    import jax
    import jaxeff
    import numpy as np
    import optax
    from jaxeff.ensembles import Members, member_loss, optimize_members
    from jaxeff.nn import small_classifier
    from jaxeff.training import fit

    key, (f, params, data) = jax.random.key(0), small_classifier()
    g, heads = jaxeff.ensemble(key, f, params, {"fc2": Members(3)})
    optimizer = optimize_members(g, optax.adam(1e-2))
    result = fit(key, member_loss(g), heads, data, optimizer=optimizer, epochs=1, batch_size=64)
    assert np.array_equal(result.params["conv1"]["kernel"], params["conv1"]["kernel"])
    ```

    Args:
        g: Result of `ensemble`.
        optimizer: For the parameters that have members; what is shared has no state.
    """

    def labels(params: Any) -> Any:
        structure, member_labels = jax.tree.structure(params), _labels(g, params)
        return jax.tree.unflatten(structure, member_labels)

    # What is shared has no optimizer state, which with Adam is twice its size.
    return optax.multi_transform({"own": optimizer, "shared": optax.set_to_zero()}, labels)


def _labels(g: Ensemble, params: Any) -> Sequence[str]:
    return ["shared" if axis is None else "own" for axis in g.leaf_axes(params)]


def _resolved(likelihood: Likelihood) -> Callable[[Any], Any]:
    from jaxeff.bayes.posteriors import resolve_likelihood  # NumPyro comes with it

    return resolve_likelihood(likelihood)


@core.validate(examples=core.static_integer(), members=core.static_integer())
def bootstrap_weights(
    key: PRNGKeyArray, examples: int, members: int
) -> Float[Array, "examples members"]:
    """Draws how often each member sees each example: Poisson numbers, scaled to mean one.

    Every member sees the examples in other proportions (the bagging of Breiman 1996, as in
    bootstrapped networks, Osband et al. 2016), so that heads train independently.

    ```python
    import jax, jaxeff
    from jaxeff.ensembles import Members, bootstrap_weights, member_loss
    from jaxeff.nn import small_classifier

    key, (f, params, (x, y)) = jax.random.key(0), small_classifier()
    g, heads = jaxeff.ensemble(key, f, params, {"fc2": Members(5)})
    data = (x, y, bootstrap_weights(key, len(x), 5))
    member_loss(g)(key, heads, None, data, 0)
    ```

    Args:
        key: Random key.
        examples: Number of examples.
        members: Number of members.

    Returns:
        Weights, for the third part of the data of `member_loss`.
    """
    # The Poisson bootstrap: binomial(n, 1/n) counts tend to Poisson(1), and no example
    # needs the others.
    counts = jax.random.poisson(key, 1.0, (examples, members)).astype(jnp.float32)
    return counts / jnp.maximum(counts.mean(0, keepdims=True), 1 / examples)


@core.validate()
def with_prior(f: Callable[..., Any], scale: Any = 1.0) -> Callable[..., Any]:
    """Adds a random network that stays as it is to a trained one.

    Every member is the sum of a trained network and of a random one that is never trained (Osband
    et al. 2018, arXiv:1806.03335). Training cancels the random one where there are data, and
    nowhere else.

    ```python
    import jax
    import jaxeff
    from jaxeff.ensembles import Members, with_prior
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    h = with_prior(f, scale=1.0)
    g, heads = jaxeff.ensemble(jax.random.key(0), h, {"trained": params, "prior": params},
                               {"trained/fc2": Members(5), "prior/*": Members(5)})
    ```

    Args:
        f: `f(params, *args) -> outputs`, an array; a random key may come first.
        scale: Factor of the random network's outputs.

    Returns:
        `h({"trained": params, "prior": params}, *args)`, to be given members by `ensemble`.

    Raises:
        TypeError: `f` is no function, or the scale no number.
    """
    core.check_number("with_prior: scale", scale, 0)

    def h(*args: Any, **kwargs: Any) -> Any:
        position = next(i for i, arg in enumerate(args) if not core.is_key(arg))
        both = args[position]
        if not isinstance(both, dict) or both.keys() != {"trained", "prior"}:
            raise TypeError(
                'with_prior: the parameters must be {"trained": ..., "prior": ...}, each those of '
                "the network"
            )
        # The random network must not be trained: neither its parameters nor through its outputs.
        prior = jax.lax.stop_gradient(both["prior"])
        ours, random = (
            f(*args[:position], params, *args[position + 1 :], **kwargs)
            for params in (both["trained"], prior)
        )
        return ours + jnp.asarray(scale, random.dtype) * jax.lax.stop_gradient(random)

    return h
