"""What PyTorch knows of its tensors is known on JAX: sizes, writes, and the values of constants."""

import jax
import numpy as np
import pytest

import jaxeff

torch = pytest.importorskip("torch")
pytest.importorskip("torchax")
pytestmark = [
    pytest.mark.promotes("dtype", "rank"),  # torchax does
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
    pytest.mark.filterwarnings("ignore:nested_tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning"),
]

BATCH, STEPS, WIDTH = 3, 5, 4


def sized(y):
    """Reads a sequence's size in all the ways that PyTorch has."""
    first, second = y.chunk(2, dim=1)
    return (
        y.sum(1) / y.size(1), first, second, y.narrow(1, 1, y.size(1) - 1), y[:, -1],
        y.new_zeros(y.size()) + y,
        y.mean(1).unsqueeze(1).expand_as(y), y @ y.mT, y.flatten(1), y.reshape(y.size(0), -1),
        y.unflatten(-1, (2, -1)).permute(1, 0, 2, 3), *y.split([2, y.shape[1] - 2], 1),
        torch.full((len(y), y.numel(), y.stride(-1)), 1.0), torch.zeros_like(y), y.unbind(0)[0],
    )  # fmt: skip


class Called(torch.nn.Module):
    """A layer, and a function of what it gives."""

    def __init__(self, layer, after=lambda y: y, call=None):
        super().__init__()
        self.layer = layer
        self.after = after
        self.call = call or (lambda layer, *args: layer(*args))

    def forward(self, *args):
        return self.after(self.call(self.layer, *args))


def recurrent(kind, **settings):
    return Called(kind(WIDTH, 4, **settings), lambda y: (*sized(y[0]), y[1]))


def attention(**settings):
    layer = torch.nn.MultiheadAttention(WIDTH, 2, **settings)
    return Called(layer, lambda y: (*sized(y[0]), y[1]), lambda layer, x: layer(x, x, x))


SEQUENCES = {
    f"{kind.__name__}{settings}": recurrent(kind, **settings)
    for kind in (torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN)
    for settings in (
        {"batch_first": True}, {}, {"batch_first": True, "bidirectional": True, "num_layers": 2},
    )
} | {
    "LSTM projected": recurrent(torch.nn.LSTM, batch_first=True, proj_size=2),
    "projected without biases": recurrent(torch.nn.LSTM, proj_size=2, bias=False, num_layers=2),
    "GRU without biases": recurrent(torch.nn.GRU, bias=False, bidirectional=True),
    "rectified": recurrent(torch.nn.RNN, nonlinearity="relu", num_layers=3),
    "attention batch first": attention(batch_first=True),
    "attention": attention(),
    "encoder layer": Called(torch.nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True), sized),
    "encoder": Called(
        torch.nn.TransformerEncoder(
            torch.nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True), 1
        ),
        sized,
    ),
}  # fmt: skip


def compare(model, *args, traced=True):
    model = model.eval()
    f, params = jaxeff.functional(model)
    with torch.no_grad():
        expected = model(*(torch.tensor(np.array(a)) for a in args))
    for g in (f, jax.jit(f)) if traced else (f,):
        result = jax.tree.leaves(g(params, *args))
        exact = [t.numpy() for t in jax.tree.leaves(expected, is_leaf=torch.is_tensor)]
        assert [r.shape for r in result] == [e.shape for e in exact]
        for got, right in zip(result, exact, strict=True):
            np.testing.assert_allclose(got, right, atol=2e-6, rtol=2e-5)


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(BATCH, STEPS, WIDTH)).astype("float32")


@pytest.mark.seconds(10)
@pytest.mark.parametrize("name", SEQUENCES)
def test_sizes_behind_sequences_are_pytorchs(name, x):
    torch.manual_seed(0)
    compare(SEQUENCES[name], x, traced=False)


def test_sequences_without_a_batch(x):
    model = Called(torch.nn.GRU(WIDTH, 4, batch_first=True), lambda y: y[0].sum(0) / y[0].size(0))
    compare(model, x[0], traced=False)


