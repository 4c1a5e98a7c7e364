"""Modules and exported programs of PyTorch as functions of JAX; imported for them alone."""

from jaxeff.core.pytorch._modules import read_torch as read_torch
from jaxeff.core.pytorch._programs import read_program as read_program
