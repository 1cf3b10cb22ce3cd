"""VGG-16 with batch normalisation (Simonyan and Zisserman, arXiv:1409.1556)."""

import flax.linen as nn

from sparsefl_jax.models.base import Model, image_model
from sparsefl_jax.models.layers import conv, dense, max_pool, norm

STAGES = ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3)


class _VGG16(nn.Module):
    num_classes: int
    norm: str | None
    lowering: str

    @nn.compact
    def __call__(self, x, train, weight=None):
        count = 0
        for widths in STAGES:
            for width in widths:
                count += 1
                name = f"conv{count}"
                x = conv(x, width, 3, name=name, pad=1, lowering=self.lowering)
                name = f"bn{count}"
                x = norm(x, self.norm, name=name, train=train, weight=weight)
                x = nn.relu(x)
            x = max_pool(x)
        return dense(x.mean((1, 2)), self.num_classes, name="fc")


def vgg16(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    norm: str | None = "batch",
    lowering: str = "auto",
) -> Model:
    """VGG-16 with one linear head and no convolution biases, 14,724,042 parameters."""
    return image_model(_VGG16(num_classes, norm, lowering), input_shape)
