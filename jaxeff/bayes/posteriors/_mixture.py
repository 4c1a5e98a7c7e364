"""`MixturePosterior`: several posteriors of one network, each with the same weight.

What an ensemble of variational posteriors is: modes far apart, each with a width of its own. Plain
parameters may stand for a posterior without width, so that a deep ensemble is one, too.

```python
import jax

import jaxeff
from jaxeff.bayes import MixturePosterior, predict
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
around = lambda p: jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), p)
other = jax.tree.map(lambda w: -w, params)
posterior = MixturePosterior((around(params), around(other)))
logits = predict(jax.random.key(0), f, posterior, x, samples=10)    # five of each member
```

`jaxeff.ensembles.mixture_moments` has its predictions without samples.

Sharp edge: there is no `to_gaussians`. The mean of two networks' weights is no network that anybody
trained, and their variance says how far apart two modes are: averaging is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxeff.bayes.posteriors._likelihood import Likelihood, carried_likelihood
from jaxeff.bayes.posteriors._posterior import Posterior, draw
from jaxeff.moment_propagation import is_gaussian


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class MixturePosterior:
    """A mixture of posteriors over the parameters of one function.

    Attributes:
        members: Posteriors of one kind: pytrees with `Gaussian` leaves or plain parameters, or any
            `Posterior`, such as a guide's.

    Raises:
        ValueError: There are none, or two differ in structure.
    """

    members: tuple[Any, ...]

    def __post_init__(self) -> None:
        """Checks that members are of one kind."""
        if not isinstance(self.members, tuple):  # JAX rebuilds pytrees out of placeholders
            return
        if not self.members:
            raise ValueError("MixturePosterior: there are no members; give one posterior or more")
        structures: list[Any] = [jax.tree.structure(member) for member in self.members]
        first, *others = structures
        for i, other in enumerate(others, 1):
            if other != first:
                raise ValueError(
                    f"MixturePosterior: member {i} has another structure than member 0: {other} "
                    f"and {first}; give posteriors of one kind, of one network"
                )

    def __len__(self) -> int:
        return len(self.members)

    @property
    def likelihood(self) -> Likelihood | None:
        """The likelihood of the outputs, if a member has one."""
        return carried_likelihood(*self.members)

    def gaussians(self) -> Any:
        """Stacks every member's Gaussians into one pytree, with a first axis of members."""
        each = [
            member.to_gaussians() if isinstance(member, Posterior) else member
            for member in self.members
        ]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)

    def draws(self, key: PRNGKeyArray, n: int) -> tuple[Any, Callable[[Any], Any]]:
        """Prepares ``n`` draws, in turn from each member.

        Returns:
            As `jaxeff.bayes.Posterior.draws`.
        """
        # Stratified: equal shares of draws vary less than members chosen at random.
        entries = jnp.arange(n) % len(self), jax.random.split(key, n)
        drawn = [lambda k, member=member: _drawn(k, member) for member in self.members]
        # Members are of one structure, so one compiled function draws from any of them.
        return entries, lambda entry: jax.lax.switch(entry[0], drawn, entry[1])

    def to_gaussians(self, *, diagonal: bool = False) -> NoReturn:
        """Refuses to average members' weights.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"a mixture of {len(self)} members has no mean weights: the average of networks is "
            "none of them. Use jaxeff.ensembles.mixture_moments(f, posterior, x) or "
            "jaxeff.bayes.predict, or take one of posterior.members"
        )


def _drawn(key: PRNGKeyArray, member: Any) -> Any:
    leaves = jax.tree.leaves(member, is_leaf=is_gaussian)
    if isinstance(member, Posterior) or any(is_gaussian(leaf) for leaf in leaves):
        return draw(key, member)
    # Plain parameters are a posterior without width.
    return jax.tree.map(jnp.asarray, member)
