"""`lora`: a model whose layers have low-rank updates of their weights beside them.

`jaxeff.adapters` has an example. A layer of weight W becomes

```text
y = x W + alpha / rank * (x a) b      a [groups, inputs, rank], b [groups, rank, outputs]
```

with `groups` one but for grouped convolutions. W is read as the function has it, so around
`quantized(f, spec)` it is rounded and the update isn't: QLoRA. The product with W doesn't depend on
the adapters: under `jax.vmap` over several of them it is computed once.

Sharp edges:
    Adapters belong to parameters: all uses of a shared layer have the same ones, those that read
    the weight transposed (tied layers) too; factors are laid out for the first of them.
    A convolution's update is a convolution to `rank` channels, then one of single taps.
    Sites inside a loop over stacked parameters are refused, for their weight is another in every
    pass; a loop that closes over its parameters, and `remat`, are not.
    Moments are taken of the adapted function, `moments(lora(f, spec))`, not the reverse; where the
    layer's input is random, both terms share it: `merge_lora` first is more exact.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from jaxeff import core
from jaxeff.compression.post_training import multiplications, producers, users, weight_entries
from jaxeff.program import (
    Layer,
    Program,
    check_settings,
    interpret_sites,
    read_out_by,
    resolve,
    trace,
)
from jaxeff.program.ir import Contraction, run_nodes


@core.register_setting
class LoRA(core.Setting):
    """A low-rank update of a layer's weight.

    Adapters are parameters like any others. A posterior, or an ensemble, may be of them alone:

    ```python
    import jax
    import jaxeff
    from jaxeff import bayes
    from jaxeff.adapters import LoRA, init_lora
    from jaxeff.ensembles import Members
    from jaxeff.nn import small_classifier

    key, (f, params, (x, y)) = jax.random.key(0), small_classifier()
    spec = {"fc*": LoRA(rank=4)}
    g = jaxeff.lora(f, spec)
    h = lambda adapters, x: g(params, adapters, x)
    adapters = init_lora(key, f, params, x, spec)                    # trained, for a posterior
    posterior = bayes.laplace(key, h, adapters, (x, y), "*", "diag")  # independent factors
    logits = jaxeff.moments(h, method="linear")(bayes.to_gaussians(posterior), x)
    one = {"*/b": None}                                          # the second factors aren't random
    result = bayes.svi(key, h, adapters, (x, y), epochs=2, batch_size=64, prior=one)
    several, members = jaxeff.ensemble(key, h, adapters, {"*": Members(3)},
                                       init=lambda key: init_lora(key, f, params, x, spec))
    ```

    The first is Laplace-LoRA (Yang et al. 2024, arXiv 2308.13111), the second BLoB (Wang et al.
    2024, arXiv 2406.11675); the members of the last share all that comes before the first adapter.

    Sharp edge: `h` closes over the frozen weights, so each compiled program holds them as
    constants. Where they are large, make them parameters that `frozen` leaves unchanged, and name
    the adapters in the calls above: `prior={"frozen/*": None}`, `laplace(..., only="adapters/*")`,
    `{"adapters/*": Members(3)}`.

    Attributes:
        rank: Rank of the update.
        alpha: The update is multiplied by this over the rank.

    References:
        Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, arXiv
        2106.09685.
        Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", NeurIPS 2023,
        arXiv 2305.14314.
    """

    rank: Annotated[int, core.Count(1)] = core.static(8)
    alpha: core.Positive = 16.0

    @property
    def scale(self) -> Any:
        """What the product of both factors is multiplied by."""
        return self.alpha / self.rank


class AdaptedLayer(NamedTuple):
    """A linear layer that has an adapter.

    Attributes:
        setting: The adapter's setting.
        path: The parameter that the weight comes from.
        layer: The layer.
        contraction: The product of the layer.
        turned: Whether the layer reads the weight transposed, as seen from its first use.
    """

    setting: LoRA
    path: str
    layer: Layer
    contraction: Contraction
    turned: bool = False

    def factors(self, adapter: Mapping[str, Any]) -> tuple[Any, Any]:
        """Returns the layer's own `a` and `b`."""
        a, b = adapter["a"], adapter["b"]
        return (b.mT, a.mT) if self.turned else (a, b)


