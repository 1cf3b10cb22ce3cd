"""VGG-16 with batch normalisation (Simonyan and Zisserman, arXiv:1409.1556)."""

from functools import partial

import flax.linen as nn

from sparsefl_jax.models import layers
from sparsefl_jax.models.base import Layers, Model, check_widths, model_of

WIDTHS = (64, 64, 128, 128) + 3 * (256,) + 6 * (512,)
LAST_OF_STAGE = (2, 4, 7, 10, 13)


def vgg16(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    norm: str | None = "batch",
    widths: tuple[int, ...] = WIDTHS,
) -> Model:
    """VGG-16 with one linear head and no convolution biases, 14,724,042 parameters.

    `norm` is 'batch', 'static', 'group' or None.

    Raises:
      ValueError: `norm` is none of these, or `widths` are not 13 positive numbers.
    """
    widths = check_widths(widths, 13)

    def network(x, train, weight):
        init_fn = layers.torch_uniform
        for i, width in enumerate(widths, 1):
            options = {"padding": 1, "use_bias": False, "kernel_init": init_fn}
            x = nn.Conv(width, (3, 3), name=f"conv{i}", **options)(x)
            x = layers.norm(x, norm, name=f"bn{i}", train=train, weight=weight)
            x = nn.relu(x)
            x = nn.max_pool(x, (2, 2), (2, 2)) if i in LAST_OF_STAGE else x
            x = layers.not_empty(x)
        bias_init = partial(layers.torch_bias, fan_in=x.shape[-1])
        head = {"kernel_init": init_fn, "bias_init": bias_init, "name": "fc"}
        return nn.Dense(num_classes, **head)(x.mean((1, 2)))

    return model_of(Layers(network), input_shape)
