"""Modules and exported programs of PyTorch as functions of JAX; imported for them alone."""

from __future__ import annotations

import os

import torch

from jaxeff.core._from_jax import LibraryModel, Method
from jaxeff.core.pytorch._modules import read_module


def read_torch(
    model: torch.nn.Module | torch.export.ExportedProgram | str | os.PathLike[str],
    method: Method,
    keyed: bool,
    mutable: bool,
) -> LibraryModel:
    """Reads a module, an exported program, or the file of one."""
    if isinstance(model, torch.nn.Module):
        return read_module(model, method, keyed, mutable)
    # PyTorch's exporter takes eight seconds to import, which modules do without.
    from jaxeff.core.pytorch._programs import read_program

    return read_program(model, method, keyed, mutable)
