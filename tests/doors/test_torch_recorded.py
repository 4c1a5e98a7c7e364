"""Modules that differentiate themselves, packed sequences, windows, and grids of training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff import program
from jaxeff.core import functional
from jaxeff.noise import Additive

torch = pytest.importorskip("torch")
pytest.importorskip("torchax")
pytestmark = [
    pytest.mark.promotes("dtype", "rank"),  # torchax does
    # PyTorch, as it records second derivatives.
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]

from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402


def differences(model, inputs, bound_inputs):
    """How far a function is from its module, called plainly and compiled."""
    expected = [t.detach().numpy() for t in jax.tree.leaves(model(*inputs))]
    f, params = functional(model)
    bound = functools.partial(f, **bound_inputs)
    arrays = [t.detach().numpy() for t in inputs[: len(inputs) - len(bound_inputs)]]
    for call in (bound, jax.jit(bound)):
        results = jax.tree.leaves(call(params, *arrays))
        for result, leaf in zip(results, expected, strict=True):
            yield float(jnp.abs(result - leaf).max())


class Field(torch.nn.Module):
    """A network of a field and what an equation of physics asks of it."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.net = torch.nn.Sequential(
            torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        )
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        return getattr(self, self.kind)(x)

    def grad(self, x):
        return torch.func.vmap(torch.func.grad(lambda p: self.net(p)[0]))(x)

    def hessian(self, x):
        return torch.func.vmap(torch.func.hessian(lambda p: self.net(p)[0]))(x)

    def jacrev(self, x):
        return torch.func.vmap(torch.func.jacrev(self.net))(x)

    def jvp(self, x):
        return torch.func.jvp(self.net, (x,), (torch.ones_like(x),))[1]

    def vjp(self, x):
        y, back = torch.func.vjp(self.net, x)
        return back(torch.ones_like(y))[0]

    def autograd(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.net(x).sum(), x)[0]

    def counted(self, x):
        self.calls.add_(1)
        return self.grad(x) * self.calls

    def branching(self, x):
        y = self.grad(x)
        return y if bool(y.sum() > 0) else -y

    def pair(self, x):
        return {"slope": self.grad(x), "name": "u", "value": (self.net(x), 3)}


KINDS = ("grad", "hessian", "jacrev", "jvp", "vjp", "autograd")


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_may_differentiate_itself(kind):
    torch.manual_seed(0)
    model, x = Field(kind).eval(), torch.randn(5, 2)
    assert max(differences(model, (x,), {})) < 1e-6


def test_what_is_recorded_has_slopes_and_names():
    torch.manual_seed(0)
    model, x = Field("grad").eval(), torch.randn(5, 2)
    f, params = functional(model)
    slopes = jax.grad(lambda p: (f(p, x.numpy()) ** 2).sum())(params)
    model(x).square().sum().backward()
    assert np.abs(slopes["net"]["0"]["weight"] - model.net[0].weight.grad.numpy()).max() < 1e-6
    names = program.sites(f, params, x.numpy())
    assert {"net/0", "net/2"} <= {*names}
    # What was computed before the module turned out to be one that is recorded is in no program.
    assert sum(name.startswith("net/2") for name in names) == 1
    noisy = jaxeff.noisy(f, {"net/0": Additive(0.1)})(jax.random.key(0), params, x.numpy())
    assert float(jnp.abs(noisy - f(params, x.numpy())).max()) > 1e-3


def test_a_recorded_module_writes_into_its_buffers():
    model = Field("counted").eval()
    f, params, state = functional(model, mutable=True)
    x = torch.randn(5, 2)
    first, state = f(params, state, x.numpy())
    second, state = f(params, state, x.numpy())
    assert float(state["calls"]) == 2
    assert np.allclose(second, 2 * first)


def test_structures_and_other_methods_are_recorded():
    model, x = Field("grad").eval(), torch.randn(5, 2)
    f, params = functional(model, method="pair")
    result = f(params, x.numpy())
    assert result["value"][1] == 3
    assert np.abs(result["slope"] - model.pair(x)["slope"].detach().numpy()).max() < 1e-6


def test_a_value_that_a_recording_lacks_is_refused():
    model, x = Field("branching").eval(), torch.randn(5, 2)
    f, params = functional(model)
    with pytest.raises(NotImplementedError, match=r"torch\.func.*shapes alone"):
        f(params, x.numpy())


class Tagger(torch.nn.Module):
    def __init__(self, kind, batch_first=True, sorted_before=False, both_ways=True):
        super().__init__()
        self.sorted_before, self.batch_first = sorted_before, batch_first
        layers = getattr(torch.nn, kind)
        self.rnn = layers(4, 6, 2, batch_first=batch_first, bidirectional=both_ways)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(
            x, lengths, batch_first=self.batch_first, enforce_sorted=self.sorted_before
        )
        y, last = self.rnn(packed)
        return (*pad_packed_sequence(y, batch_first=self.batch_first, total_length=9), last)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("sorted_before", [False, True])
