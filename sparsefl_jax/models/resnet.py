"""ResNet-18 for small images, with a 3x3 stem and only global pooling.

He et al., CVPR 2016, arXiv:1512.03385. The pre-activation blocks are those of
arXiv:1603.05027, as in SpaFL's official code.
"""

from collections.abc import Callable
from functools import partial

import flax.linen as nn

from sparsefl_jax.core.check import check
from sparsefl_jax.models import layers
from sparsefl_jax.models.base import Layers, Model, check_widths, model_of

VARIANTS = ("postactivation", "preactivation")
# FLASH uses Xavier-uniform with gain 0.5, which has a quarter of the variance.
XAVIER_HALF = nn.initializers.variance_scaling(0.25, "fan_avg", "uniform")
# SparsyFed draws N(0, 1 / fan_in), cut off at two standard deviations.
LECUN = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
ZEROS = nn.initializers.zeros
# The initialisers of convolutions and of the head's kernel and bias.
INITS = {
    "flash": (XAVIER_HALF, nn.initializers.normal(0.01), ZEROS),
    "torch": (layers.torch_uniform, layers.torch_uniform, None),
    "lecun_truncated": (LECUN, LECUN, ZEROS),
}


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is 1x1 if the shape changes."""

    features: int
    inner: int  # outputs of conv1, which only conv2 reads
    stride: int
    variant: str
    norm: str | None
    init_fn: Callable

    @nn.compact
    def __call__(self, x, train, weight):
        norm = partial(layers.norm, kind=self.norm, train=train, weight=weight)

        def norm_relu(x, name):
            return nn.relu(norm(x, name=name))

        def conv(x, size, name, stride=1, features=self.features):
            window = {"strides": stride, "padding": size // 2, "use_bias": False}
            options = {"kernel_init": self.init_fn, "name": name, **window}
            return nn.Conv(features, (size, size), **options)(x)

        changes = self.stride > 1 or x.shape[-1] != self.features
        if self.variant == "preactivation":  # static branch
            y = norm_relu(x, "bn1")
            shortcut = conv(y, 1, "shortcut", self.stride) if changes else x
            y = norm_relu(conv(y, 3, "conv1", self.stride, self.inner), "bn2")
            return conv(y, 3, "conv2") + shortcut
        y = norm_relu(conv(x, 3, "conv1", self.stride, self.inner), "bn1")
        y = norm(conv(y, 3, "conv2"), name="bn2")
        if changes:
            x = norm(conv(x, 1, "shortcut", self.stride), name="shortcut_bn")
        return nn.relu(y + x)


def resnet18(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    base: int = 64,
    stages: int = 4,
    widths: tuple[int, ...] | None = None,
    variant: str = "postactivation",
    norm: str | None = "batch",
    init: str = "flash",
) -> Model:
    """ResNet-18 with a 3x3 stem, 11,173,962 parameters (base 64, 10 classes).

    `base=32, variant='preactivation', init='torch'` is the network of SpaFL's official
    code; `base=16, stages=3`, of 175,258 parameters, is the network that FedPruning's
    framework calls `resnet18`.

    Args:
      num_classes: the outputs of the last layer.
      input_shape: (H, W, C).
      base: the channels of the first stage; each further stage doubles them.
      stages: the number of stages, of two blocks each.
      widths: the channels between the two convolutions of each block, eight in four
        stages; None for as many as the block has outside.
      variant: a name in `VARIANTS`.
      norm: 'batch', 'static', 'group' or None.
      init: 'flash' (Xavier-uniform with gain 0.5, head normal of deviation 0.01),
        'torch', or 'lecun_truncated' (SparsyFed: truncated normal of variance
        1 / fan_in).

    Raises:
      ValueError: an argument is unknown or out of range.
    """
    check("base", base, "[1, inf)")
    check("stages", stages, "[1, inf)")
    check("variant", variant, VARIANTS)
    check("init", init, INITS)
    outside = tuple(base * 2 ** (block // 2) for block in range(2 * stages))
    widths = outside if widths is None else check_widths(widths, 2 * stages)

    def network(x, train, weight):
        conv_init, head_init, bias_init = INITS[init]
        options = {"padding": 1, "use_bias": False, "kernel_init": conv_init}
        x = nn.Conv(base, (3, 3), name="conv1", **options)(x)
        x = layers.norm(x, norm, name="bn1", train=train, weight=weight)
        x = nn.relu(x)
        for i, shape in enumerate(zip(outside, widths, strict=True)):
            stage, block = divmod(i, 2)
            stride = 2 if stage > 0 and block == 0 else 1
            options = variant, norm, conv_init
            name = f"layer{stage + 1}_block{block}"
            x = _Block(*shape, stride, *options, name=name)(x, train, weight)
        bias_init = bias_init or partial(layers.torch_bias, fan_in=x.shape[-1])
        head = {"kernel_init": head_init, "bias_init": bias_init, "name": "fc"}
        return nn.Dense(num_classes, **head)(x.mean((1, 2)))

    return model_of(Layers(network), input_shape)
