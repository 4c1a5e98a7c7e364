"""Layers of a model that depend on training mode, and a warning of them.

A dropout layer draws from a stream of random numbers that the model holds, and a batch norm in
training normalizes by its batch and writes its statistics. A function that closes over the model's
state freezes the first and forgets the second.
"""

import warnings
from collections.abc import Iterable
from typing import Any

from flax import nnx


class TrainingModeWarning(UserWarning):
    """A function was made of a model in training mode, which it cannot follow."""


def random_layers(model: nnx.Module) -> list[str]:
    """Lists the paths of an NNX model's layers that drop units, as they are set now."""
    return [
        path
        for path, layer in _layers(model)
        # `is False`: where the attribute is None or missing, the call decides.
        if getattr(layer, "deterministic", None) is False
        and (_number(layer, "rate") > 0 or _number(layer, "dropout_rate") > 0)
    ]


def batch_layers(model: nnx.Module) -> list[str]:
    """Lists the paths of an NNX model's layers that normalize by their batch."""
    return [
        path
        for path, layer in _layers(model)
        if getattr(layer, "use_running_average", None) is False
    ]


def warn_of_training_mode(name: str, dropping: Iterable[str], batching: Iterable[str]) -> None:
    """Warns of what a function without state and key freezes.

    Args:
        name: The model's.
        dropping: Layers whose mask is the same in every call.
        batching: Layers that depend on the batch, and whose statistics are discarded.
    """
    frozen = [
        (dropping, "drops the same units in every call", "keyed=True gives f(key, params, ...)"),
        (
            batching,
            "normalizes by the batch it gets and forgets its statistics",
            "mutable=True gives f(params, state, ...)",
        ),
    ]
    found = [(_listed(paths), what, way) for paths, what, way in frozen if paths]
    if not found:
        return
    listed = "; ".join(f"{paths} {what}" for paths, what, _ in found)
    ways = "; ".join(way for *_, way in found)
    warnings.warn(
        f"{name} is in training mode: {listed}. For inference call model.eval() first (Linen: pass "
        f"train=False or the like); for training, functional(model, ...) with {ways}.",
        TrainingModeWarning,
        stacklevel=3,
    )


def _layers(model: nnx.Module) -> list[tuple[str, Any]]:
    return [
        ("/".join(map(str, path)) or type(m).__name__, m) for path, m in nnx.iter_modules(model)
    ]


def _number(layer: Any, name: str) -> float:
    value = getattr(layer, name, None)
    return float(value) if isinstance(value, int | float) else 0.0


def _listed(paths: Iterable[str]) -> str:
    paths = sorted(set(paths))
    return ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
