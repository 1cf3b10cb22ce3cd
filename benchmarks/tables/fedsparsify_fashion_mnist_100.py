"""FedSparsify, Figures 5a, 5c: Fashion-MNIST, 10 of 100 clients, T = 200.

The test accuracy of round 200, IID and with two classes a client.
"""

from benchmarks.tables import _fedsparsify

TABLE = _fedsparsify.of_100_clients("configs/fedsparsify_fashion_mnist.py")
