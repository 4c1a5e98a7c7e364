"""Bundles: the folder that a deployed model is, how it is built, and how it runs on a board."""

from jaxeff_export.bundle._building import build
from jaxeff_export.bundle._bundle import BoardResult, Bundle, run_on_boards
from jaxeff_export.bundle._deployment import DisagreementWarning, deploy, deploy_artifact
from jaxeff_export.bundle._example import Example, KernelOfLayer, NamedTarget, kernel_calls, lift
from jaxeff_export.bundle._machine_model import (
    ExplainedKernel,
    ExplainedKernels,
    KernelModels,
    LoopModel,
)

__all__ = [
    "BoardResult",
    "Bundle",
    "DisagreementWarning",
    "Example",
    "ExplainedKernel",
    "ExplainedKernels",
    "KernelModels",
    "KernelOfLayer",
    "LoopModel",
    "NamedTarget",
    "build",
    "deploy",
    "deploy_artifact",
    "kernel_calls",
    "lift",
    "run_on_boards",
]
