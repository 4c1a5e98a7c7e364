"""Modules of PyTorch go through `functional`, the transforms, and back."""

import fnmatch
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.compression import calibrate
from jaxeff.pruning import Prune

torch = pytest.importorskip("torch")
pytest.importorskip("torchax")
pytestmark = pytest.mark.promotes("dtype", "rank")  # torchax does


class Block(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(channels)
        self.relu = torch.nn.ReLU()
        self.conv2 = torch.nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2 = torch.nn.BatchNorm2d(channels)

    def forward(self, x):
        return self.relu(x + self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))


class Net(torch.nn.Module):
    def __init__(self, drop=0.5):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.layer1 = torch.nn.Sequential(Block(8), Block(8))
        self.pool = torch.nn.AdaptiveAvgPool2d(1)
        self.drop = torch.nn.Dropout(drop)
        self.fc = torch.nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(self.drop(self.pool(self.layer1(self.stem(x))).flatten(1)))

    def features(self, x):
        return self.stem(x)


@pytest.fixture
def net():
    torch.manual_seed(0)
    model = Net()
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.uniform_(-0.1, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
    return model


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype("float32")


def computed(model, x):
    with torch.no_grad():
        return model(torch.tensor(x)).numpy()


def test_a_module_infers_and_stays_as_it_was(net, x):
    f, params = jaxeff.functional(net)
    assert net.training
    assert not any(layer._forward_hooks for layer in net.modules())
    net.eval()
    np.testing.assert_allclose(f(params, x), computed(net, x), atol=1e-6)
    np.testing.assert_allclose(jax.jit(f)(params, x), computed(net, x), atol=1e-6)
    np.testing.assert_allclose(f(params, torch.tensor(x)), computed(net, x), atol=1e-6)


def test_sites_are_named_as_its_modules(net, x):
    f, params = jaxeff.functional(net)
    names = tuple(jaxeff.sites(f, params, x))
    assert {"stem", "layer1/0/conv1", "layer1/1/bn2", "layer1/0/relu/relu", "fc"} < set(names)
    assert not any(":" in name for name in names)


def test_a_method_and_frozen_parameters(net, x):
    net.stem.requires_grad_(False)
    f, params = jaxeff.functional(net, method="features")
    with torch.no_grad():
        expected = net.stem(torch.tensor(x)).numpy()
    np.testing.assert_allclose(f(params, x), expected, atol=1e-6)
    assert params["stem"]["weight"].shape == (8, 3, 3, 3)


def test_training_follows_the_batch(x):
    torch.manual_seed(0)
    net = Net(drop=0.0)
    f, params, state = jaxeff.functional(net, mutable=True)
    y, state = jax.jit(f)(params, state, x)
    np.testing.assert_allclose(y, computed(net, x), atol=1e-6)
    buffers = dict(net.named_buffers())
    for name, value in buffers.items():
        leaf = state
        for part in name.split("."):
            leaf = leaf[part]
        np.testing.assert_allclose(leaf, value.numpy(), atol=1e-6, err_msg=name)


def test_a_key_draws_dropout(net, x):
    net.layer1.eval()
    f, params = jaxeff.functional(net, keyed=True)
    first, again, other = (f(jax.random.key(seed), params, x) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert jnp.abs(first - other).max() > 1e-3


def test_slopes_are_those_of_pytorch(net, x):
    f, params = jaxeff.functional(net)
    slopes = jax.grad(lambda p: (f(p, x) ** 2).sum())(params)
    net.eval()
    (net(torch.tensor(x)) ** 2).sum().backward()
    np.testing.assert_allclose(slopes["fc"]["weight"], net.fc.weight.grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        slopes["layer1"]["0"]["conv1"]["weight"], net.layer1[0].conv1.weight.grad,
        rtol=1e-3, atol=1e-4,
    )  # fmt: skip


def test_integers_are_within_steps_of_the_module(net, x):
    f, params = jaxeff.functional(net)
    spec = calibrate(f, params, [x], {"*:linear": jaxeff.Int(8)}).spec
    g = jaxeff.integer(f, spec)
    codes = g.convert(params, x)
    error = np.abs(g(codes, x) - f(params, x)).max()
    assert 0 < error < 0.05 * np.abs(f(params, x)).max()
    size = [sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (params, codes)]
    assert size[1] < 0.4 * size[0]


def test_parameters_go_back(net, x):
    f, params = jaxeff.functional(net)
    moved = jax.tree.map(lambda w: 0.9 * w, params)
    restored = jaxeff.restore(net, moved).eval()
    np.testing.assert_allclose(computed(restored, x), f(moved, x), atol=1e-6)
    net.eval()
    np.testing.assert_allclose(computed(net, x), f(params, x), atol=1e-6)


def test_a_pruned_module_goes_back(net, x):
    f, params = jaxeff.functional(net)
    plan = jaxeff.prune_plan(f, params, x, {"*:linear": Prune(0.5)})
    small = plan.shrink(params)
    with pytest.raises(ValueError, match=r"restore\(model, params, plan=plan\)"):
        jaxeff.restore(net, small)
    state = jaxeff.functional(net, mutable=True)[2]
    restored = jaxeff.restore(net, small, plan.shrink(state)).eval()
    assert restored.layer1[0].conv1.out_channels == 4
    np.testing.assert_allclose(
        computed(restored, x), jaxeff.pruned(f, plan)(small, x), atol=1e-6
    )  # fmt: skip


class Grouped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 6, 3)
        self.norm = torch.nn.GroupNorm(2, 6)
        self.last = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))).mean((2, 3)))