def test_a_recurrent_layer_is_a_loop_however_many_steps_it_has():
    f, params = jaxeff.functional(recurrent(torch.nn.LSTM, batch_first=True, bidirectional=True))
    x = np.zeros((BATCH, 500, WIDTH), "float32")
    equations = jax.make_jaxpr(f)(params, x).jaxpr.eqns
    assert [eqn.primitive.name for eqn in equations].count("scan") == 2
    assert len(equations) < 50


def test_derivatives_of_a_loop_are_pytorchs(x):
    torch.manual_seed(0)
    layer = torch.nn.LSTM(WIDTH, 4)
    h, c = np.random.default_rng(1).normal(size=(2, 1, STEPS, 4)).astype("float32")
    f, params = jaxeff.functional(layer)
    gradients = jax.grad(lambda params: (f(params, x, (h, c))[0] ** 2).sum())(params)
    (layer(torch.tensor(x), (torch.tensor(h), torch.tensor(c)))[0] ** 2).sum().backward()
    for name, parameter in layer.named_parameters():
        np.testing.assert_allclose(gradients[name], parameter.grad, rtol=1e-4, atol=1e-5)


def test_dropout_between_layers_is_pytorchs_own(x):
    layer = torch.nn.GRU(WIDTH, 4, num_layers=2, dropout=0.5, batch_first=True)
    f, params = jaxeff.functional(layer.train(), keyed=True)
    assert "scan" not in str(jax.make_jaxpr(f)(jax.random.key(0), params, x))


WRITES = {
    "transpose_": lambda y: y.transpose_(0, 1), "t_": lambda y: y[0].clone().t_(),
    "swapaxes_": lambda y: y.swapaxes_(1, 2), "unsqueeze_": lambda y: y.unsqueeze_(1),
    "squeeze_": lambda y: y[:1].clone().squeeze_(),
    "squeeze_ of an axis": lambda y: y[:1].clone().squeeze_(0),
    "copy_ of a row": lambda y: y.copy_(y[0, 0].clone()),
    "add_ of a row": lambda y: y.add_(y[0, 0].clone()), "fill_": lambda y: y.fill_(2.0),
    "type_as": lambda y: (y.type_as(torch.ones(1, dtype=torch.int32)), y)[1],
    "out": lambda y: torch.add(y, 1, out=torch.empty_like(y)),
    "item": lambda y: (y.__setitem__((slice(None), 0), 3.0), y)[1],
    "through detach": lambda y: (y.detach().mul_(2), y)[1],
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES)
def test_writes_in_place_have_pytorchs_sizes(name, x):
    def written(y):
        y = WRITES[name](y + 1)
        return y, torch.full((y.numel(), *y.size()[:1], y.dim() + 1), 1.0), y.flatten().cumsum(0)

    compare(Called(torch.nn.Identity(), written), x)


STALE = {
    "view": lambda y: (y.view(-1), y.__setitem__(0, 5.0))[0],
    "transpose": lambda y: (y.transpose(0, 1), y.detach().mul_(2))[0],
    "grown": lambda y: y.resize_(100),
    "sliced": lambda y: y[1:].unsqueeze_(0),
}


@pytest.mark.parametrize("name", STALE)
def test_what_pytorch_would_see_changed_is_refused(name, x):
    f, params = jaxeff.functional(Called(torch.nn.Identity(), lambda y: STALE[name](y + 1)))
    with pytest.raises(NotImplementedError, match=r"Write the operation out of place|new tensor"):
        f(params, x)


