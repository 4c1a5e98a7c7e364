"""Pruning: channels that live and die together, derived from a model's program, and single weights.

```python
import jaxeff
from jaxeff.nn import small_classifier
from jaxeff.pruning import Budget, Prune, scores

f, params, (x, y) = small_classifier()
plan = jaxeff.prune_plan(f, params, x, {"*": Prune(0.9)}, score=scores.reconstruction(f, x),
                         budget=Budget(macs=0.5))
g, small = jaxeff.pruned(f, plan), plan.shrink(params)
```

- `channels`: the groups, and why some can't lose any
- `scores`: which channels matter
- `prune_plan`, `Prune`, `Budget`: how many go, by layer or in all
- `masked`, `pruned`, `Plan.shrink`: what the model becomes
- `gates`, `group_lasso`, `slimming`: what training adds, so that channels can go
- `prune_iteratively`, `save_pruned`: runs and files
- `sparsity`: single weights, which take fewer bytes and no less time
"""

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
