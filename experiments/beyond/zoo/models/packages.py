"""Models of packages of the registry (the extra `zoo`), built small; none of them is a dependency.

Each is written by others and read as it is: modules of Equinox (equimo), of Flax NNX (tunix) and of
Linen (gemma, flaxdiff).
"""

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import jaxeff

Built = tuple[Callable[..., Any], Any, tuple[Any, ...], Any, str]
"""A function, its parameters, an example of its data, what the model returns, its last layer."""

_WORDS = 32
_KEY = jax.random.key(0)


def _of_equinox(model: Any, last: str, size: int) -> Built:
    """Takes an Equinox module of one image, for a batch of them."""
    equinox = importlib.import_module("equinox")
    # Whole numbers and keys among a module's arrays are none that can be learnt.
    params, rest = equinox.partition(model, equinox.is_inexact_array)

    def each(whole: Any, images: jax.Array) -> Any:
        return jax.vmap(lambda x: whole(x, key=_KEY, inference=True))(images)

    images = jax.random.normal(_KEY, (2, 3, size, size))
    f = lambda params, x: each(equinox.combine(params, rest), x)  # noqa: E731
    return f, params, (images,), each(model, images), last


def _of_linen(
    module: Any, last: str, *args: Any, part: Callable[[Any], Any] = lambda y: y
) -> Built:
    """Takes a Linen module, and a part of what it returns."""
    variables = _begun(module.init(_KEY, *args))
    f, params = jaxeff.functional(module, variables)
    alone = part(module.apply(variables, *args))
    return lambda params, *args: part(f(params, *args)), params, args, alone, last


def _begun(variables: Any) -> Any:
    """Fills matrices that start at zero, as those of layers that begin with no effect.

    A network whose last one is zero returns only zeros, to which no error is relative.
    """

    def filled(w: jax.Array) -> jax.Array:
        is_zero = w.ndim >= 2 and not jnp.any(w)
        # Small, as after the first updates of a training.
        return 0.1 * jax.random.normal(jax.random.key(w.size), w.shape, w.dtype) if is_zero else w

    return jax.tree.map(filled, variables)


def _tokens(count: int = 6) -> jax.Array:
    return jax.random.randint(_KEY, (2, count), 1, _WORDS)


def _vision(name: str, last: str = "head", size: int = 16, **settings: Any) -> Built:
    """Builds a model of equimo."""
    make = getattr(importlib.import_module("equimo.models"), name)
    settings = {"in_channels": 3, "num_classes": 10, "key": _KEY, **settings}
    return _of_equinox(make(**settings), last, size)


def _vit() -> Built:
    return _vision(
        "VisionTransformer", img_size=16, dim=16, patch_size=4, num_heads=2, depths=[2],
        reg_tokens=2, init_values=0.5,
    )  # fmt: skip


def _rotary_vit() -> Built:
    return _vision(
        "VisionTransformer", img_size=16, dim=16, patch_size=4, num_heads=2, depths=[2],
        reg_tokens=0, use_global_pos_embed=False, use_local_pos_embed=True, ffn_layer="swiglu",
        global_pool="token",
    )  # fmt: skip


def _convnext() -> Built:
    return _vision(
        "ConvNeXt", depths=[1, 1, 1, 1], dims=[8, 8, 8, 8], layer_scale_init_value=0.5, size=32
    )


def _mobilenet() -> Built:
    layers = [(8, 8, 3, 2, True, "relu"), (8, 24, 3, 1, False, "hard_swish")]
    return _vision("MobileNetv3", "classifier", layers_config=layers, last_channels=16)


def _mlla() -> Built:
    return _vision("Mlla", img_size=16, dim=8, depths=[1, 1], num_heads=[2, 2], patch_size=4)


def _state_space() -> Built:
    return _vision(
        "Vssd", img_size=16, dim=8, d_state=8, depths=[1, 1], num_heads=[2, 2],
        attentions_layers=("mamba2mixer", "attention"),
    )  # fmt: skip


_SIZES = {"num_layers": 2, "embed_dim": 16, "hidden_dim": 24, "num_heads": 4, "head_dim": 4}


