"""Networks of points, fields, graphs and probabilities as users of PyTorch bring them, small."""

import itertools
import math

import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F


def _mlp(*widths: int) -> nn.Sequential:
    """Dense layers with ReLUs between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class RealNVP(nn.Module):
    """Dinh et al., arXiv:1605.08803: half of the numbers say how the others are stretched."""

    def __init__(self) -> None:
        """Two couplings of four numbers."""
        super().__init__()
        self.nets = nn.ModuleList([_mlp(2, 8, 4) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives the logarithm of the density."""
        total = x.new_zeros(x.shape[0])
        for net in self.nets:
            first, moved = x.chunk(2, 1)
            scale, shift = net(first).chunk(2, 1)
            scale = scale.tanh()
            moved = moved * scale.exp() + shift
            total = total + scale.sum(1)
            x = torch.cat([moved, first], 1)
        return Normal(torch.zeros(4), torch.ones(4)).log_prob(x).sum(1) + total


class MixtureDensity(nn.Module):
    """Bishop (1994): weights, means and deviations of three normal distributions."""

    def __init__(self) -> None:
        """Three parts."""
        super().__init__()
        self.body = nn.Linear(3, 8)
        self.head = nn.Linear(8, 9)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Gives the logarithm of the density of y at x."""
        weights, means, deviations = self.head(self.body(x).tanh()).chunk(3, 1)
        parts = Normal(means, F.softplus(deviations) + 1e-3).log_prob(y)
        return torch.logsumexp(weights.log_softmax(1) + parts, 1)


class NeRF(nn.Module):
    """Mildenhall et al., arXiv:2003.08934: a color and a density at a place."""

    def __init__(self) -> None:
        """Four octaves."""
        super().__init__()
        self.first, self.second = nn.Linear(24, 16), nn.Linear(40, 16)
        self.density, self.color = nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives four numbers for [rays, places, 3]."""
        octaves = 2.0 ** torch.arange(4) * math.pi
        angles = (x[..., None] * octaves).flatten(-2)
        codes = torch.cat([angles.sin(), angles.cos()], -1)
        h = self.second(torch.cat([self.first(codes).relu(), codes], -1)).relu()
        return torch.cat([self.color(h).sigmoid(), F.softplus(self.density(h))], -1)


