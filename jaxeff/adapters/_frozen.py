"""`frozen`: an optimizer that leaves some parameters as they are.

```python
import jax
import jaxeff
import optax
from jaxeff.adapters import LoRA, frozen, init_lora
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit

key, (f, params, (x, y)) = jax.random.key(0), small_classifier()
adapted = jaxeff.lora(f, {"fc*": LoRA(rank=4)})
g = lambda p, x: adapted(p["frozen"], p["adapters"], x)
start = {"frozen": params, "adapters": init_lora(key, f, {"fc*": LoRA(rank=4)}, params, x)}
trained = fit(key, cross_entropy(g), start, (x, y), epochs=2, batch_size=64,
              optimizer=frozen(optax.adam(1e-2), "frozen/*")).params
```

Sharp edge: weights that a function closes over instead are constants of everything compiled of it.
XLA computes with constants while it compiles: of a hundred million of them that takes longer than
any training.
"""

from fnmatch import fnmatchcase
from typing import Any

import jax
import optax

from jaxeff.core import string, validate


@validate(pattern=string)
def frozen(
    optimizer: optax.GradientTransformation, pattern: str
) -> optax.GradientTransformationExtraArgs:
    """Makes an optimizer that changes no parameter whose path matches.

    Neither moments are kept of those, nor gradients computed: XLA drops what nothing reads.

    Args:
        optimizer: Any optax optimizer, for the others.
        pattern: A glob of paths, parts joined by slashes: "frozen/*". `jaxeff.bayes.svi` trains
            means and scales, each under a name of their own: "*frozen/*" there.

    Raises:
        ValueError: When it starts: no parameter's path matches, or all do.
    """

    def labels(params: Any) -> Any:
        def label(path: Any, _: Any) -> str:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            return "frozen" if fnmatchcase(name, pattern) else "trained"

        found = jax.tree_util.tree_map_with_path(label, params)
        # A misspelt pattern would train everything, or nothing, without a word.
        if len(set(jax.tree.leaves(found))) != 2:
            paths = jax.tree_util.tree_leaves_with_path(params)
            names = [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in paths]
            raise ValueError(
                f"frozen: the pattern {pattern!r} must match some of the parameters and leave "
                f"others to train; their paths are {', '.join(names[:8])}"
                + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            )
        return found

    return optax.multi_transform({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)