class Gated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = torch.nn.LSTM(6, 8, batch_first=True)
        self.last = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.cells(x)[0][:, -1])


@pytest.mark.parametrize(("kind", "shape"), [(Grouped, (4, 3, 8, 8)), (Gated, (4, 5, 6))])
def test_groups_and_states_of_a_pruned_module_are_fewer(kind, shape):
    net = kind().eval()
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    f, params = jaxeff.functional(net)
    plan = jaxeff.prune_plan(f, params, x, {"*:linear": Prune(0.5)})
    small = plan.shrink(params)
    restored = jaxeff.restore(net, small).eval()
    expected = jaxeff.pruned(f, plan)(small, x)
    np.testing.assert_allclose(computed(restored, x), expected, atol=1e-6)


@pytest.mark.parametrize(
    "grouped",
    [
        lambda: torch.nn.Conv2d(8, 16, 3, groups=4), lambda: torch.nn.Conv2d(8, 16, 3, groups=8),
        lambda: torch.nn.ConvTranspose2d(8, 16, 3, groups=4),
    ],
)  # fmt: skip
@pytest.mark.parametrize("only", ["*#1", "[!#]*", "*"])
def test_a_plan_says_how_many_groups_are_left(grouped, only):
    """Half of the groups, or half of the channels of each: the weight's shape may be the same."""
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), grouped(), torch.nn.BatchNorm2d(16)
    net = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Conv2d(16, 4, 1)).eval()
    x = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype("float32")
    f, params = jaxeff.functional(net)
    channels = jaxeff.channels(f, params, x)
    keep = {
        g.name: np.arange(g.size) < g.size // 2
        for g in channels.free if g.size > 1 and fnmatch.fnmatchcase(g.name, only)
    }  # fmt: skip
    plan = jaxeff.pruning.Plan(keep, channels)
    small = plan.shrink(params)
    restored = jaxeff.restore(net, small, plan=plan).eval()
    expected = jaxeff.pruned(f, plan)(small, x)
    np.testing.assert_allclose(computed(restored, x), expected, atol=1e-6)
    if keep:
        with pytest.raises(ValueError, match=r"give plan.shrink\(params\)"):
            jaxeff.restore(net, params, plan=plan)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the older way
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal", "older"])
def test_weights_that_are_computed_are_read_as_what_they_are(kind):
    torch.manual_seed(0)
    norm = getattr(torch.nn.utils.parametrizations, kind, torch.nn.utils.weight_norm)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), norm(torch.nn.Linear(6, 3)))
    net(torch.ones(2, 4))  # which leaves a weight with slopes behind, in the older way
    net.eval()
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    before = computed(net, x)
    f, params = jaxeff.functional(net)
    assert params["1"]["weight"].shape == (3, 6)
    np.testing.assert_allclose(f(params, x), before, atol=1e-6)
    moved = jax.tree.map(lambda w: 0.9 * w, params)
    np.testing.assert_allclose(computed(jaxeff.restore(net, moved), x), f(moved, x), atol=1e-6)
    np.testing.assert_array_equal(computed(net, x), before)


def test_a_width_that_pytorch_keeps_once_is_refused():
    net = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype("float32")
    f, params = jaxeff.functional(net)
    plan = jaxeff.prune_plan(f, params, x, {"self_attn*:linear": Prune(0.5)})
    with pytest.raises(ValueError, match="prune no site of self_attn"):
        jaxeff.restore(net, plan.shrink(params))


