"""The package's networks in PyTorch, for images [B, C, H, W]."""

from functools import partial

import torch
from torch import nn

gelu = partial(nn.functional.gelu, approximate="tanh")  # as Flax's

# The kernels that FLASH prunes, by a network's parameter names.
PRUNABLE = {"mnistnet": ("3.weight", "7.weight")}


def mlp(channels: int, classes: int) -> nn.Module:
    layers, inputs = [nn.Flatten()], 784 * channels
    for _ in range(2):
        layers += [nn.Linear(inputs, 128), nn.ReLU()]
        inputs = 128
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def mnistnet(channels: int, classes: int) -> nn.Module:
    layers = []
    for inputs, outputs in ((channels, 10), (10, 20)):
        layers += [nn.Conv2d(inputs, outputs, 5), nn.MaxPool2d(3, 1), nn.ReLU()]
    layers += [nn.Flatten(), nn.Linear(5120, 50), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(50, classes))


def lenet5_caffe(channels: int, classes: int) -> nn.Module:
    layers = []
    for inputs, outputs in ((channels, 20), (20, 50)):
        conv = nn.Conv2d(inputs, outputs, 5, bias=False)
        layers += [conv, nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(800, 500, bias=False), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(500, classes, bias=False))


def conv4(channels: int, classes: int) -> nn.Module:
    layers, inputs = [], channels
    for i, outputs in enumerate((64, 64, 128, 128)):
        conv = nn.Conv2d(inputs, outputs, 5, bias=False)
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if i % 2 else []
        inputs = outputs
    layers, inputs = [*layers, nn.Flatten()], 512
    for _ in range(2):
        fc = nn.Linear(inputs, 128, bias=False)
        layers += [fc, nn.BatchNorm1d(128), nn.ReLU()]
        inputs = 128
    return nn.Sequential(*layers, nn.Linear(inputs, classes, bias=False))


def ic(channels: int, classes: int) -> nn.Module:
    layers, inputs = [], channels
    for i, outputs in enumerate((32, 64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3), nn.ReLU()]
        layers += [] if i == 1 else [nn.MaxPool2d(2)]
        inputs = outputs
    layers += [nn.Flatten(), nn.Linear(1024, 100), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(100, classes))


def femnist_cnn(channels: int, classes: int) -> nn.Module:
    layers = []
    for inputs, outputs in ((channels, 32), (32, 64)):
        conv = nn.Conv2d(inputs, outputs, 5, padding=2)
        layers += [conv, nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(3136, 2048), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(2048, classes))


def fedsparsify_cnn(channels: int, classes: int) -> nn.Module:
    layers, inputs = [], channels
    for i, outputs in enumerate((64, 64, 128, 128, 128, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if i % 2 else []
        layers += [nn.BatchNorm2d(outputs, 1e-3, 0.01)] if i in (1, 3) else []
        inputs = outputs
    layers += [nn.Flatten(), nn.Linear(2048, 512), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(512, classes))


def simple_cnn(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12544, 128), nn.ReLU()),
        nn.Linear(128, classes),
    )


def _conv_norm(inputs: int, outputs: int, size: int, stride=1, norm=None) -> list:
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return [conv, (norm or nn.BatchNorm2d)(outputs)]


class _Block(nn.Module):
    """Two 3x3 convolutions around a shortcut, 1x1 where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm=None):
        super().__init__()
        self.inside = nn.Sequential(
            *_conv_norm(inputs, outputs, 3, stride, norm),
            nn.ReLU(inplace=True),
            *_conv_norm(outputs, outputs, 3, norm=norm),
        )
        changes = stride > 1 or inputs != outputs
        self.shortcut = nn.Sequential(
            *(_conv_norm(inputs, outputs, 1, stride, norm) if changes else [])
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.inside(x) + self.shortcut(x))


def _head(inputs: int, classes: int) -> list:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]


def resnet18(channels: int, classes: int, norm=None) -> nn.Module:
    layers = [*_conv_norm(channels, 64, 3, norm=norm), nn.ReLU(inplace=True)]
    inputs = 64
    for stage, outputs in enumerate((64, 128, 256, 512)):
        layers.append(_Block(inputs, outputs, 2 if stage else 1, norm))
        layers.append(_Block(outputs, outputs, 1, norm))
        inputs = outputs
    return nn.Sequential(*layers, *_head(512, classes))


def vgg16(channels: int, classes: int) -> nn.Module:
    layers, inputs = [], channels
    for outputs, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [*_conv_norm(inputs, outputs, 3), nn.ReLU(inplace=True)]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, *_head(512, classes))


def strided_cnn(channels: int, classes: int) -> nn.Module:
    layers, inputs = [], channels
    for outputs in (16, 32, 64):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, *_head(64, classes))


def groupnorm_cnn(channels: int, classes: int) -> nn.Module:
    layers, inputs = [], channels
    for outputs in (16, 32, 64):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        inputs = outputs
    layers += [nn.Flatten(), nn.Linear(1024, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, classes))


def resnet18_groupnorm(channels: int, classes: int) -> nn.Module:
    return resnet18(channels, classes, norm=lambda width: nn.GroupNorm(32, width))


def separable_cnn(channels: int, classes: int) -> nn.Module:
    layers, inputs = [nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU()], 32
    for outputs, stride in ((64, 1), (128, 2), (128, 1)):
        depthwise = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs)
        layers += [depthwise, nn.ReLU(), nn.Conv2d(inputs, outputs, 1), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, *_head(128, classes))


class _GRU(nn.Module):
    """A GRU over the rows of an image, and a layer on its last state."""

    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.rnn = nn.GRU(32 * channels, 128, batch_first=True)
        self.fc = nn.Linear(128, classes)

    def forward(self, x):
        rows = x.permute(0, 2, 3, 1).flatten(2)  # [B, H, W * C]
        return self.fc(self.rnn(rows)[0][:, -1])


def gru(channels: int, classes: int) -> nn.Module:
    return _GRU(channels, classes)


class _Transformer(nn.Module):
    """Two blocks over the 4x4 patches of an image."""

    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.patches = nn.Conv2d(channels, 64, 4, 4)
        self.positions = nn.Parameter(0.02 * torch.randn(64, 64))
        options = {"activation": gelu, "batch_first": True, "norm_first": True}
        block = partial(nn.TransformerEncoderLayer, 64, 4, 256, 0.0, **options)
        self.blocks = nn.Sequential(block(), block())
        self.norm, self.fc = nn.LayerNorm(64), nn.Linear(64, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.fc(self.norm(self.blocks(x)).mean(1))


def transformer(channels: int, classes: int) -> nn.Module:
    return _Transformer(channels, classes)


def build(name: str, shape, classes: int) -> nn.Module:
    """A network by the package's name for it; `shape` is (H, W, C)."""
    return globals()[name](shape[-1], classes)


def count(model: nn.Module) -> int:
    """Its parameters."""
    return sum(p.numel() for p in model.parameters())
