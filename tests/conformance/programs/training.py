"""Training: losses, gradients of layers, optimizer steps, whole train steps and loops."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx
from jax import lax

import jaxeff
from jaxeff.nn import MLP, LeNet5, TransformerEncoder
from tests.conformance.programs.family import KEY, Family, integers, normal, uniform
from tests.conformance.programs.networks import linen

FAMILY = Family("training")
program = FAMILY.program
NHWC = ("NHWC", "HWIO", "NHWC")
LOGITS = (normal(8, 10), integers(8, high=10))


@program(*LOGITS)
def _cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@program(*LOGITS)
def _gradient_of_cross_entropy(logits, labels):
    def loss(logits):
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return jax.value_and_grad(loss)(logits)


@program(normal(8, 4), normal(8, 4))
def _regression_losses(x, y):
    return [f(x, y).sum() for f in (optax.l2_loss, optax.huber_loss, optax.log_cosh)]


@program(normal(8, 4), uniform(8, 4))
def _other_losses(x, y):
    labels = jnp.round(y)
    return (
        optax.sigmoid_binary_cross_entropy(x, labels),
        optax.hinge_loss(x, 2 * labels - 1),
        optax.losses.kl_divergence(jax.nn.log_softmax(x), jax.nn.softmax(y)),
        optax.cosine_similarity(x, y),
    )


@program(normal(6, 8), normal(6, 8))
def _contrastive_loss(a, b):
    a, b = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in (a, b))
    scores = a @ b.T / 0.1
    return jax.grad(lambda s: -jnp.mean(jnp.diag(jax.nn.log_softmax(s))))(scores)


def gradient(layer):
    """The gradients of a layer's sum of squares, for all its arguments."""

    def f(*arguments):
        loss = lambda *a: jnp.sum(layer(*a) ** 2)  # noqa: E731
        return jax.grad(loss, tuple(range(len(arguments))))(*arguments)

    return f


@program(normal(8, 16), normal(16, 4), normal(4))
def _gradient_of_dense(x, w, b):
    return gradient(lambda x, w, b: jax.nn.relu(x @ w + b))(x, w, b)


def convolution(**options):
    """A convolution of images."""
    options = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": NHWC} | options
    return lambda x, w: lax.conv_general_dilated(x, w, **options)


X = normal(2, 9, 9, 4)


@program(X, normal(3, 3, 4, 6))
def _gradient_of_convolution(x, w):
    return gradient(convolution())(x, w)


@program(X, normal(3, 3, 4, 6))
def _gradient_of_strided_convolution(x, w):
    return gradient(convolution(window_strides=(2, 2)))(x, w)


@program(X, normal(3, 3, 4, 6))
def _gradient_of_dilated_convolution(x, w):
    return gradient(convolution(rhs_dilation=(2, 2)))(x, w)


@program(X, normal(3, 3, 1, 8))
def _gradient_of_depthwise_convolution(x, w):
    return gradient(convolution(feature_group_count=4))(x, w)


@program(X, normal(3, 3, 2, 6))
def _gradient_of_grouped_convolution(x, w):
    return gradient(convolution(feature_group_count=2))(x, w)