def test_tied_weights_are_one(x):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(4, 4)
            self.second = torch.nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    net, x = Tied(), np.ones((2, 4), "float32")
    f, params = jaxeff.functional(net)
    assert set(params) == {"first", "second"}
    assert set(params["second"]) == {"bias"}
    np.testing.assert_allclose(f(params, x), computed(net, x), atol=1e-6)
    restored = jaxeff.restore(net, jax.tree.map(lambda w: 2 * w, params))
    assert restored.second.weight is restored.first.weight
    np.testing.assert_allclose(restored.second.weight.detach(), 2 * net.first.weight.detach())


def test_wrong_parameters_are_named(net):
    _, params = jaxeff.functional(net)
    with pytest.raises(ValueError, match="parameter 'fc/bias' is missing"):
        jaxeff.restore(net, {**params, "fc": {"weight": params["fc"]["weight"]}})
    with pytest.raises(TypeError, match="call functional"):
        jaxeff.functional(net, jnp.ones(3))


def test_what_is_no_module_or_no_parameters_says_what_to_give(net, x):
    f, params = jaxeff.functional(net)
    weights = {name: value.numpy() for name, value in net.state_dict().items()}
    with pytest.raises(TypeError, match=r"load_state_dict\(weights\), and give model"):
        jaxeff.functional(net.state_dict())
    with pytest.raises(TypeError, match="load the model by its own library"):
        jaxeff.functional("net.pt")
    with pytest.raises(ValueError, match=r"model.load_state_dict\(...\)"):
        f(weights, x)
    with pytest.warns((FutureWarning, DeprecationWarning)):
        scripted = torch.jit.script(torch.nn.Sequential(torch.nn.ReLU()))
    with pytest.raises(TypeError, match="no Python code"):
        jaxeff.functional(scripted)
    for transform in (jaxeff.compression.ptq, jaxeff.summary):
        with pytest.raises(
            TypeError, match=r"the PyTorch model Net: f, params = jaxeff.functional"
        ):
            transform(net, params, x)
    _, codes, _ = jaxeff.compression.ptq(f, params, x)
    with pytest.raises(TypeError, match="round_weights"):
        jaxeff.restore(net, codes)


def test_tensors_and_images_of_another_layout_are_refused_and_loaders_are_read(net, x):
    f, params = jaxeff.functional(net)
    with pytest.raises(ValueError, match="feature dimension") as error:
        f(params, x.transpose(0, 2, 3, 1))
    assert "x.transpose(0, 3, 1, 2)" in "".join(error.value.__notes__)
    dataset = torch.utils.data.TensorDataset(torch.tensor(x))
    with pytest.raises(TypeError, match=r"give an array, x.numpy\(\)"):
        jaxeff.compression.ptq(f, params, torch.tensor(x))
    loader = torch.utils.data.DataLoader(dataset, batch_size=2)
    (g, codes, _), (h, same, _) = (jaxeff.compression.ptq(f, params, d) for d in (x, loader))
    np.testing.assert_array_equal(g(codes, x), h(same, x))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # PyTorch's own compiler
@pytest.mark.parametrize("wrap", [torch.nn.DataParallel, torch.compile])
def test_what_runs_a_module_elsewhere_is_taken_off(net, x, wrap, monkeypatch):
    # As before torchax registers JAX as a device, which this one would move the module to.
    module = sys.modules["torch.nn.parallel.data_parallel"]
    monkeypatch.setattr(module, "_get_available_device_type", lambda: None)
    f, params = jaxeff.functional(wrap(net))
    assert set(params) == {"stem", "layer1", "fc"}
    np.testing.assert_array_equal(f(params, x), jaxeff.functional(net)[0](params, x))
    assert type(jaxeff.restore(wrap(net), params)) is Net


class Recurrent(torch.nn.Module):
    """Cells in a loop, from a state that the module makes itself."""

    def __init__(self):
        super().__init__()
        self.cell = torch.nn.LSTMCell(8, 16)
        self.head = torch.nn.Linear(16, 4)

    def forward(self, x):
        h, c = torch.zeros(x.shape[0], 16), torch.zeros(x.shape[0], 16)
        for i in range(x.shape[1]):
            h, c = self.cell(x[:, i], (h, c))
        return self.head(h)