def _text_model(name: str, kind: str, last: str, **settings: Any) -> Built:
    """Builds a decoder of tunix."""
    module = importlib.import_module(f"tunix.models.{name}.model")
    model = getattr(module, kind)(module.ModelConfig(**_SIZES, **settings), rngs=nnx.Rngs(0))
    tokens = _tokens()
    mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))[None]

    # As a user calls it without a cache: positions and a causal mask of any batch.
    def called(model: Any, tokens: jax.Array) -> Any:
        at = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        return model(tokens, at, None, jnp.broadcast_to(mask, (len(tokens), *mask.shape[1:])))[0]

    f, params = jaxeff.functional(model, method=called)
    return f, params, (tokens,), called(model, tokens), last


def _llama() -> Built:
    return _text_model(
        "llama3", "Llama3", "lm_head", vocab_size=_WORDS, num_kv_heads=2, rope_theta=100,
        norm_eps=1e-5,
    )  # fmt: skip


def _qwen() -> Built:
    return _text_model(
        "qwen3", "Qwen3", "lm_head", vocab_size=_WORDS, num_kv_heads=2, rope_theta=100,
        norm_eps=1e-6,
    )  # fmt: skip


def _mixture() -> Built:
    return _text_model(
        "qwen3", "Qwen3", "lm_head", vocab_size=_WORDS, num_kv_heads=2, rope_theta=100,
        norm_eps=1e-6, num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip


def _tunix_gemma() -> Built:
    return _text_model(
        "gemma3", "Gemma3", "layers/1/mlp/down_proj", num_embed=_WORDS, num_kv_heads=1,
        sliding_window_size=3, param_dtype=jnp.float32,
    )  # fmt: skip


def _gemma() -> Built:
    nn = importlib.import_module("gemma.gm.nn._transformer")
    config = importlib.import_module("gemma.gm.nn.config")
    sizes = {name: n for name, n in _SIZES.items() if name != "num_layers"}
    kinds = (config.AttentionType.LOCAL_SLIDING, config.AttentionType.GLOBAL)
    settings = config.TransformerConfig(
        num_embed=_WORDS, num_kv_heads=1, final_logit_softcap=30.0, use_post_attn_norm=True,
        use_post_ffw_norm=True, attention_types=kinds, sliding_window_size=3, use_qk_norm=True,
        **sizes,
    )  # fmt: skip
    # Computes in bfloat16 unless it's told, for which ONNX Runtime has no kernels on a CPU.
    model = nn.Transformer(config=settings, tokens="tokens", dtype=jnp.float32)
    return _of_linen(model, "layer_1/mlp/linear", _tokens(), part=lambda y: y.logits)


def _diffusion_unet() -> Built:
    module = importlib.import_module("flaxdiff.models.simple_unet")
    attention = ({"heads": 2}, {"heads": 2})
    model = module.Unet(
        emb_features=16, feature_depths=(8, 16), attention_configs=attention, num_res_blocks=1,
        norm_groups=4,
    )  # fmt: skip
    images, text = jax.random.normal(_KEY, (2, 8, 8, 3)), jax.random.normal(_KEY, (2, 4, 16))
    return _of_linen(model, "ConvLayer_2/*", images, jnp.array([0.3, 0.7]), text)


def _diffusion_transformer() -> Built:
    module = importlib.import_module("flaxdiff.models.simple_dit")
    model = module.SimpleDiT(patch_size=4, emb_features=16, num_layers=2, num_heads=2)
    images, text = jax.random.normal(_KEY, (2, 8, 8, 3)), jax.random.normal(_KEY, (2, 4, 16))
    return _of_linen(model, "final_proj", images, jnp.array([0.3, 0.7]), text)


PACKAGES: dict[str, Callable[[], Built]] = {
    "equimo-vit": _vit,
    "equimo-rotary": _rotary_vit,
    "equimo-convnext": _convnext,
    "equimo-mobilenet": _mobilenet,
    "equimo-mlla": _mlla,
    "equimo-vssd": _state_space,
    "tunix-llama3": _llama,
    "tunix-qwen3": _qwen,
    "tunix-qwen3-moe": _mixture,
    "tunix-gemma3": _tunix_gemma,
    "gemma": _gemma,
    "flaxdiff-unet": _diffusion_unet,
    "flaxdiff-dit": _diffusion_transformer,
}
"""How each model is built."""