class Constants(torch.nn.Module):
    """Asks for values of its own numbers."""

    def __init__(self):
        super().__init__()
        self.stride = torch.tensor([2.0, 3.0])
        self.register_buffer("lengths", torch.tensor([5, 3, 2]))
        self.scale = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        causal = torch.triu(torch.full((x.size(1), x.size(1)), float("-inf")), diagonal=1)
        known = torch.zeros(x.size(1), dtype=torch.bool)
        known[3:] = True
        lengths = torch.full((x.size(0),), x.size(1)).mul_(2) // 2
        y = x * x.new_full((x.size(2),), self.stride[1])
        if bool((causal == causal.clone()).all()) and lengths.max() == x.size(1):
            y = y[:, : int(self.lengths.max().item())] * float(lengths.float().mean())
        if torch.equal(known, known) and self.stride.tolist() == [2.0, 3.0]:
            y = y[:, known.flatten()] + torch.arange(int(self.stride.detach()[0]) + 2)
        return y * self.scale, torch.nonzero(known), y.new_ones(self.stride.int().numpy().tolist())


def test_values_of_the_models_own_numbers_are_computed_while_reading(x):
    compare(Constants(), x)
    f, params, state = jaxeff.functional(Constants(), mutable=True)
    with pytest.raises(NotImplementedError, match=r"_local_scalar_dense.* asks for .* shape \(\)"):
        jax.jit(f)(params, state, x)  # a buffer that is loaded may be another


def masked(model, x, lengths):
    outside = torch.arange(x.size(1))[None] >= lengths[:, None]
    if int(lengths.max()) < x.size(1):
        x = x * 2
    return model(x).masked_fill(outside[..., None], 0.0)


def test_an_input_that_is_no_tracer_is_known(x):
    model = Called(torch.nn.Linear(WIDTH, 2), call=masked)
    f, params = jaxeff.functional(model)
    lengths = np.array([4, 2, 1], np.int32)
    y = jax.jit(lambda p, x: f(p, x, lengths))(params, x)
    np.testing.assert_allclose(y, model(torch.tensor(x), torch.tensor(lengths)).detach(), atol=1e-6)
    with pytest.raises(NotImplementedError, match="asks for the values of a tensor of shape"):
        jax.jit(f)(params, x, lengths)


def transformer(layer, x):
    mask = torch.nn.Transformer.generate_square_subsequent_mask(x.size(1))
    return layer(x, x, tgt_mask=mask, src_mask=mask)


class Flow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x):
        mean, log_scale = self.layer(x).chunk(2, -1)
        policy = torch.distributions.Normal(mean, log_scale.exp())
        standard = torch.distributions.Independent(torch.distributions.Normal(0.0, 1.0), 0)
        kind = torch.distributions.Categorical(logits=mean)
        return policy.log_prob(x).sum(-1), standard.log_prob(mean), kind.entropy(), policy.mean


@pytest.mark.seconds(10)
def test_causal_masks_are_compared_and_distributions_checked(x):
    torch.manual_seed(0)
    layer = torch.nn.Transformer(WIDTH, 2, 1, 1, 8, batch_first=True)
    compare(Called(layer, call=transformer), x)
    compare(Flow(), x)
    scale = Called(torch.nn.Identity(), call=lambda _, x: torch.distributions.Normal(x, -1.0, True))
    for g in (lambda f: f, jax.jit):
        with pytest.raises(ValueError, match="Expected parameter scale"):
            g(jaxeff.functional(scale)[0])({}, x)


INDICES = np.array([[1, 2, 2, 0], [3, 0, 1, 1], [4, 4, 4, 0]], np.int32)


@pytest.mark.parametrize("norm", [1.0, 2.0])
def test_rows_that_are_too_long_are_shortened_where_they_are(norm):
    torch.manual_seed(0)
    layer = torch.nn.Embedding(6, WIDTH, max_norm=1.2, norm_type=norm)

    def tied(layer, x):
        return layer(x), layer(x) @ layer.weight.T

    compare(Called(layer, call=tied).requires_grad_(False), INDICES)
    f, params = jaxeff.functional(layer)
    table = torch.nn.Embedding(6, WIDTH, max_norm=1.2, norm_type=norm)
    table.load_state_dict(jax.tree.map(lambda w: torch.tensor(np.array(w)), params))
    table(torch.tensor(INDICES)).square().sum().backward()
    slopes = jax.grad(lambda p: (f(p, INDICES) ** 2).sum())(params)["weight"]
    np.testing.assert_allclose(slopes, table.weight.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 0])
