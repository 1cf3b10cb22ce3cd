"""VGG-16 with batch normalisation (Simonyan and Zisserman, arXiv:1409.1556)."""

from functools import partial

import flax.linen as nn

from sparsefl_jax.models.base import Model, check_widths, image_model
from sparsefl_jax.models.layers import norm, not_empty, torch_bias, torch_uniform

WIDTHS = (64, 64, 128, 128) + 3 * (256,) + 6 * (512,)
LAST_OF_STAGE = (2, 4, 7, 10, 13)


class _VGG16(nn.Module):
    num_classes: int
    widths: tuple[int, ...]
    norm: str | None

    @nn.compact
    def __call__(self, x, train, weight=None):
        for i, width in enumerate(self.widths, 1):
            options = {"padding": 1, "use_bias": False, "kernel_init": torch_uniform}
            x = nn.Conv(width, (3, 3), name=f"conv{i}", **options)(x)
            x = norm(x, self.norm, name=f"bn{i}", train=train, weight=weight)
            x = nn.relu(x)
            x = nn.max_pool(x, (2, 2), (2, 2)) if i in LAST_OF_STAGE else x
            x = not_empty(x)
        bias_init = partial(torch_bias, fan_in=x.shape[-1])
        head = {"kernel_init": torch_uniform, "bias_init": bias_init, "name": "fc"}
        return nn.Dense(self.num_classes, **head)(x.mean((1, 2)))


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
    module = _VGG16(num_classes, check_widths(widths, 13), norm)
    return image_model(module, input_shape)