def test_codes_of_unrolled_cells_are_there_once():
    torch.manual_seed(0)
    net, x = Recurrent(), np.random.default_rng(0).normal(size=(4, 6, 8)).astype("float32")
    f, params = jaxeff.functional(net)
    np.testing.assert_allclose(f(params, x), computed(net, x), atol=1e-6)
    spec = calibrate(f, params, [x], {"*:linear": jaxeff.Int(8)}).spec
    g = jaxeff.integer(f, spec)
    codes = g.convert(params, x)
    # Eight bits for each weight, and for each output of a product a bias and a scale in 32.
    weights = sum(w.size for w in jax.tree.leaves(params) if w.ndim == 2)
    vectors = sum(4 * n for n in (64, 64, 64, 64, 64, 4, 4)) + params["cell"]["bias_hh"].nbytes * 2
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(codes)) <= weights + vectors
    error = np.abs(g(codes, x) - f(params, x)).max()
    assert 0 < error < 0.05 * np.abs(f(params, x)).max()
    shapes = g.convert(jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype), params), x)
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, codes)


def test_attention_of_pytorch_is_seen():
    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    class Guarded(torch.nn.Module):  # what nn.MultiheadAttention runs
        def forward(self, q, k, v):
            n, heads, tokens, size = q.shape
            q, k, v = (a.reshape(n * heads, tokens, size) for a in (q, k, v))
            scores = torch.bmm(q, k.transpose(1, 2)).reshape(n, heads, tokens, tokens)
            p = torch.ops.aten._safe_softmax(size**-0.5 * scores, -1)
            return torch.bmm(p.reshape(n * heads, tokens, tokens), v)

    draws = 4096
    keys = jax.random.split(jax.random.key(0), 6)
    means = [jax.random.normal(key, (2, 2, 5, 4)) for key in keys[:3]]
    for module in (Attention(), Guarded()):
        f, params = jaxeff.functional(module)
        random = [jaxeff.Gaussian(m, jnp.full(m.shape, 0.02)) for m in means]
        y = jaxeff.moments(f)(params, *random)
        drawn = jax.vmap(lambda q, k, v: f(params, q, k, v))(*(  # noqa: B023
            m + 0.02**0.5 * jax.random.normal(key, (draws, *m.shape))
            for m, key in zip(means, keys[3:], strict=True)
        ))  # fmt: skip
        # Independent probabilities would be a tenth off; the standard error is 2 % an entry.
        ratio = y.var / drawn.var(0)
        assert abs(float(jnp.median(ratio)) - 1) < 0.05
        assert float(jnp.abs(ratio - 1).max()) < 0.2


def test_functions_take_pytorchs_names_of_their_arguments(x):
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(5, 8))
            self.bias = torch.nn.Parameter(torch.randn(5))

        def forward(self, x):
            x = torch.nn.functional.linear(input=x, weight=self.weight, bias=self.bias)
            x = torch.nn.functional.pad(input=x, pad=(0, 1), value=2.0)
            x = torch.repeat_interleave(input=x, repeats=2, dim=1)
            x = x @ x.transpose(-1, -2) + 9 * torch.eye(x.shape[-2])
            return torch.linalg.solve(A=x, B=x[..., :1] + torch.linalg.det(A=x)[..., None, None])

    torch.manual_seed(0)
    model = Named()
    f, params = jaxeff.functional(model)
    exact = computed(model, x)
    np.testing.assert_allclose(f(params, x), exact, atol=1e-4 * np.abs(exact).max())


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")  # of PyTorch's indices
def test_sums_of_patches_are_cropped(x):
    """PyTorch's own decomposition of `fold` pads by numbers below zero."""

    class Folded(torch.nn.Module):
        def forward(self, x):
            patches = torch.nn.functional.unfold(x, 3, padding=1, stride=2)
            return torch.nn.functional.fold(patches, x.shape[-2:], 3, padding=1, stride=2)

    f, params = jaxeff.functional(Folded())
    np.testing.assert_allclose(f(params, x), computed(Folded(), x), atol=1e-6)


def test_groups_of_a_transposed_convolution_stay_apart():
    torch.manual_seed(0)
    net = torch.nn.ConvTranspose2d(8, 12, 3, stride=2, output_padding=1, groups=4)
    x = np.random.default_rng(0).normal(size=(2, 8, 5, 5)).astype("float32")
    f, params = jaxeff.functional(net)
    np.testing.assert_allclose(f(params, x), computed(net, x), atol=1e-6)


def test_operations_in_place_write_through_views(x):
    """As Swin v2 sets the keys' biases to zero."""

    class InPlace(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.arange(1.0, 9.0))

        def forward(self, x):
            bias = self.bias.clone()
            bias[2:4].zero_()
            bias[4:5].fill_(7.0)
            y = x * bias
            y[:, 1:].masked_fill_(y[:, 1:] > 0.5, 16.0)
            return y

    f, params = jaxeff.functional(InPlace())
    np.testing.assert_allclose(f(params, x), computed(InPlace(), x), atol=1e-6)


