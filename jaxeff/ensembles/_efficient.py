"""Members at the price of about one network: of its memory, or of its computation.

`batch_ensemble` gives members factors of rank one around a shared network, `packed` narrower
networks that cost together what one did, `mimo` several inputs and outputs of one network.

```python
import jax
import optax

from jaxeff.ensembles import Members, batch_ensemble, member_loss
from jaxeff.nn import small_classifier
from jaxeff.training import fit

key = jax.random.key(0)
f, params, (x, y) = small_classifier()
g, members = batch_ensemble(key, f, params, x, {"*": Members(4)})
result = fit(key, member_loss(g), members, (x, y), optimizer=optax.adam(1e-2), epochs=2,
             batch_size=32)
logits = g(result.params, x)                            # [members, batch, classes]
```

Sharp edge: inference of a `batch_ensemble` costs as many networks as there are members: it is
memory that is saved. Biases are shared.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff import core
from jaxeff.ensembles._ensemble import Ensemble, Members, ensemble
from jaxeff.program import check_settings, resolve, trace
from jaxeff.program.ir import Contraction
from jaxeff.program.reading import leaf_names
from jaxeff.pruning import Prune, prune_plan, pruned
from jaxeff.training import LabelledLoss, Loss, valid_labels

Axes = tuple[tuple[int, ...], tuple[int, ...]]
"""Axes of a kernel: its inputs, its outputs."""


@core.validate(x=core.input_batch)
def batch_ensemble(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    x: Any,
    spec: Mapping[str, Members | None],
) -> tuple[Ensemble, Any]:
    """Gives the kernels of chosen sites members that differ by factors.

    The kernel of a member is the shared one times a number for each of its inputs and one for each
    of its outputs, `W * r s^T` (Wen et al. 2020, "BatchEnsemble", arXiv:2002.06715).

    Args:
        key: Random key of the factors, which start as one or minus one.
        f: `f(params, x)`; a random key may come first.
        params: The parameters of `f`; all stay as they are.
        x: Inputs; shapes are enough.
        spec: Maps patterns of sites to `Members`, whose count is taken, or to None.

    Returns:
        The function and its parameters, `{"shared": params, "factors": ...}`, as `jaxeff.ensemble`
        returns them.

    Raises:
        SpecError: A pattern matches or decides no site, or two are equally specific for one.
        ValueError: Nothing has members, two counts differ, or a kernel isn't a parameter as it is.
    """
    check_settings(spec, Members, "Members(4)")
    axes = _kernels(f, params, x, spec)
    names = leaf_names(params)
    shapes = {n: jnp.shape(leaf) for n, leaf in zip(names, jax.tree.leaves(params), strict=True)}

    def start(key: PRNGKeyArray) -> Any:
        factors = {}
        for name, k in zip(axes, jax.random.split(key, len(axes)), strict=True):
            parts = zip(("inputs", "outputs"), axes[name], jax.random.split(k), strict=True)
            factors[name] = {
                part: jax.random.rademacher(each, _only(shapes[name], factor_axes), jnp.float32)
                for part, factor_axes, each in parts
            }
        return {"shared": params, "factors": factors}

    def h(*args: Any, **kwargs: Any) -> Any:
        position = next(i for i, arg in enumerate(args) if not core.is_key(arg))
        both = args[position]
        leaves, structure = jax.tree.flatten(both["shared"])
        for i, name in enumerate(names):
            if name in both["factors"]:
                pair = both["factors"][name]
                scale = (pair["inputs"] * pair["outputs"]).astype(leaves[i].dtype)
                leaves[i] = leaves[i] * scale
        scaled = jax.tree.unflatten(structure, leaves)
        return f(*args[:position], scaled, *args[position + 1 :], **kwargs)

    counts = {setting.count for setting in spec.values() if setting is not None}
    if len(counts) != 1:
        raise ValueError(f"batch_ensemble: the members are as many everywhere, not {counts}")
    members = Members(counts.pop(), tied=True)
    return ensemble(key, h, start(key), {"factors/*": members}, init=start)  # type: ignore[return-value]


def _only(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size if axis in axes else 1 for axis, size in enumerate(shape))


def _kernels(
    f: Callable[..., Any], params: Any, x: Any, spec: Mapping[str, Members | None]
) -> dict[str, Axes]:
    """Finds the kernels of sites, and which of their axes are inputs and outputs."""
    program = trace(f, params, x)
    settings, kernel_axes = resolve(spec, program), dict[str, Axes]()
    for layer in program.sites:
        if settings.get(layer.site) is None or layer.kind != "linear" or layer.op is None:
            continue
        product = Contraction.of(layer.op)
        kernels = [layer.inputs[i] for i in layer.weights]
        if len(kernels) != 1 or kernels[0] not in program.inputs:
            raise ValueError(
                f"batch_ensemble: the kernel of {layer.site} is no parameter as it is; set None "
                "there"
            )
        side = product.side
        kernel_axes[kernels[0].path] = (product.summed(side), product.free(side))
    if not kernel_axes:
        raise ValueError("batch_ensemble: the spec chooses no layer with a kernel")
    return kernel_axes


@core.validate(x=core.input_batch, count=core.static_integer(), width=core.positive)
def packed(
    key: PRNGKeyArray, f: Callable[..., Any], params: Any, x: Any, count: int, *, width: float = 2.0
) -> tuple[Ensemble, Any]:
    """Makes an ensemble of narrower networks.

    Each of the `count` members has `width / count` of the network's hidden channels, and all are
    computed as one program, a convolution with members as a grouped one: a Packed-Ensemble (Laurent
    et al. 2023, arXiv:2210.09184) without further groups within a member. Between hidden layers it
    costs `width**2 / count` networks. Narrowing is that of `jaxeff.pruned`, so it works for any
    network that can be pruned; the members start anew.

    ```python
    import jax
    import jaxeff
    from jaxeff.ensembles import packed
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    g, members = packed(jax.random.key(0), f, params, x, 4, width=2.0)      # for `member_loss`
    logits = g(members, x)                                  # [members, batch, classes]
    jaxeff.cost(g, members, x[:1]).macs, jaxeff.cost(f, params, x[:1]).macs
    ```

    Sharp edge: a share of channels is rounded up, so narrow layers cost more.

    Args:
        key: Random key; members start from it, drawn as `Members` says.
        f: `f(params, x)`.
        params: The parameters of `f`: shapes, and how members' values are distributed.
        x: Inputs; shapes are enough.
        count: Number of members.
        width: Channels of all members together, in multiples of the network's.

    Returns:
        The function and its parameters, as `jaxeff.ensemble` returns them.

    Raises:
        PlanError: The network can't be pruned.
        ValueError: The count is below one.
    """
    members: dict[str, Members | None] = {"*": Members(count)}
    if width >= count:  # as wide as the network: a deep ensemble
        return ensemble(key, f, params, members)  # type: ignore[return-value]
    plan = prune_plan(f, params, x, {"*:linear": Prune(1 - width / count)})
    return ensemble(key, pruned(f, plan), plan.shrink(params), members)  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class MIMO:
    """A network of several inputs and outputs, as an ensemble.

    Attributes:
        f: `f(params, x)` of the inputs and outputs of all members.
        count: Number of members.
    """

    f: Callable[..., Any]
    count: int

    def __call__(self, params: Any, x: Array) -> Float[Array, "members batch classes"]:
        """Computes all members' predictions of the same inputs."""
        return self.joint(params, jnp.broadcast_to(x[None], (self.count, *jnp.shape(x))))

    def joint(
        self, params: Any, xs: Float[Array, "members batch *inputs"]
    ) -> Float[Array, "members batch classes"]:
        """Computes each member's predictions of its own inputs.

        Raises:
            ValueError: The outputs aren't those of so many members.
        """
        # Members beside each other along the last axis: channels, or features.
        beside = jnp.moveaxis(xs, 0, -2)
        outputs = self.f(params, beside.reshape(*beside.shape[:-2], -1))
        if outputs.shape[-1] % self.count:
            raise ValueError(
                f"mimo: f has {outputs.shape[-1]} outputs, which {self.count} members don't share "
                "evenly: give it as many times the classes as there are members"
            )
        apart = outputs.reshape(*outputs.shape[:-1], self.count, -1)
        return jnp.moveaxis(apart, -2, 0)


