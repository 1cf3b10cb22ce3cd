"""The FLOPs that Complement Sparsification saves, as its paper counts them.

Jiang and Borcea, AAAI 2023, https://arxiv.org/abs/2303.06237, Tables 4 and 5.
"""


def complement_flops(macs: int, outputs: int) -> int:
    """Views one sample's FLOPs through a dense layer, as Complement Sparsification.

    The forward pass and the derivatives of hidden state and weights take 2 MAC + n_out
    each.

    Args:
      macs: multiply-adds of one sample through the layer.
      outputs: n_out, its outputs.

    Example:
      >>> complement_flops(96, 3)
      585
    """
    return 3 * (2 * macs + outputs)


def complement_saving(
    macs: int, outputs: int, density: float, client_density: float
) -> float:
    """Views the share of `complement_flops` that Complement Sparsification saves.

    Tables 4 and 5 charge the forward pass at the server's density, the derivative of
    the hidden state in full, and that of the weights at the sum of both densities,
    although a client's weights are dense after its first step.

    Args:
      macs: multiply-adds of one sample through the layer.
      outputs: its outputs, of which each has a bias.
      density: 1 - p, of the server's model.
      client_density: 1 - c, of what the client sends.

    Example:
      >>> round(complement_saving(96, 3, 0.5, 0.113), 3)
      0.291
    """
    saved = 2 * macs * (2 - 2 * density - client_density)
    return saved / complement_flops(macs, outputs)
