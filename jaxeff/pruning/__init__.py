"""Structured pruning: channels that live and die together, derived from a model's program."""

from jaxeff.pruning.budget import Budget
from jaxeff.pruning.channels import Channels, Group, Member, channels
from jaxeff.pruning.iterative import Pruned, prune_iteratively
from jaxeff.pruning.penalties import group_lasso, slimming
from jaxeff.pruning.plan import Plan, PlanError
from jaxeff.pruning.planning import Prune, prune_plan
from jaxeff.pruning.pruned import masked, pruned
from jaxeff.pruning.saved import load_pruned, save_pruned

__all__ = [
    "Budget",
    "Channels",
    "Group",
    "Member",
    "Plan",
    "PlanError",
    "Prune",
    "Pruned",
    "channels",
    "group_lasso",
    "load_pruned",
    "masked",
    "prune_iteratively",
    "prune_plan",
    "pruned",
    "save_pruned",
    "slimming",
]
