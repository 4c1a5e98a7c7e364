"""Networks of images as users of PyTorch bring them, written from their papers, small."""

import torch
from torch import nn
from torch.nn import functional as F


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """A convolution with its norm and activation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU()
    )


class UNet(nn.Module):
    """Ronneberger et al., arXiv:1505.04597: halves, doubles, and sets what it had beside."""

    def __init__(self) -> None:
        """Two scales."""
        super().__init__()
        self.down = nn.ModuleList([_block(3, 8), _block(8, 16)])
        self.middle = _block(16, 16)
        self.up = nn.ModuleList([nn.ConvTranspose2d(16, 16, 2, 2), nn.ConvTranspose2d(8, 8, 2, 2)])
        self.joined = nn.ModuleList([_block(32, 8), _block(16, 8)])
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives two numbers a pixel."""
        kept = []
        for layer in self.down:
            kept.append(layer(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.middle(x)
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat([up(x), kept.pop()], 1))
        return self.out(x)


class YOLO(nn.Module):
    """A detector of one scale, with the blocks of YOLOv8 and its boxes by anchors."""

    def __init__(self) -> None:
        """A stem, one C2f and one SPPF."""
        super().__init__()
        self.stem = nn.Sequential(_block(3, 8, 2), _block(8, 16, 2))
        self.inner = nn.ModuleList([_block(8, 8), _block(8, 8)])
        self.merge = _block(32, 16)
        self.pools = nn.MaxPool2d(5, 1, 2)
        self.spread = nn.Conv2d(64, 16, 1)
        self.head = nn.Conv2d(16, 4 + 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gives boxes in pixels, and the probabilities of three classes."""
        x = self.stem(x)
        parts = list(x.chunk(2, 1))
        parts.extend(layer(parts[-1]) for layer in self.inner)
        x = self.merge(torch.cat(parts, 1))
        pooled = [x]
        pooled.extend(self.pools(pooled[-1]) for _ in range(3))
        y = self.head(self.spread(torch.cat(pooled, 1)))
        rows, columns = (torch.arange(size) + 0.5 for size in y.shape[2:])
        centers = torch.stack(torch.meshgrid(columns, rows, indexing="xy")).flatten(1)
        strides = y.new_full((1, centers.shape[1]), 4.0)
        box, classes = y.flatten(2).split([4, 3], 1)
        low, high = centers - box[:, :2].relu(), centers + box[:, 2:].relu()
        return torch.cat([(low + high) / 2 * strides, (high - low) * strides, classes.sigmoid()], 1)


class DQN(nn.Module):
    """Wang et al., arXiv:1511.06581: a value and advantages of actions."""

    def __init__(self) -> None:
        """Four frames, six actions."""
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 16, 4, 2), nn.ReLU(), nn.Flatten()
        )
        self.value = nn.Sequential(nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, 1))
        self.advantage = nn.Sequential(nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Values every action."""
        h = self.body(x)
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(1, keepdim=True)


class ConvLSTM(nn.Module):
    """Shi et al., arXiv:1506.04214: gates that are convolutions, over frames."""

    def __init__(self) -> None:
        """Eight channels of state."""
        super().__init__()
        self.gates = nn.Conv2d(1 + 8, 32, 3, padding=1)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Reads [batch, frames, 1, rows, columns] and gives the next frame."""
        h = c = x.new_zeros(x.shape[0], 8, *x.shape[3:])
        for frame in x.unbind(1):
            i, f, o, g = self.gates(torch.cat([frame, h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.out(h)


class SEResNeXt(nn.Module):
    """Groups of channels, which are weighed by what all of them are on average."""

    def __init__(self) -> None:
        """One block of four groups."""
        super().__init__()
        self.stem = _block(3, 16)
        self.grouped = nn.Conv2d(16, 16, 3, padding=1, groups=4, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.squeeze = nn.Linear(16, 4)
        self.excite = nn.Linear(4, 16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classifies images."""
        x = self.stem(x)
        y = self.norm(self.grouped(x))
        weights = self.excite(self.squeeze(y.mean((2, 3))).relu()).sigmoid()
        x = (x + y * weights[:, :, None, None]).relu()
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class SqueezeNet(nn.Module):
    """Iandola et al., arXiv:1602.07360: narrow, then wide by two sizes of window."""

    def __init__(self) -> None:
        """One fire module."""
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2)
        self.narrow = nn.Conv2d(8, 4, 1)
        self.small, self.large = nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 3, padding=1)
        self.out = nn.Conv2d(16, 10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classifies images."""
        x = F.max_pool2d(self.stem(x).relu(), 3, 2, ceil_mode=True)
        x = self.narrow(x).relu()
        x = torch.cat([self.small(x).relu(), self.large(x).relu()], 1)
        return self.out(x).mean((2, 3))


class VQVAE(nn.Module):
    """van den Oord et al., arXiv:1711.00937: the nearest row of a table, with slopes of one."""

    def __init__(self) -> None:
        """A table of 16 rows of four numbers."""
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 4, 4, 2, 1))
        self.table = nn.Embedding(16, 4)
        self.up = nn.ConvTranspose2d(4, 8, 4, 2, 1)
        self.out = nn.ConvTranspose2d(8, 1, 4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Makes the image again of what its places are in the table."""
        z = self.encoder(x).permute(0, 2, 3, 1)
        distances = torch.cdist(z.reshape(1, -1, 4), self.table.weight[None])[0]
        nearest = self.table(distances.argmin(1)).view_as(z)
        z = z + (nearest - z).detach()
        return self.out(self.up(z.permute(0, 3, 1, 2)).relu()).sigmoid()


class Volume(nn.Module):
    """A network of scans in three dimensions, with group norms."""

    def __init__(self) -> None:
        """Two convolutions."""
        super().__init__()
        self.first = nn.Conv3d(1, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.second = nn.Conv3d(8, 8, 3, stride=2, padding=1)
        self.fc = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classifies volumes."""
        x = F.leaky_relu(self.norm(self.first(x)), 0.1)
        return self.fc(F.avg_pool3d(self.second(x).relu(), 2).amax((2, 3, 4)))
