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
- `NothingPrunedWarning`: a layer that a spec prunes keeps its channels, for others make them too
- `CrossedWarning`: statistics are taken over channels that go, as in a layer norm
- `masked`, `pruned`, `Plan.shrink`: what the model becomes
- `gates`, `group_lasso`, `slimming`: what training adds, so that channels can go
- `prune_iteratively`, `save_pruned`: runs and files
- `sparsity`: single weights, which take fewer bytes and no less time
"""

from jaxeff.pruning._budget import Budget as Budget
from jaxeff.pruning._budget import axis_size as axis_size
from jaxeff.pruning._gates import group_lasso as group_lasso
from jaxeff.pruning._gates import slimming as slimming
from jaxeff.pruning._iterative import Pruned as Pruned
from jaxeff.pruning._iterative import prune_iteratively as prune_iteratively
from jaxeff.pruning._plan import Plan as Plan
from jaxeff.pruning._plan import load_pruned as load_pruned
from jaxeff.pruning._plan import save_pruned as save_pruned
from jaxeff.pruning._prune_plan import NothingPrunedWarning as NothingPrunedWarning
from jaxeff.pruning._prune_plan import Prune as Prune
from jaxeff.pruning._prune_plan import prune_plan as prune_plan
from jaxeff.pruning._pruned import masked as masked
from jaxeff.pruning._pruned import pruned as pruned
from jaxeff.pruning.dependencies import Channels as Channels
from jaxeff.pruning.dependencies import CrossedWarning as CrossedWarning
from jaxeff.pruning.dependencies import Group as Group
from jaxeff.pruning.dependencies import Member as Member
from jaxeff.pruning.dependencies import PlanError as PlanError
from jaxeff.pruning.dependencies import channels as channels