def test_what_changed_behind_a_copied_view_is_refused(x):
    class Module(torch.nn.Module):
        def __init__(self, forward):
            super().__init__()
            self.forward = forward

    def read_after(x):
        y = x + 1
        y.transpose(1, 2).mul_(2)
        return y.relu()

    def returned(x):
        y = x + 1
        view = y.view(-1)
        y.add_(1)
        return view

    def apart(x):
        a, b = (x + 1).chunk(2, -1)
        a.mul_(2)
        return torch.cat([a, b], -1).flatten(1).relu_()

    for forward in (read_after, returned):
        f, params = jaxeff.functional(Module(forward))
        with pytest.raises(NotImplementedError, match="Write the operation out of place"):
            f(params, x)
    f, params = jaxeff.functional(Module(apart))
    np.testing.assert_allclose(f(params, x), computed(Module(apart), x), atol=1e-6)


class Checked(torch.nn.Linear):
    """Looks at its input's values, but where it is traced: as models of transformers do."""

    def forward(self, x):
        if not isinstance(getattr(x, "jax", lambda: x)(), jax.core.Tracer) and (x[:, -1] > 9).any():
            raise ValueError("too large")
        return super().forward(x)


@pytest.mark.parametrize("kind", [jnp.asarray, np.asarray, torch.tensor])
def test_a_known_input_of_a_traced_function_is_traced_too(kind):
    f, params = jaxeff.functional(Checked(3, 2))
    x = kind(np.ones((4, 3), np.float32))
    outputs = jax.jit(lambda p: f(p, x))(params)
    np.testing.assert_allclose(outputs, f(params, x), rtol=1e-6)
    slopes = jax.grad(lambda p: f(p, x).sum())(params)
    np.testing.assert_allclose(slopes["bias"], 4.0)
    with pytest.raises(ValueError, match="too large"):
        f(params, kind(np.full((4, 3), 10, np.float32)))


def test_a_batch_norm_multiplies_each_entry_once(net, x):
    f, params = jaxeff.functional(net.layer1[0].bn1)
    image = np.repeat(x[:, :1], 8, 1)
    products = [
        eqn for eqn in jax.make_jaxpr(f)(params, image).jaxpr.eqns
        if eqn.primitive.name == "mul" and eqn.outvars[0].aval.shape == image.shape
    ]  # fmt: skip
    assert len(products) == 1
    plain = torch.nn.BatchNorm2d(8, affine=False).eval()
    np.testing.assert_allclose(
        jaxeff.functional(plain)[0]({}, image), computed(plain, image), atol=1e-6
    )


STEPS = ((None, 0), (1, 1), (2, 1), (4, 1))
WINDOWS = {
    "AvgPool": [
        {"stride": s, "padding": p, "ceil_mode": c, "count_include_pad": i}
        for s, p in STEPS for c, i in ((True, True), (True, False), (False, True))
    ],
    "MaxPool": [
        {"stride": s, "padding": p, "dilation": d, "ceil_mode": True}
        for s, p in STEPS for d in (1, 2)
    ],
    "LPPool": [{"norm_type": 2.0, "stride": s, "ceil_mode": True} for s in (None, 1)],
    "AdaptiveAvgPool": [{}],
}  # fmt: skip


@pytest.mark.seconds(20)
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")  # of torchax's indices
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_pytorchs(name, axes):
    """Of images whose axes end inside a window, beside one another."""
    x = np.random.default_rng(0).normal(size=(2, 3, *(7, 3, 5)[:axes])).astype("float32")
    divided = [{"divisor_override": 4, "ceil_mode": True}] if name == "AvgPool" and axes > 1 else []
    failures = []
    for i, settings in enumerate([*WINDOWS[name], *divided]):
        size = 2 if i % 2 == 0 or axes != 2 else (3, 2)
        pool = getattr(torch.nn, f"{name}{axes}d")
        pool = pool(size, **settings) if name[0] != "L" else pool(kernel_size=size, **settings)
        image = x if i % 3 else x[0]  # without a batch
        y, expected = jaxeff.functional(pool)[0]({}, image), computed(pool, image)
        if y.shape != expected.shape or not np.allclose(y, expected, atol=1e-5):
            failures.append((size, settings, image.shape))
    assert not failures