@core.validate(count=core.static_integer())
def mimo(f: Callable[..., Any], count: int) -> MIMO:
    """Makes an ensemble of a network with several inputs and outputs.

    The network reads the inputs of all members beside each other, along the last axis, and its
    outputs are those of all members beside each other. In training (`mimo_loss`) the inputs are
    different examples, so that members learn to predict their own; in use they are the same one,
    and one run gives all predictions (Havasi et al. 2021, arXiv:2010.06610).

    ```python
    import jax
    import jaxeff
    from flax import nnx
    from jaxeff.ensembles import mimo
    from jaxeff.nn import MLP

    f, params = jaxeff.functional(MLP((2 * 4, 32, 2 * 3), rngs=nnx.Rngs(0)))   # twice 4 in, 3 out
    logits = mimo(f, 2)(params, jax.numpy.ones((64, 4)))    # [members, batch, classes], by one run
    ```

    Sharp edge: the network has to be wide enough for several members; a small one gets worse.

    Args:
        f: `f(params, x)`; the last axis of `x` and of the result is `count` times that of a member.
        count: Number of members.

    Returns:
        The function `g(params, x) -> [members, batch, classes]`.
    """
    return MIMO(f, count)


@core.validate(g=core.instance_of(MIMO), repetition=core.probability)
def mimo_loss(g: MIMO, *, repetition: float = 0.0) -> Loss:
    """Makes the cross entropy of members that see different examples, summed over members.

    ```python
    import jax
    import jaxeff
    import optax
    from flax import nnx
    from jaxeff.ensembles import mimo, mimo_loss
    from jaxeff.nn import MLP
    from jaxeff.training import fit

    key = jax.random.key(0)
    data = jax.random.normal(key, (64, 4)), jax.random.randint(key, (64,), 0, 3)
    f, params = jaxeff.functional(MLP((2 * 4, 32, 2 * 3), rngs=nnx.Rngs(0)))   # twice 4 in, 3 out
    fit(key, mimo_loss(mimo(f, 2)), params, data, optimizer=optax.adam(1e-2), epochs=2,
        batch_size=32)
    ```

    Args:
        g: Result of `mimo`.
        repetition: Share of examples that all members see alike; more helps where the network is
            narrow.

    Returns:
        The loss; its batches are pairs of inputs and integer labels.
    """

    def loss(key: Any, params: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        del step
        x, labels = batch
        order_key, alike_key = jax.random.split(key)
        examples = len(labels)
        orders = jax.vmap(lambda k: jax.random.permutation(k, examples))(
            jax.random.split(order_key, g.count)
        )
        alike = jax.random.uniform(alike_key, (examples,)) < repetition
        orders = jnp.where(alike[None], jnp.arange(examples)[None], orders)
        logits, targets = g.joint(params, x[orders]), labels[orders]
        each = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        each = each * valid_labels(targets, logits).astype(each.dtype)
        accuracy = jnp.mean(logits.argmax(-1) == targets)
        return each.mean(1).sum(), ({"accuracy": accuracy}, state)

    return LabelledLoss(loss, lambda key, params, state, x: g(params, x)[0])
