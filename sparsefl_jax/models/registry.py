"""The networks by name."""

import inspect
from typing import Any

from sparsefl_jax.core.algorithm import method
from sparsefl_jax.core.check import blame, check
from sparsefl_jax.core.lookup import look_up
from sparsefl_jax.models import cnn, mlp, recurrent, resnet, transformer
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
        cnn.vgg16,
        recurrent.char_gru,
        transformer.encoder,
        transformer.pretrained_encoder,
    )
}


@method
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
      name: a key of `MODELS`, or `module:function` for a network of your own: a
        function `(num_classes, input_shape, **kwargs) -> Model`.
      num_classes: the outputs of the last layer.
      input_shape: the shape of one sample, (H, W, C), (D,) or, of tokens, (T,).
      dtype: the dtype to compute in, 'float32' or 'bfloat16', see `Model.with_dtype`.
      **kwargs: keyword arguments of the model's factory.

    Returns:
      A `Model`.

    Raises:
      ValueError: the name, the dtype or a keyword is unknown, a network of your own
        is no `Model`, or images are too small.

    Example:
      >>> model = build("mlp", 10, (28, 28, 1))
      >>> model.macs["fc3"]
      {'bias': 0, 'kernel': 1280}
    """
    factory = look_up("model", name, MODELS)
    signature = inspect.signature(factory)
    with blame(f"model={name!r} takes {', '.join(signature.parameters)}"):
        signature.bind(num_classes, input_shape, **kwargs)
    model = factory(num_classes, input_shape, **kwargs)
    check(f"{name}(...)", model, Model)
    return model.with_dtype(dtype)
