"""The package's networks in PyTorch, for images [B, C, H, W], as lists of layers."""

from functools import partial

import torch
from torch import nn

gelu = partial(nn.functional.gelu, approximate="tanh")  # as Flax's
relu, inplace, pool = nn.ReLU(), nn.ReLU(inplace=True), nn.MaxPool2d(2)
flatten, conv, fc = nn.Flatten(), nn.LazyConv2d, nn.LazyLinear

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# The kernels that FLASH prunes, by a network's parameter names.
PRUNABLE = {"mnistnet": ("3.weight", "7.weight")}


def mlp(classes: int) -> list:
    return [flatten, fc(128), relu, fc(128), relu, fc(classes)]


def mnistnet(classes: int) -> list:
    layers = []
    for outputs in (10, 20):
        layers += [conv(outputs, 5), nn.MaxPool2d(3, 1), relu]
    return [*layers, flatten, fc(50), relu, fc(classes)]


def lenet5_caffe(classes: int) -> list:
    layers = []
    for outputs in (20, 50):
        layers += [conv(outputs, 5, bias=False), relu, pool]
    return [*layers, flatten, fc(500, bias=False), relu, fc(classes, bias=False)]


def conv4(classes: int) -> list:
    layers = []
    for i, outputs in enumerate((64, 64, 128, 128)):
        layers += [conv(outputs, 5, bias=False), nn.LazyBatchNorm2d(), relu]
        layers += [pool] if i % 2 else []
    layers.append(flatten)
    for _ in range(2):
        layers += [fc(128, bias=False), nn.LazyBatchNorm1d(), relu]
    return [*layers, fc(classes, bias=False)]


def ic(classes: int) -> list:
    layers = [conv(32, 3), relu, pool, conv(64, 3), relu, conv(64, 3), relu, pool]
    return [*layers, flatten, fc(100), relu, fc(classes)]


def femnist_cnn(classes: int) -> list:
    layers = []
    for outputs in (32, 64):
        layers += [conv(outputs, 5, padding=2), relu, pool]
    return [*layers, flatten, fc(2048), relu, fc(classes)]


def fedsparsify_cnn(classes: int) -> list:
    layers = []
    for i, outputs in enumerate((64, 64, 128, 128, 128, 128)):
        layers += [conv(outputs, 3, padding=1), relu]
        layers += [pool] if i % 2 else []
        layers += [nn.LazyBatchNorm2d(1e-3, 0.01)] if i in (1, 3) else []
    return [*layers, flatten, fc(512), relu, nn.Dropout(0.2), fc(classes)]


def simple_cnn(classes: int) -> list:
    layers = [conv(32, 3), relu, conv(64, 3), relu, pool]
    return [*layers, flatten, fc(128), relu, fc(classes)]


def _conv_norm(outputs: int, size: int, stride=1, norm=None) -> list:
    layer = conv(outputs, size, stride, size // 2, bias=False)
    return [layer, norm(outputs) if norm else nn.LazyBatchNorm2d()]


class _Block(nn.Module):
    """Two 3x3 convolutions around a shortcut, 1x1 where the shape changes."""

    def __init__(self, outputs: int, stride: int, norm):
        super().__init__()
        first = _conv_norm(outputs, 3, stride, norm)
        self.inside = nn.Sequential(*first, inplace, *_conv_norm(outputs, 3, norm=norm))
        shortcut = _conv_norm(outputs, 1, stride, norm) if stride > 1 else []
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x):
        return inplace(self.inside(x) + self.shortcut(x))


def _head(classes: int) -> list:
    return [nn.AdaptiveAvgPool2d(1), flatten, fc(classes)]


def resnet18(classes: int, norm=None) -> list:
    layers = [*_conv_norm(64, 3, norm=norm), inplace]
    for outputs in (64, 128, 256, 512):
        stride = 1 if outputs == 64 else 2
        layers += [_Block(outputs, stride, norm), _Block(outputs, 1, norm)]
    return [*layers, *_head(classes)]


def vgg16(classes: int) -> list:
    layers = []
    for outputs, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [*_conv_norm(outputs, 3), inplace]
        layers.append(pool)
    return [*layers, *_head(classes)]


def resnet18_groupnorm(classes: int) -> list:
    return resnet18(classes, norm=lambda width: nn.GroupNorm(32, width))


def separable_cnn(classes: int) -> list:
    layers, inputs = [conv(32, 3, padding=1), relu], 32
    for outputs, stride in ((64, 1), (128, 2), (128, 1)):
        layers += [conv(inputs, 3, stride, 1, groups=inputs), relu]
        layers += [conv(outputs, 1), relu]
        inputs = outputs
    return [*layers, *_head(classes)]


class _GRU(nn.Module):
    """A GRU over the rows of an image of 32 pixels; returns its last state."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(32 * 3, 128, batch_first=True)

    def forward(self, x):
        rows = x.permute(0, 2, 3, 1).flatten(2)  # [B, H, W * C]
        return self.rnn(rows)[0][:, -1]


def gru(classes: int) -> list:
    return [_GRU(), fc(classes)]


class _Transformer(nn.Module):
    """Two blocks over the 4x4 patches of an image; returns the mean."""

    def __init__(self):
        super().__init__()
        self.patches = conv(64, 4, 4)
        self.positions = nn.Parameter(0.02 * torch.randn(64, 64))
        options = {"activation": gelu, "batch_first": True, "norm_first": True}
        block = partial(nn.TransformerEncoderLayer, 64, 4, 256, 0.0, **options)
        self.blocks, self.norm = nn.Sequential(block(), block()), nn.LayerNorm(64)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.norm(self.blocks(x)).mean(1)


def transformer(classes: int) -> list:
    return [_Transformer(), fc(classes)]


def build(name: str, shape, classes: int) -> nn.Module:
    """A network by the package's name for it; `shape` is (H, W, C)."""
    model = nn.Sequential(*globals()[name](classes)).eval()
    with torch.no_grad():  # the layers see how many inputs they have
        model(torch.zeros(2, *shape).permute(0, 3, 1, 2))
    return model.train()


def place(model: nn.Module) -> nn.Module:
    """Puts a network on `DEVICE`, channels-last, with what is fast on a GPU."""
    torch.backends.cuda.matmul.allow_tf32 = True  # as by JAX's default
    torch.backends.cudnn.benchmark = True
    return model.to(DEVICE, memory_format=torch.channels_last).train()


def wait() -> None:
    """Waits for the GPU, if there is one."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def count(model: nn.Module) -> int:
    """Its trained parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
