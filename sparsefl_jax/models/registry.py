"""The networks by name."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.algorithm import method
from sparsefl_jax.core.check import UserError, blame, check
from sparsefl_jax.core.lookup import look_up
from sparsefl_jax.models import cnn, mlp, recurrent, resnet, transformer
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.loss import cross_entropy

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
    outputs: tuple | None = None,
    **kwargs: Any,
) -> Model:
    """Builds a model by its name.

    Args:
      name: a key of `MODELS`, or `module:function` for a network of your own: a
        function `(num_classes, input_shape, **kwargs) -> Model`.
      num_classes: the outputs of the last layer.
      input_shape: the shape of one sample, (H, W, C), (D,) or, of tokens, (T,).
      dtype: the dtype to compute in, 'float32' or 'bfloat16', see `Model.with_dtype`.
      outputs: mean and deviation of the targets of a regression, see
        `Model.with_outputs`.
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
    model = model.with_dtype(dtype)
    return model if outputs is None else model.with_outputs(*outputs)


def try_network(data, make: Callable[[], Model], name: str = "the network") -> Model:
    """Makes a network and passes one sample through it and its loss, by shape.

    Args:
      data: the samples, a `FederatedData`.
      make: `() -> Model`, for samples of this shape.
      name: of the network, in messages.

    Returns:
      The network.

    Raises:
      ValueError: `make` or the network fails; raised before any compilation.

    Example:
      >>> import numpy as np
      >>> from sparsefl_jax import from_arrays, models
      >>> x, y = np.ones((8, 5), np.float32), np.arange(8) % 2
      >>> data = from_arrays(x, y, num_clients=2, x_test=x, y_test=y)
      >>> try_network(data, lambda: models.build("conv4", 2, (5,)), "conv4")
      Traceback (most recent call last):
      sparsefl_jax.UserError: conv4 on samples of float32 [5]: conv_general_dilated lhs
      and rhs must
      have the same number of dimensions, but got (1, 5) and (5, 5, 5, 64).
    """
    x, y = (jax.ShapeDtypeStruct((1, *v.shape[1:]), v.dtype) for v in (data.x, data.y))

    def loss(key, x, y):
        if y.dtype.kind != "i" and model.loss is cross_entropy:
            raise UserError(f"y is {y.dtype}, expected models.for_task(model, data)")
        logits, _ = model.apply(*model.init(key), x, train=False)
        return model.loss(logits, y, jnp.ones(1))

    with blame(f"{name} on samples of {x.dtype} {list(x.shape[1:])}"):
        model = make()
        jax.eval_shape(loss, jax.random.key(0), x, y)
    if x.dtype == np.int32 and not model.tokens:
        told = "integers are read as numbers that are not standardised"
        warnings.warn(f"{name}: {told}; pass floats if columns differ", stacklevel=2)
    return model