@program(normal(2, 5, 5, 4), normal(3, 3, 4, 6))
def _gradient_of_transposed_convolution(x, w):
    return gradient(lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"))(x, w)


@program(normal(2, 12, 3), normal(5, 3, 4))
def _gradient_of_convolution_1d(x, w):
    options = {"window_strides": (1,), "dimension_numbers": ("NWC", "WIO", "NWC")}
    return gradient(convolution(**options))(x, w)


@program(X)
def _gradient_of_max_pool(x):
    return gradient(lambda x: nn.max_pool(x, (2, 2), (2, 2)))(x)


@program(X)
def _gradient_of_overlapping_max_pool(x):
    return gradient(lambda x: nn.max_pool(x, (3, 3), (2, 2), "SAME"))(x)


@program(X)
def _gradient_of_average_pool(x):
    return gradient(lambda x: nn.avg_pool(x, (3, 3), (2, 2), "SAME"))(x)


@program(X, normal(4), normal(4))
def _gradient_of_batch_norm(x, scale, bias):
    def norm(x, scale, bias):
        y = (x - x.mean((0, 1, 2))) * lax.rsqrt(x.var((0, 1, 2)) + 1e-5)
        return jax.nn.relu(y * scale + bias)

    return gradient(norm)(x, scale, bias)


@program(normal(4, 6, 16), normal(16), normal(16))
def _gradient_of_layer_norm(x, scale, bias):
    return gradient(lambda x, s, b: jax.nn.standardize(x) * s + b)(x, scale, bias)


@program(integers(4, 6, high=20), normal(20, 8))
def _gradient_of_embedding(tokens, table):
    return jax.grad(lambda t: jnp.sum(jnp.sin(t[tokens])))(table)


@program(normal(5, 12, scale=2.0))
def _gradients_of_activations(x):
    names = "relu elu selu silu gelu softplus tanh sigmoid log_sigmoid leaky_relu mish celu"
    activations = [getattr(jax.nn, name) for name in names.split()]
    return [jax.grad(lambda x, f=f: f(x).sum())(x) for f in activations]


@program(normal(5, 12))
def _gradient_of_sort_and_top_k(x):
    def loss(x):
        return jnp.sum(jnp.sort(x) * jnp.arange(12.0)) + jnp.sum(lax.top_k(x, 3)[0] ** 2)

    return jax.grad(loss)(x)


@program(normal(5, 12))
def _gradients_of_cumulative_operations(x):
    functions = (jnp.cumsum, jnp.cumprod, lax.cummax, lax.cumlogsumexp)
    return [jax.grad(lambda x, f=f: jnp.sum(jnp.cos(f(x, axis=1))))(x) for f in functions]


@program(normal(4), normal(4, 4))
def _hessian(x, a):
    return jax.hessian(lambda x: jnp.sum(jnp.tanh(a @ x) ** 3))(x)


@program(normal(4), normal(3, 4))
def _jacobians(x, a):
    f = lambda x: jnp.sin(a @ x)  # noqa: E731
    return jax.jacfwd(f)(x), jax.jacrev(f)(x)


@program(normal(4), normal(4), normal(4, 4))
def _hessian_vector_product(x, v, a):
    return jax.jvp(jax.grad(lambda x: jnp.sum(jnp.exp(a @ x))), (x,), (v,))[1]


@program(normal(6, 3), normal(6), normal(3))
def _gradients_of_single_examples(x, y, w):
    return jax.vmap(jax.grad(lambda w, x, y: (x @ w - y) ** 2), (None, 0, 0))(w, x, y)


WEIGHTS = {"w": normal(6, 4), "b": normal(4)}


def _optimizer(name, make):
    def step(weights, gradients):
        optimizer = make()
        state = optimizer.init(weights)
        for _ in range(3):
            updates, state = optimizer.update(gradients, state, weights)
            weights = optax.apply_updates(weights, updates)
        return weights, state

    step.__name__ = f"_{name}_steps"
    return program(WEIGHTS, WEIGHTS)(step)


OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, 0.9, nesterov=True),
    "adam": lambda: optax.adam(1e-3),
    "adamw_with_schedule": lambda: optax.adamw(optax.cosine_decay_schedule(1e-3, 10)),
    "rmsprop": lambda: optax.rmsprop(1e-3, centered=True),
    "adagrad": lambda: optax.adagrad(0.1),
    "lamb": lambda: optax.lamb(1e-3),
    "lion": lambda: optax.lion(1e-3),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "clipped_adam": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
}
for _name, _make in OPTIMIZERS.items():
    _optimizer(_name, _make)


@program(normal(12, 2), normal(12))
def _lbfgs(x, y):
    def loss(w):
        return jnp.mean((x @ w - y) ** 2)

    optimizer = optax.lbfgs()

    def step(carry, _):
        w, state = carry
        value, gradient = optax.value_and_grad_from_state(loss)(w, state=state)
        updates, state = optimizer.update(
            gradient, state, w, value=value, grad=gradient, value_fn=loss
        )
        return (optax.apply_updates(w, updates), state), value

    w = jnp.zeros(2)
    (w, _), values = lax.scan(step, (w, optimizer.init(w)), length=5)
    return w, values


