"""The moments of a layer's input in the form its contraction reads, computed once for all uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import te, tirx

from jaxeff_export.operators._layers import DETERMINISTIC, RAW, VARIANCE, Form, Moments

Element = Callable[[Callable[..., tirx.Expr], Sequence[tirx.Expr]], tirx.Expr]


def input_tensors(
    form: Form, x: Moments, shape: Sequence[int] | None = None, element: Element | None = None
) -> list[te.Tensor]:
    """Lists the tensors a contraction reads of its input, in ``moments_of_product``'s order.

    Args:
        form: the layer's.
        x: the input.
        shape: the shape that is read, if it is another (a padded one).
        element: function that reads an element of that shape, given a function of an index of
          ``x``.

    Returns:
        The mean, and the factor of the weights' variance: x^2 of a deterministic input, E[x^2]
        otherwise. In the variance form with random weights also Var[x]. With fixed weights the
        mean and the given spread.
    """
    mean, spread = x.mean, x.spread

    def stage(name: str, value: Callable[..., tirx.Expr], plain: te.Tensor | None) -> te.Tensor:
        if element is None:
            return plain if plain is not None else te.compute(mean.shape, value, name=name)
        return te.compute(shape, lambda *at: element(value, at), name=name)

    tensors = [stage("mean", lambda *at: mean(*at), mean)]
    if form.input == DETERMINISTIC:
        return [*tensors, stage("square", lambda *at: mean(*at) * mean(*at), None)]
    assert spread is not None
    as_given = stage("spread", lambda *at: spread(*at), spread)
    if form.input == VARIANCE and form.weight == VARIANCE:
        # Once per element of the input; in the product it would be computed for every feature.
        second = stage("second", lambda *at: mean(*at) * mean(*at) + spread(*at), None)
        return [*tensors, second, as_given]
    assert form.input in (RAW, VARIANCE)
    return [*tensors, as_given]