def test_bags_of_embeddings(mode, padding):
    torch.manual_seed(0)
    bag = torch.nn.EmbeddingBag(6, WIDTH, mode=mode, padding_idx=padding, max_norm=1.2)
    compare(bag.requires_grad_(False), INDICES)
    offsets = np.array([0, 3, 3, 7], np.int32)
    compare(bag, INDICES.ravel(), offsets)
    last = torch.nn.EmbeddingBag(6, WIDTH, mode=mode, include_last_offset=True)
    compare(last, INDICES.ravel(), np.array([0, 5, 5, 12], np.int32))
    if mode == "sum":
        weights = np.random.default_rng(1).normal(size=INDICES.shape).astype("float32")
        weighted = Called(bag, call=lambda bag, x, w: bag(x, per_sample_weights=w))
        compare(weighted, INDICES, weights)


SHIFTS = torch.arange(3.0)


class Unregistered(torch.nn.Module):
    """A module with tensors that are neither parameters nor buffers."""

    def __init__(self):
        super().__init__()
        weight = torch.nn.Parameter(torch.randn(3, 2, dtype=torch.bfloat16))
        self.kept = [weight, torch.tensor([1, 2, 0])]
        self.ready = torch.zeros(3)

    def forward(self, x):
        order = self.kept[1]
        scale = torch.from_numpy(np.linspace(1, 2, 3, dtype=np.float32))
        y = (x + SHIFTS)[:, order] * scale + order.sum().item() + self.ready
        return y @ self.kept[0].to(x.dtype), y[:, 1:][:, torch.tensor([True, False])]


class Written(Unregistered):
    def forward(self, x):
        self.kept[1].add_(1)
        return x * self.kept[1]


def test_tensors_that_nobody_registered_are_constants():
    model = Unregistered()
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    f, params = jaxeff.functional(model)
    assert not jax.tree.leaves(params)
    for run in (f, jax.jit(f)):
        for ours, theirs in zip(run(params, x), model(torch.tensor(x)), strict=True):
            np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=1e-6)
    # They have no slopes, as in PyTorch no optimizer would find them.
    np.testing.assert_allclose(jax.grad(lambda x: f(params, x)[1].sum())(x)[:, 2], 1.5, rtol=1e-6)
    f, params = jaxeff.functional(Written())
    with pytest.raises(NotImplementedError, match="register_buffer"):
        f(params, x)


def test_a_slice_by_a_mask_of_inputs_says_what_to_do():
    f, params = jaxeff.functional(Called(torch.nn.Linear(3, 4), lambda y: y[:, 1:][y[:, 1:] > 0]))
    with pytest.raises(NotImplementedError, match=r"torch\.where"):
        jax.jit(f)(params, np.ones((2, 3), np.float32))


class Masked(torch.nn.Module):
    def forward(self, q, mask):
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, q[:, :2], 2 * q[:, :2], attn_mask=mask, enable_gqa=True, scale=0.3)


@pytest.mark.parametrize("shape", [(5, 5), (3, 1, 5, 5), (3, 4, 5, 5), (1, 5)])
@pytest.mark.parametrize("of", ["numbers", "truths", "a row that sees nothing"])
def test_masks_of_attention_have_any_shape(shape, of):
    rng = np.random.default_rng(0)
    q = rng.normal(size=(3, 4, 5, 6)).astype(np.float32)
    mask = rng.normal(size=shape).astype(np.float32)
    if of != "numbers":
        mask = (mask > 0) | (np.arange(5) == 2)
    if of == "a row that sees nothing":
        mask[..., -1, :] = False
    f, params = jaxeff.functional(Masked())
    theirs = Masked()(torch.tensor(q), torch.tensor(mask))
    np.testing.assert_allclose(jax.jit(f)(params, q, mask), theirs, rtol=1e-5, atol=1e-6)