@core.validate()
def lora(f: Callable[..., Any], spec: Mapping[str, LoRA | None]) -> Callable[..., Any]:
    """Adds low-rank updates to the linear layers of a model.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Settings by pattern of sites; the most specific pattern decides, and None leaves a
            layer alone. Layers that a pattern matches without a weight are left alone, too.

    Returns:
        A pure function `g(params, adapters, *args)`, adapters as `init_lora` makes them; behind the
        keys if `f` takes keys first.

    Raises:
        TypeError: The spec isn't a mapping from patterns to `LoRA`.
        ValueError: On the first call: a pattern matches no layer with a weight, a layer can't be
            adapted, or the adapters aren't those of the spec.
    """
    check_settings(spec, LoRA, "an adapter, such as LoRA(8)")
    f = core.read_once(f)

    def g(*args: Any, **kwargs: Any) -> Any:
        first = next((i for i, arg in enumerate(args) if not core.is_key(arg)), len(args))
        if len(args) < first + 2:
            raise TypeError("lora: the adapted function takes (params, adapters, *args)")
        params, adapters, *rest = args[first:]

        def settings_of(program: Program) -> Mapping[str, Any]:
            layers = adapted(spec, program)
            check_adapters(adapters, layers)
            return {site: (each, adapters[each.path]) for site, each in layers.items()}

        arguments = (*args[:first], params, *rest)
        return interpret_sites(f, settings_of, _beside, None, arguments, kwargs, "lora")

    return g


def adapted(spec: Mapping[str, LoRA | None], program: Program) -> dict[str, AdaptedLayer]:
    """Finds the layers that a spec adapts, by site."""
    chosen = resolve(spec, program, lambda layer, _: _weight(layer) is not None, "an adapter")
    sizes = {v.path: v.aval.size for v in program.inputs if v.is_weight}
    layers = {}
    for layer in program.sites:
        weight = _weight(layer)
        if layer.site not in chosen or weight is None:
            continue
        if any(v.spread for v in layer.outputs):
            raise ValueError(
                f"lora can't act on moments(f) at {layer.site!r}: a shift of the mean weight "
                "changes variances behind it. Take moments(lora(f, spec))."
            )
        if transform := read_out_by(layer.nodes):
            raise ValueError(
                f"lora can't act on {layer.site!r}, which {transform} reads out. Take "
                f"{transform}(lora(f, spec), ...), or leave the site out with None."
            )
        if sizes.get(weight.path) != weight.aval.size:
            raise ValueError(
                f"lora can't act on {layer.site!r}, whose weight is a part of {weight.path}, as in "
                "a loop over stacked layers: unroll the loop, or leave the site out with None."
            )
        contraction = Contraction.of(layer.op)
        layers[layer.site] = AdaptedLayer(chosen[layer.site], weight.path, layer, contraction)
    return _as_first_used(program, layers)


def _as_first_used(program: Program, layers: dict[str, AdaptedLayer]) -> dict[str, AdaptedLayer]:
    """Tells which of several uses of a parameter read it as the first does, or transposed.

    Raises:
        ValueError: One reads it in another form.
    """
    makers = producers(program)
    first: dict[str, tuple[str, Any]] = {}
    shared = Counter(each.path for each in layers.values())
    for site, each in layers.items():
        if shared[each.path] == 1:
            continue
        places: Any = weight_entries(program, each.layer, makers)
        if each.path not in first:
            first[each.path] = site, places
            continue
        site_before, before = first[each.path]
        known = places is not None and before is not None
        if known and np.array_equal(places, before):
            continue
        turned = known and not each.contraction.is_convolution
        if not (turned and np.array_equal(places.mT, before)):
            raise ValueError(
                f"lora can't act on {site!r} beside {site_before!r}: both read {each.path}, in "
                "forms that no pair of factors is for. Leave one out with None."
            )
        layers[site] = each._replace(turned=True)
    return layers


