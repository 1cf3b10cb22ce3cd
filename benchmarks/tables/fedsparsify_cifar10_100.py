"""FedSparsify, Figures 5b, 5d: CIFAR-10, 10 of 100 clients, T = 200.

The test accuracy of round 200, IID and with five classes a client.
"""

from benchmarks.tables import _fedsparsify

TABLE = _fedsparsify.of_100_clients("configs/fedsparsify_cifar10.py")
