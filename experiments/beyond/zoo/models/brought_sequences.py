"""Networks of sound, signals and texts as users of PyTorch bring them, from their papers, small."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class EEGNet(nn.Module):
    """Lawhern et al., arXiv:1611.08024: filters in time, then over electrodes."""

    def __init__(self) -> None:
        """Eight electrodes."""
        super().__init__()
        self.time = nn.Conv2d(1, 4, (1, 16), padding="same", bias=False)
        self.norm1 = nn.BatchNorm2d(4)
        self.space = nn.Conv2d(4, 8, (8, 1), groups=4, bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.depth = nn.Conv2d(8, 8, (1, 8), padding="same", groups=8, bias=False)
        self.point = nn.Conv2d(8, 8, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classifies [batch, 1, electrodes, samples]."""
        x = F.elu(self.norm2(self.space(self.norm1(self.time(x)))))
        x = F.dropout(F.avg_pool2d(x, (1, 4)), 0.25, self.training)
        x = F.elu(self.norm3(self.point(self.depth(x))))
        return self.fc(F.avg_pool2d(x, (1, 4)).flatten(1))


class TCN(nn.Module):
    """Bai et al., arXiv:1803.01271: causal convolutions, further apart in each layer."""

    def __init__(self) -> None:
        """Three layers."""
        super().__init__()
        self.layers = nn.ModuleList(
            [
                weight_norm(nn.Conv1d(4 if k == 0 else 8, 8, 3, padding=2 * 2**k, dilation=2**k))
                for k in range(3)
            ]
        )
        self.shortcut = nn.Conv1d(4, 8, 1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives five numbers for the last step of [batch, channels, steps]."""
        for k, layer in enumerate(self.layers):
            y = layer(x)[:, :, : -2 * 2**k].contiguous().relu()
            x = (y + (self.shortcut(x) if k == 0 else x)).relu()
        return self.fc(x[:, :, -1])


class WaveNet(nn.Module):
    """van den Oord et al., arXiv:1609.03499: gates, and what all layers skip ahead."""

    def __init__(self) -> None:
        """Three layers."""
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.gated = nn.ModuleList([nn.Conv1d(8, 16, 2, dilation=2**k) for k in range(3)])
        self.residual = nn.ModuleList([nn.Conv1d(8, 8, 1) for _ in range(3)])
        self.skip = nn.ModuleList([nn.Conv1d(8, 8, 1) for _ in range(3)])
        self.out = nn.Conv1d(8, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives logits of the next of 16 levels at each step."""
        h, total = self.embed(x).transpose(1, 2), 0.0
        layers = zip(self.gated, self.residual, self.skip, strict=True)
        for k, (gated, residual, skip) in enumerate(layers):
            filtered, gate = gated(F.pad(h, (2**k, 0))).chunk(2, 1)
            y = filtered.tanh() * gate.sigmoid()
            total = total + skip(y)
            h = h + residual(y)
        return self.out(torch.relu(total))


class BiLSTM(nn.Module):
    """A tagger of words, read both ways."""

    def __init__(self) -> None:
        """Two layers."""
        super().__init__()
        self.embed = nn.Embedding(16, 8, padding_idx=0)
        self.rnn = nn.LSTM(8, 8, 2, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives four logits a word."""
        return self.fc(self.rnn(self.embed(x))[0])


class PackedTagger(BiLSTM):
    """The same over sequences of lengths that differ."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives four logits a word, of the first seven and four words."""
        packed = pack_padded_sequence(self.embed(x), [7, 4], batch_first=True)
        return self.fc(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0])


class Conformer(nn.Module):
    """Gulati et al., arXiv:2005.08100: half a layer, attention, a convolution, half a layer."""

    def __init__(self) -> None:
        """One block of 16 channels."""
        super().__init__()
        self.read = nn.Conv1d(8, 16, 3, 2, 1)
        self.first = nn.Sequential(
            nn.LayerNorm(16), nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)
        )
        self.norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.conv_norm = nn.LayerNorm(16)
        self.gate = nn.Conv1d(16, 32, 1)
        self.depth = nn.Conv1d(16, 16, 5, padding=2, groups=16)
        self.batch_norm = nn.BatchNorm1d(16)
        self.point = nn.Conv1d(16, 16, 1)
        self.second = nn.Sequential(
            nn.LayerNorm(16), nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)
        )
        self.fc = nn.Linear(16, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives six logits for every second frame of [batch, bands, frames]."""
        x = self.read(x).transpose(1, 2)
        x = x + 0.5 * self.first(x)
        y = self.norm(x)
        lengths = torch.full((x.shape[0],), x.shape[1])
        padding = torch.arange(int(lengths.max().item()))[None] >= lengths[:, None]
        x = x + self.attention(y, y, y, key_padding_mask=padding, need_weights=False)[0]
        y = F.glu(self.gate(self.conv_norm(x).transpose(1, 2)), 1)
        x = x + self.point(F.silu(self.batch_norm(self.depth(y)))).transpose(1, 2)
        return self.fc(x + 0.5 * self.second(x))


class ConvTasNet(nn.Module):
    """Luo and Mesgarani, arXiv:1809.07454: masks for two speakers of a learned spectrum."""

    def __init__(self) -> None:
        """Sixteen filters."""
        super().__init__()
        self.encoder = nn.Conv1d(1, 16, 8, 4, bias=False)
        self.norm = nn.GroupNorm(1, 16, eps=1e-8)
        self.narrow = nn.Conv1d(16, 8, 1)
        self.depth = nn.Conv1d(8, 8, 3, padding=2, dilation=2, groups=8)
        self.activation = nn.PReLU()
        self.masks = nn.Conv1d(8, 32, 1)
        self.decoder = nn.ConvTranspose1d(16, 1, 8, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives two sounds for one, [batch, 2, samples]."""
        h = self.encoder(x[:, None]).relu()
        y = self.activation(self.depth(self.narrow(self.norm(h))))
        masks = self.masks(y).view(x.shape[0], 2, 16, -1).relu()
        return self.decoder((h[:, None] * masks).flatten(0, 1)).view(x.shape[0], 2, -1)


class Spectral(nn.Module):
    """A mask on the spectrum of a sound, which is made again."""

    def __init__(self) -> None:
        """Frames of 16 samples."""
        super().__init__()
        self.mask = nn.Conv1d(9, 9, 3, padding=1)
        self.register_buffer("window", torch.hann_window(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives as many samples as it is given."""
        spectrum = torch.stft(x, 16, 4, window=self.window, return_complex=True)
        spectrum = spectrum * self.mask(spectrum.abs()).sigmoid()
        return torch.istft(spectrum, 16, 4, window=self.window, length=x.shape[-1])


class Translator(nn.Module):
    """Vaswani et al., arXiv:1706.03762, by PyTorch's own `nn.Transformer`."""

    def __init__(self) -> None:
        """One layer on either side."""
        super().__init__()
        self.embed = nn.Embedding(16, 16)
        self.transformer = nn.Transformer(16, 2, 1, 1, 24, 0.0, batch_first=True)
        self.fc = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives logits of the next word for each of the second half."""
        source, target = x.chunk(2, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        y = self.transformer(
            self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True
        )
        return self.fc(y)


class AttentiveGRU(nn.Module):
    """Bahdanau et al., arXiv:1409.0473: states weighed by what a layer makes of each."""

    def __init__(self) -> None:
        """Eight units."""
        super().__init__()
        self.rnn = nn.GRU(4, 8, batch_first=True)
        self.score = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))
        self.fc = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classifies sequences."""
        states, _ = self.rnn(x)
        weights = self.score(states).softmax(1)
        return self.fc((weights * states).sum(1))


class TextCNN(nn.Module):
    """Kim, arXiv:1408.5882: windows of several lengths, and the largest of each filter."""

    def __init__(self) -> None:
        """Windows of two to four words."""
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.windows = nn.ModuleList([nn.Conv1d(8, 4, size) for size in (2, 3, 4)])
        self.fc = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classifies texts."""
        h = self.embed(x).transpose(1, 2)
        return self.fc(torch.cat([layer(h).relu().max(2).values for layer in self.windows], 1))


class FastText(nn.Module):
    """Joulin et al., arXiv:1607.01759: the mean of a bag of words."""

    def __init__(self) -> None:
        """Sixteen words."""
        super().__init__()
        self.bag = nn.EmbeddingBag(16, 8, mode="mean")
        self.fc = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classifies bags of as many words."""
        return self.fc(self.bag(x))


class StateSpace(nn.Module):
    """Gu et al., arXiv:2206.11893: a diagonal linear recurrence as a convolution of all steps."""

    def __init__(self) -> None:
        """Four states a channel."""
        super().__init__()
        self.read = nn.Linear(4, 8)
        self.rates = nn.Parameter(torch.linspace(-1.0, 1.0, 32).view(8, 4))
        self.weights = nn.Parameter(torch.linspace(0.5, -0.5, 32).view(8, 4))
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives three numbers a step."""
        u = self.read(x).transpose(1, 2)
        steps = torch.arange(u.shape[2], dtype=u.dtype)
        powers = torch.exp(-F.softplus(self.rates)[..., None] * steps)
        kernel = (self.weights[..., None] * powers).sum(1)
        padded = F.pad(u, (u.shape[2] - 1, 0))
        y = F.conv1d(padded, kernel.flip(1)[:, None], groups=8)
        return self.out(F.gelu((y + u).transpose(1, 2)))


class LinearAttention(nn.Module):
    """Katharopoulos et al., arXiv:2006.16236: attention whose scores are products of features."""

    def __init__(self) -> None:
        """Two heads."""
        super().__init__()
        self.queries = nn.Linear(8, 24, bias=False)
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives eight numbers a step, of it and those before."""
        n, t, _ = x.shape
        q, k, v = self.queries(x).view(n, t, 3, 2, 4).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        scores = torch.einsum("nhtd,nhsd->nhts", q, k) / math.sqrt(4)
        scores = scores * torch.tril(torch.ones(t, t))
        y = scores @ v / scores.sum(-1, keepdim=True)
        return self.out(y.transpose(1, 2).reshape(n, t, 8))