def _weight(layer: Layer) -> Any:
    """Returns the operand of a layer's product that comes from a parameter, if there is one."""
    if layer.kind != "linear" or layer.op is None:
        return None
    weight = layer.op.inputs[Contraction.of(layer.op).side]
    return weight if getattr(weight, "path", "") and weight.is_weight else None


def check_adapters(adapters: Any, layers: Mapping[str, AdaptedLayer]) -> None:
    """Checks that adapters are those of the layers that a spec adapts."""
    paths = {each.path for each in layers.values()}
    if not isinstance(adapters, Mapping) or adapters.keys() != paths:
        names = sorted(adapters) if isinstance(adapters, Mapping) else type(adapters).__name__
        raise ValueError(
            f"lora: adapters must be those of {sorted(paths)}, not {names}: make them with "
            "init_lora(key, f, params, batch, spec)"
        )
    for site, each in layers.items():
        groups, inputs, outputs = each.contraction.matrix_shape
        inputs, outputs = (outputs, inputs) if each.turned else (inputs, outputs)
        rank = each.setting.rank
        wanted = (groups, inputs, rank), (groups, rank, outputs)
        shapes = tuple(jnp.shape(adapters[each.path][name]) for name in ("a", "b"))
        if shapes != wanted:
            raise ValueError(
                f"lora: the adapter of {site!r} must have shapes {wanted}, not {shapes}: it was "
                "made for another function or rank"
            )


def _beside(setting: Any, layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
    """Computes a layer with its update: the rule of `lora`, at its sites."""
    del key
    each, adapter = setting
    contraction, product = each.contraction, each.layer.op.eqn

    # Of another transform's layer, what enters it: a rounding of inputs is the weight's affair.
    data = layer.data[0] if layer.mark and len(layer.data) == 1 else None

    def bound(eqn: Any, *operands: Any) -> list[Any]:
        outputs: list[Any] = core.bind(eqn, *operands)
        # Added to the product itself: what stands around it, such as the bias, stays in place.
        if eqn is not product:
            return outputs
        x = operands[1 - contraction.side]
        if data is not None and jnp.shape(values[data]) == x.shape:
            x = values[data]
        a, b = (factor.astype(x.dtype) for factor in each.factors(adapter))
        # Through the narrow middle: never the product of a and b, which is as large as W.
        if contraction.is_convolution:
            update = contraction.single_taps(core.bind(eqn, x, contraction.weight(a))[0], b)
        else:
            update = contraction.restore(contraction.rows(x) @ a @ b)
        update = each.setting.scale * update
        return [outputs[0] + update.astype(outputs[0].dtype)]

    return run_nodes(layer.nodes, layer.inputs, values, layer.outputs, bound)


Adapters = dict[str, dict[str, Array]]
"""By parameter the factors `a` and `b` of its update."""


@core.validate(batch=core.parameter_tree)
def init_lora(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, LoRA | None],
) -> Adapters:
    """Starts adapters at an update of zero: `a` normal of variance one over the inputs, `b` zero.

    Args:
        key: Random key; a parameter's adapter doesn't depend on which others there are.
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: Inputs, `args` as a tuple or the only one of them; shapes are enough.
        spec: Settings by pattern of sites, as for `lora`.

    Returns:
        By the path of each adapted parameter its factors, `{"a": [groups, inputs, rank], "b":
        [groups, rank, outputs]}`.

    Raises:
        ValueError: As for `lora`.
    """
    check_settings(spec, LoRA, "an adapter, such as LoRA(8)")
    adapters: Adapters = {}
    for each in adapted(spec, trace(f, params, *core.as_arguments(batch))).values():
        if each.path in adapters:
            continue
        groups, inputs, outputs = each.contraction.matrix_shape
        dtype, rank = each.layer.outputs[0].aval.dtype, each.setting.rank
        site_key = jax.random.fold_in(key, zlib.crc32(each.path.encode()))
        a = jax.random.normal(site_key, (groups, inputs, rank), dtype) / inputs**0.5
        adapters[each.path] = {"a": a, "b": jnp.zeros((groups, rank, outputs), dtype)}
    return adapters