def test_packed_sequences_are_pytorchs(kind, sorted_before):
    torch.manual_seed(0)
    batch_first = kind != "GRU"
    model = Tagger(kind, batch_first, sorted_before, kind != "RNN").eval()
    x = torch.randn(*((3, 7, 4) if batch_first else (7, 3, 4)))
    lengths = torch.tensor([6, 4, 1] if sorted_before else [4, 6, 1])
    assert max(differences(model, (x, lengths), {"lengths": lengths.numpy()})) < 1e-6


def test_slopes_of_a_packed_sequence_are_pytorchs():
    torch.manual_seed(0)
    model, x = Tagger("LSTM").eval(), torch.randn(3, 7, 4)
    f, params = functional(model)
    slopes = jax.grad(lambda p: (f(p, x.numpy(), [4, 6, 1])[0] ** 2).sum())(params)
    model(x, [4, 6, 1])[0].square().sum().backward()
    for name, weight in model.rnn.named_parameters():
        assert np.abs(slopes["rnn"][name] - weight.grad.numpy()).max() < 1e-5


def test_lengths_that_are_no_lengths_are_refused():
    model, x = Tagger("GRU").eval(), np.zeros((3, 7, 4), np.float32)
    f, params = functional(model)
    with pytest.raises(ValueError, match=r"\[9, 1, 1\].*padded to 7 steps"):
        f(params, x, [9, 1, 1])
    with pytest.raises(NotImplementedError, match="pack_padded_sequence asks for the values"):
        jax.jit(f)(params, x, np.array([4, 6, 1]))
    f, params = functional(Tagger("GRU", sorted_before=True).eval())
    with pytest.raises(ValueError, match="enforce_sorted=False"):
        f(params, x, [4, 6, 1])


class Spectral(torch.nn.Module):
    def __init__(self, hop=4, window=torch.hann_window, length=None, **options):
        super().__init__()
        self.hop, self.window, self.length, self.options = hop, window, length, options
        self.gain = torch.nn.Parameter(torch.linspace(0.5, 1.5, 9)[:, None])

    def forward(self, x):
        window = self.window(16)
        spectrum = torch.stft(x, 16, self.hop, window=window, return_complex=True, **self.options)
        return torch.istft(
            spectrum * self.gain, 16, self.hop, window=window, length=self.length, **self.options
        )


@pytest.mark.parametrize(
    "options",
    [
        {}, {"hop": 5}, {"length": 60}, {"length": 70}, {"normalized": True},
        {"center": False, "window": torch.hamming_window}, {"window": torch.blackman_window},
    ],
)  # fmt: skip
def test_the_inverse_of_a_short_time_transform(options):
    torch.manual_seed(0)
    assert max(differences(Spectral(**options), (torch.randn(2, 64),), {})) < 1e-6


def trained_on_grids(per_channel):
    """A network that PyTorch trained for a few steps on grids."""
    quantization = torch.ao.quantization
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        quantization.QuantStub(), torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(144, 5), quantization.DeQuantStub(),
    )  # fmt: skip
    # x86's grids have one for each channel, QNNPACK's one for a weight.
    engine = "x86" if per_channel else "qnnpack"
    model.qconfig = quantization.get_default_qat_qconfig(engine)
    model = quantization.prepare_qat(model.train())
    for _ in range(3):
        model(torch.randn(8, 3, 8, 8))
    return model.eval()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Please use quant_min:UserWarning")
@pytest.mark.parametrize("per_channel", [False, True])
def test_grids_of_training_are_kept(per_channel):
    model = trained_on_grids(per_channel)
    model.apply(torch.ao.quantization.disable_observer)
    x = torch.randn(8, 3, 8, 8)
    assert max(differences(model, (x,), {})) < 1e-6
    f, params = functional(model)
    slopes = jax.grad(lambda p: f(p, x.numpy()).sum())(params)
    model(x).sum().backward()
    weight = model[1].weight.grad.numpy()
    assert np.abs(slopes["1"]["weight"] - weight).max() < 1e-4 * np.abs(weight).max()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Please use quant_min:UserWarning")
def test_grids_that_still_move_are_refused():
    model = trained_on_grids(False)
    f, params = functional(model)
    with pytest.raises(NotImplementedError, match="disable_observer"):
        f(params, np.zeros((1, 3, 8, 8), np.float32))
    model.apply(torch.ao.quantization.disable_observer)
    model.apply(torch.ao.quantization.disable_fake_quant)
    f, params = functional(model)
    bare = torch.nn.Sequential(*list(model)[1:-1])
    x = torch.randn(2, 3, 8, 8)
    assert np.abs(f(params, x.numpy()) - bare(x).detach().numpy()).max() < 1e-6
