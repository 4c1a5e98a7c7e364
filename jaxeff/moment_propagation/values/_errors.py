"""What moments refuse and warn of, and the discrete values that cause an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import Node

_WAY_OUT = (
    "Give this layer deterministic inputs, write it with functions that have rules, pass your own "
    "as moments(f, rules={primitive: rule}), or take method='linear', which needs no rules."
)

_COMPLEX = "has a complex result, as a Fourier transform has, and moments are those of real numbers"


class MomentsError(NotImplementedError):
    """A random value met a computation that moment propagation has no rule for."""


class MomentsWarning(UserWarning):
    """Variances that `moments` returns may be far off: the message names the site and the way out.

    `warnings.filterwarnings("error", category=jaxeff.MomentsWarning)` makes it an error.
    """


class DependenceError(MomentsError):
    """Dependent values met where no exact rule is known; independence may be assumed instead."""


def no_rule(
    node: Node,
    site: str,
    reason: str = "has no moment rule",
    error: type[MomentsError] = MomentsError,
) -> MomentsError:
    """Returns an error that names the primitive, the site, the source line and the way out."""
    where = f"at site {site!r}" if site else "in a layer without a site"
    return error(
        f"moments: primitive '{node.primitive.name}' {where} ({_compat.source_line(node.eqn)}) "
        f"{reason}. {_WAY_OUT}"
    )


def check_real(node: Node, site: str) -> None:
    """Refuses complex results of what is random.

    Raises:
        MomentsError: A result of the equation is complex.
    """
    # The two parts of a complex number have a covariance as well, which no rule passes on. Its mean
    # alone would be taken for a discrete function's result.
    if any(jnp.issubdtype(v.aval.dtype, jnp.complexfloating) for v in node.outputs):
        raise no_rule(node, site, _COMPLEX)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class AtMean:
    """A discrete value (a comparison, an argmax) of random inputs, taken at their means.

    It may leave the function as a result; anything that computes with it further would treat a
    random decision as certain, which is an error.

    Attributes:
        value: The integer or boolean array.
    """

    value: Array

    @property
    def dtype(self) -> NoReturn:
        """Reading it as an array, as control flow does, is the error."""
        raise MomentsError(
            "moments: control flow or indexing is decided by a random value. Decide it on "
            "deterministic values, write both branches and mix them with a deterministic mask, or "
            "draw samples with jaxeff.bayes.predict."
        )

    shape = dtype


def at_mean(value: Any) -> Any:
    """Unwraps an `AtMean`; returns other values as they are."""
    return value.value if isinstance(value, AtMean) else value
