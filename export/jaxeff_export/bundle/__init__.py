"""Bundles: the folder that a deployed model is, how it is built, and how it runs on a board."""

from jaxeff_export.bundle._building import build as build
from jaxeff_export.bundle._bundle import BoardResult as BoardResult
from jaxeff_export.bundle._bundle import Bundle as Bundle
from jaxeff_export.bundle._bundle import run_on_boards as run_on_boards
from jaxeff_export.bundle._deployment import BatchWarning as BatchWarning
from jaxeff_export.bundle._deployment import DisagreementWarning as DisagreementWarning
from jaxeff_export.bundle._deployment import deploy as deploy
from jaxeff_export.bundle._deployment import deploy_artifact as deploy_artifact
from jaxeff_export.bundle._example import Example as Example
from jaxeff_export.bundle._example import KernelOfLayer as KernelOfLayer
from jaxeff_export.bundle._example import NamedTarget as NamedTarget
from jaxeff_export.bundle._example import kernel_calls as kernel_calls
from jaxeff_export.bundle._example import lift as lift
from jaxeff_export.bundle._machine_model import ExplainedKernel as ExplainedKernel
from jaxeff_export.bundle._machine_model import ExplainedKernels as ExplainedKernels
from jaxeff_export.bundle._machine_model import KernelModels as KernelModels
from jaxeff_export.bundle._machine_model import LoopModel as LoopModel
