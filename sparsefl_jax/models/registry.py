"""The networks by name."""

import inspect
from typing import Any

from sparsefl_jax.core.validate import one_of
from sparsefl_jax.models import cnn, mlp, resnet, vgg
from sparsefl_jax.models.base import Model

MODELS = {
    factory.__name__: factory
    for factory in (
        mlp.mlp,
        cnn.mnistnet,
        cnn.lenet5_caffe,
        cnn.conv4,
        cnn.ic,
        cnn.fedsparsify_cnn,
        mlp.sa,
        cnn.femnist_cnn,
        cnn.simple_cnn,
        cnn.small_cnn,
        resnet.resnet18,
        vgg.vgg16,
    )
}


def build(
    name: str,
    num_classes: int,
    input_shape: tuple[int, ...],
    *,
    dtype: str = "float32",
    **kwargs: Any,
) -> Model:
    """Builds a model by its name.

    Args:
      name: a key of `MODELS`.
      num_classes: the outputs of the last layer.
      input_shape: the shape of one sample, (H, W, C) or (D,).
      dtype: the dtype to compute in, 'float32' or 'bfloat16', see `Model.computing`.
      **kwargs: keyword arguments of the model's factory.

    Returns:
      A `Model`.

    Raises:
      ValueError: the name, the dtype or a keyword is unknown, or images are too small.

    Example:
      >>> model = build("mlp", 10, (28, 28, 1))
      >>> model.macs["fc3"]
      {'bias': 0, 'kernel': 1280}
    """
    one_of("model", name, MODELS)
    parameters = inspect.signature(MODELS[name]).parameters.values()
    allowed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for argument in kwargs:
        one_of(f"argument of model {name}", argument, (*allowed, "dtype"))
    return MODELS[name](num_classes, input_shape, **kwargs).computing(dtype)
