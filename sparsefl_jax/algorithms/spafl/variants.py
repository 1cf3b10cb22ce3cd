"""Where the paper of SpaFL and the released code differ, as named variants.

The code, news-vt/SpaFL_NeruIPS_2024, has one folder for each data set, and the folders
differ from each other too.
"""

from typing import Literal, NamedTuple


class Variant(NamedTuple):
    """How thresholds are trained and how eq. (13) moves weights."""

    divisor: str  # n of eq. (13): the 'inputs' of a filter, or its 'kernel' area
    ste: str  # the estimator of `straight_through.unit_step`
    reset: str  # a dead layer is found by the 'same' forward pass or the 'previous' one
    warmup: bool  # alpha is multiplied by sigmoid(10 round - 5)


VariantName = Literal[
    "paper", "release_fashion_mnist", "release_cifar10", "release_cifar100"
]
VARIANTS = {
    "paper": Variant("inputs", "identity", "same", False),
    "release_fashion_mnist": Variant("kernel", "identity", "previous", True),
    "release_cifar10": Variant("kernel", "window", "previous", False),
    "release_cifar100": Variant("kernel", "window", "previous", True),
}