def train_step(f, optimizer):
    """A step of training a classifier."""

    def step(params, state, x, labels):
        def loss(params):
            logits = f(params, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def classifier(model, *shape):
    """A training step of a network, with its arguments."""
    # Adam's first step has the sign of each gradient, that of a zero as well: not to be compared.
    optimizer = optax.sgd(0.1, 0.9)
    model.eval()
    f, params = jaxeff.functional(model)
    rng = np.random.RandomState(0)
    x, labels = rng.standard_normal(shape).astype(np.float32), rng.randint(0, 10, shape[0])
    return train_step(f, optimizer), (params, optimizer.init(params), x, labels.astype(np.int32))


@FAMILY.built
def _train_step_of_an_mlp():
    return classifier(MLP((784, 100, 100, 10), rngs=nnx.Rngs(0)), 16, 784)


@FAMILY.built
def _train_step_of_lenet_5():
    model = LeNet5(rngs=nnx.Rngs(0))
    return classifier(model, 4, 28, 28, 1)


@FAMILY.built
def _train_step_of_a_transformer():
    model = TransformerEncoder(rngs=nnx.Rngs(0))
    return classifier(model, 4, 8, 8)


class _SmallResNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.BatchNorm(use_running_average=False)(nn.Conv(8, (3, 3))(x)))
        for width, stride in ((8, 1), (16, 2)):
            y = nn.Conv(width, (3, 3), (stride, stride), use_bias=False)(x)
            y = nn.relu(nn.BatchNorm(use_running_average=False)(y))
            y = nn.BatchNorm(use_running_average=False)(nn.Conv(width, (3, 3))(y))
            if x.shape != y.shape:
                x = nn.Conv(width, (1, 1), (stride, stride))(x)
            x = nn.relu(x + y)
        return nn.Dense(10)(x.mean((1, 2)))


@FAMILY.built
def _train_step_of_a_small_resnet_with_batch_statistics():
    x = np.random.RandomState(0).rand(4, 16, 16, 3).astype(np.float32)
    apply, (variables, _) = linen(_SmallResNet(), x)
    optimizer = optax.sgd(0.1, 0.9)

    def step(params, statistics, state, x, labels):
        def loss(params):
            logits, new = apply(
                {"params": params, "batch_stats": statistics}, x, mutable="batch_stats"
            )
            entropy = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return entropy.mean(), new["batch_stats"]

        (value, new), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), new, state, value

    params = variables["params"]
    labels = np.array([1, 5, 2, 0], np.int32)
    return step, (params, variables["batch_stats"], optimizer.init(params), x, labels)


@program(normal(64, 4), normal(64), normal(4))
def _scanned_training_loop(x, y, w):
    optimizer = optax.adam(0.05)

    def step(carry, batch):
        w, state = carry
        x, y = batch
        value, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(w, updates), state), value

    batches = x.reshape(8, 8, 4), y.reshape(8, 8)
    return lax.scan(step, (w, optimizer.init(w)), batches)


@program(KEY, normal(64, 16), integers(64, high=10), normal(16, 32, scale=0.2), normal(32, 10))
def _shuffled_epochs_of_an_mlp(key, x, labels, w1, w2):
    def loss(weights, x, labels):
        logits = jax.nn.relu(x @ weights[0]) @ weights[1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def epoch(weights, key):
        order = jax.random.permutation(key, 64).reshape(4, 16)

        def step(weights, chosen):
            value, gradient = jax.value_and_grad(loss)(weights, x[chosen], labels[chosen])
            return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), value

        return lax.scan(step, weights, order)

    return lax.scan(epoch, (w1, w2), jax.random.split(key, 3))


@program(KEY, normal(4, 16), normal(16, 6, scale=0.3), normal(3, 16, scale=0.3))
def _gradient_of_a_variational_autoencoder(key, x, encoder, decoder):
    def loss(encoder, decoder):
        mean, log_std = jnp.split(x @ encoder, 2, -1)
        z = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        kl = 0.5 * jnp.sum(mean**2 + jnp.exp(2 * log_std) - 1 - 2 * log_std)
        return jnp.sum((x - jax.nn.sigmoid(z @ decoder)) ** 2) + kl

    return jax.value_and_grad(loss, (0, 1))(encoder, decoder)


@program(normal(8, 4), normal(8, 2), normal(4, 2), normal(4, 1))
def _policy_gradient(states, rewards, policy, value):
    returns = lax.scan(lambda g, r: (r + 0.9 * g,) * 2, jnp.zeros(2), rewards, reverse=True)[1]

    def loss(policy, value):
        advantage = returns[:, 0] - (states @ value)[:, 0]
        log_p = jax.nn.log_softmax(states @ policy)[:, 0]
        return jnp.mean(advantage**2) - jnp.mean(lax.stop_gradient(advantage) * log_p)

    return jax.grad(loss, (0, 1))(policy, value)


@program(normal(6, 6), normal(6))
def _gradient_through_a_solve(a, b):
    return jax.grad(lambda a: jnp.sum(jnp.linalg.solve(a @ a.T + 6 * jnp.eye(6), b)))(a)
