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
- `CrossedWarning`: statistics are taken over channels that go, as in a layer norm
- `masked`, `pruned`, `Plan.shrink`: what the model becomes
- `gates`, `group_lasso`, `slimming`: what training adds, so that channels can go
- `prune_iteratively`, `save_pruned`: runs and files
- `sparsity`: single weights, which take fewer bytes and no less time
"""

from jaxeff.pruning._budget import Budget, axis_size
from jaxeff.pruning._gates import group_lasso, slimming
from jaxeff.pruning._iterative import Pruned, prune_iteratively
from jaxeff.pruning._plan import Plan, load_pruned, save_pruned
from jaxeff.pruning._prune_plan import Prune, prune_plan
from jaxeff.pruning._pruned import masked, pruned
from jaxeff.pruning.dependencies import Channels, CrossedWarning, Group, Member, PlanError, channels

__all__ = [
    "Budget",
    "Channels",
    "CrossedWarning",
    "Group",
    "Member",
    "Plan",
    "PlanError",
    "Prune",
    "Pruned",
    "axis_size",
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
