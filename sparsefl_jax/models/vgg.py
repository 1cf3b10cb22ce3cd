"""VGG-16 with batch normalisation (Simonyan and Zisserman, arXiv:1409.1556)."""

import flax.linen as nn

from sparsefl_jax.models.base import Model, check_widths, image_model
from sparsefl_jax.models.layers import conv, dense, max_pool, norm

WIDTHS = (64, 64, 128, 128) + 3 * (256,) + 6 * (512,)
LAST_OF_STAGE = (2, 4, 7, 10, 13)


class _VGG16(nn.Module):
    num_classes: int
    widths: tuple[int, ...]
    norm: str | None
    lowering: str

    @nn.compact
    def __call__(self, x, train, weight=None):
        for i, width in enumerate(self.widths, 1):
            x = conv(x, width, 3, name=f"conv{i}", pad=1, lowering=self.lowering)
            x = norm(x, self.norm, name=f"bn{i}", train=train, weight=weight)
            x = nn.relu(x)
            x = max_pool(x) if i in LAST_OF_STAGE else x
        return dense(x.mean((1, 2)), self.num_classes, name="fc")


def vgg16(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    norm: str | None = "batch",
    widths: tuple[int, ...] = WIDTHS,
    lowering: str = "auto",
) -> Model:
    """VGG-16 with one linear head and no convolution biases, 14,724,042 parameters.

    `norm` is 'batch', 'static', 'group' or None.

    Raises:
      ValueError: `norm` is none of these, or `widths` are not 13 positive numbers.
    """
    module = _VGG16(num_classes, check_widths(widths, 13), norm, lowering)
    return image_model(module, input_shape)