class Siren(nn.Module):
    """Sitzmann et al., arXiv:2006.09661: sines in the place of activations."""

    def __init__(self) -> None:
        """Two layers."""
        super().__init__()
        self.first, self.second, self.out = nn.Linear(2, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives a field at places."""
        return self.out(torch.sin(3 * self.second(torch.sin(3 * self.first(x)))))


class PINN(nn.Module):
    """Raissi et al., arXiv:1711.10561: what a network leaves of the equation u_t = u_xx."""

    def __init__(self) -> None:
        """One hidden layer."""
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives the residual at each place and time."""

        def field(place: torch.Tensor) -> torch.Tensor:
            return self.net(place)[0]

        first = torch.func.vmap(torch.func.grad(field))(x)
        second = torch.func.vmap(torch.func.hessian(field))(x)
        return first[:, 1] - second[:, 0, 0]


class DeepONet(nn.Module):
    """Lu et al., arXiv:1910.03193: a function's values by its samples, at other places."""

    def __init__(self) -> None:
        """Eight products."""
        super().__init__()
        self.branch, self.trunk = _mlp(6, 12, 8), _mlp(1, 12, 8)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, samples: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Gives [functions, places]."""
        return self.branch(samples) @ self.trunk(places).T + self.bias


class FourierOperator(nn.Module):
    """Li et al., arXiv:2010.08895: some frequencies, each multiplied by a matrix."""

    def __init__(self) -> None:
        """Four frequencies."""
        super().__init__()
        self.lift, self.out = nn.Conv1d(1, 6, 1), nn.Conv1d(6, 1, 1)
        self.beside = nn.Conv1d(6, 6, 1)
        self.real = nn.Parameter(torch.linspace(-0.3, 0.3, 144).view(6, 6, 4))
        self.imaginary = nn.Parameter(torch.linspace(0.3, -0.2, 144).view(6, 6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives a function on the same grid."""
        h = self.lift(x)
        low = torch.fft.rfft(h)[..., :4]
        products = torch.einsum("nif,iof->nof", low, torch.complex(self.real, self.imaginary))
        y = torch.fft.irfft(F.pad(products, (0, h.shape[-1] // 2 + 1 - 4)), n=h.shape[-1])
        return self.out(F.gelu(y + self.beside(h)))


class GraphNetwork(nn.Module):
    """Gilmer et al., arXiv:1704.01212: messages along edges, added up where they arrive."""

    def __init__(self) -> None:
        """A ring of six nodes."""
        super().__init__()
        self.message, self.update = nn.Linear(8, 8), nn.GRUCell(8, 4)
        self.out = nn.Linear(4, 2)
        self.register_buffer("senders", torch.arange(6))
        self.register_buffer("receivers", (torch.arange(6) + 1) % 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives two numbers a node of [6, 4]."""
        pairs = torch.cat([x[self.senders], x[self.receivers]], 1)
        messages = self.message(pairs).relu()
        arrived = torch.zeros(6, 8).index_add(0, self.receivers, messages)
        return self.out(self.update(arrived, x))


class PointNet(nn.Module):
    """Qi et al., arXiv:1612.00593: points turned by a matrix of them all, and their largest."""

    def __init__(self) -> None:
        """Eight features a point."""
        super().__init__()
        self.turn = _mlp(3, 8, 9)
        self.features, self.fc = nn.Conv1d(3, 8, 1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classifies clouds, [batch, points, 3]."""
        matrix = self.turn(x.amax(1)).view(-1, 3, 3) + torch.eye(3)
        h = self.features(torch.bmm(x, matrix).transpose(1, 2)).relu()
        return self.fc(h.amax(2))


class DeepSets(nn.Module):
    """Zaheer et al., arXiv:1703.06114: a sum over what a set has."""

    def __init__(self) -> None:
        """Eight features."""
        super().__init__()
        self.each, self.all = _mlp(2, 8, 8), _mlp(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives a number a set."""
        return self.all(self.each(x).sum(1))


class Mixture(nn.Module):
    """Shazeer et al., arXiv:1701.06538: the two of four networks that a gate chooses."""

    def __init__(self) -> None:
        """Four networks."""
        super().__init__()
        self.gate = nn.Linear(4, 4)
        self.experts = nn.ModuleList([_mlp(4, 6, 3) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives three numbers."""
        scores, chosen = self.gate(x).topk(2, 1)
        weights = torch.zeros(x.shape[0], 4).scatter(1, chosen, scores.softmax(1))
        each = torch.stack([expert(x) for expert in self.experts], 1)
        return (weights[..., None] * each).sum(1)


class HyperNetwork(nn.Module):
    """Ha et al., arXiv:1609.09106: a layer whose weights another one computes."""

    def __init__(self) -> None:
        """A layer of three by four."""
        super().__init__()
        self.weights, self.out = nn.Linear(2, 12), nn.Linear(4, 1)

    def forward(self, code: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Gives a number for each code and input."""
        matrices = self.weights(code).view(-1, 3, 4)
        return self.out(torch.einsum("ni,nio->no", x, matrices).tanh())


class Perceiver(nn.Module):
    """Jaegle et al., arXiv:2103.03206: a few learned queries read everything."""

    def __init__(self) -> None:
        """Three queries."""
        super().__init__()
        self.queries = nn.Parameter(torch.linspace(-1.0, 1.0, 24).view(3, 8))
        self.read = nn.MultiheadAttention(8, 2, kdim=4, vdim=4, batch_first=True)
        self.norm, self.mix = nn.LayerNorm(8), _mlp(8, 12, 8)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classifies [batch, steps, 4]."""
        queries = self.queries.expand(x.shape[0], -1, -1)
        h = queries + self.read(queries, x, x, need_weights=False)[0]
        return self.fc((h + self.mix(self.norm(h))).mean(1))


class RadialKAN(nn.Module):
    """Li, arXiv:2405.06721: a sum of bumps for each edge of a dense layer."""

    def __init__(self) -> None:
        """Two layers of five bumps."""
        super().__init__()
        self.first, self.second = nn.Linear(3 * 5, 6), nn.Linear(6 * 5, 2)
        self.register_buffer("centers", torch.linspace(-2, 2, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives two numbers."""
        for layer in (self.first, self.second):
            x = layer(torch.exp(-((x[..., None] - self.centers) ** 2)).flatten(-2))
        return x