@core.validate(batch=core.parameter_tree)
def merge_lora(
    f: Callable[..., Any],
    params: Any,
    adapters: Mapping[str, Mapping[str, Array]],
    batch: Any,
    spec: Mapping[str, LoRA | None],
) -> Any:
    """Adds updates to the parameters: `f` of the result is `lora(f, spec)` with the adapters.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        adapters: Their adapters.
        batch: Inputs, `args` as a tuple or the only one of them; shapes are enough.
        spec: Settings by pattern of sites, as for `lora`.

    Returns:
        Parameters of the structure of `params`.

    Raises:
        ValueError: A weight is no parameter as it is (it is rounded, or a product of two), or
            another layer without an adapter reads the parameter, too.
    """
    check_settings(spec, LoRA, "an adapter, such as LoRA(8)")
    program = trace(f, params, *core.as_arguments(batch))
    layers = adapted(spec, program)
    check_adapters(adapters, layers)
    by_site, refused = multiplications(program)
    leaves, structure = jax.tree.flatten(params)
    merged: dict[str, Any] = {}
    for site, each in layers.items():
        if site not in by_site:
            # Steps of a loop aren't among the layers that a program multiplies by itself.
            why = refused.get(site, "it multiplies inside of a loop, as recurrent layers do")
            raise ValueError(
                f"merge_lora: {site!r} can't be merged: {why}. Keep its adapter beside it "
                "(lora(f, spec) computes both), or leave the site out of the spec with None."
            )
        scale = each.setting.scale
        if not np.array_equal(merged.setdefault(each.path, scale), scale):
            raise ValueError(
                f"merge_lora: {site!r} and another use of {each.path} multiply its update by "
                f"{scale} and {merged[each.path]}: give both one setting, or keep the adapters "
                "apart"
            )
    for path in merged:
        site = next(site for site, each in layers.items() if each.path == path)
        _check_readers(program, path, layers)
        origin, factors = by_site[site].origin, adapters[path]
        update = merged[path] * (factors["a"] @ factors["b"])
        weight_update = by_site[site].contraction.weight(update)
        leaf = jnp.asarray(leaves[origin.leaf])
        moved = origin.to_leaf(weight_update.astype(origin.target.aval.dtype), leaf)
        leaves[origin.leaf] = leaf + moved.astype(leaf.dtype)
    return jax.tree.unflatten(structure, leaves)


def _check_readers(program: Program, path: str, layers: Mapping[str, AdaptedLayer]) -> None:
    others = [site for site in users(program, path) if site not in layers]
    if others:
        raise ValueError(
            f"merge_lora: {', '.join(others)} reads {path}, too, and has no adapter: merging would "
            "change it; give it one, or keep the adapters apart"
        )


@core.validate(pattern=core.string)
def frozen(
    optimizer: optax.GradientTransformation, pattern: str
) -> optax.GradientTransformationExtraArgs:
    """Makes an optimizer that changes no parameter whose path matches.

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
    start = {"frozen": params, "adapters": init_lora(key, f, params, x, {"fc*": LoRA(rank=4)})}
    trained = fit(key, cross_entropy(g), start, (x, y), epochs=2, batch_size=64,
                  optimizer=frozen(optax.adam(1e-2), "frozen/*")).params
    ```

    Sharp edge: weights that a function closes over instead are constants of everything compiled of
    it. XLA computes with constants while it compiles: of a hundred million of them that takes
    longer than any training.

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

        by_parameter = jax.tree_util.tree_map_with_path(label, params)
        # A misspelt pattern would train everything, or nothing, without a word.
        if len(set(jax.tree.leaves(by_parameter))) != 2:
            paths = jax.tree_util.tree_leaves_with_path(params)
            names = [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in paths]
            raise ValueError(
                f"frozen: the pattern {pattern!r} must match some of the parameters and leave "
                f"others to train; their paths are {', '.join(names[:8])}"
                + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            )
        return by_parameter

    return optax.multi_transform({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)
