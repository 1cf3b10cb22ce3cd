"""Complement Sparsification, Figure 4: SA, 10 clients a round, T = 500.

SST-2 with hashed letters replaces tweets. Accuracy is that of the pruned model on the
validation sentences, best round; the paper's figures are those of tweets.
"""

from benchmarks.tables import Row, Table

_CONFIG = "configs/complement_sst2.py"

TABLE = Table(
    rows={
        "fedavg": Row(f"{_CONFIG}:fedavg", "76.9"),
        "cs0.5": Row(f"{_CONFIG}:cs", "74.3", {"density": 0.5}),
        "cs0.9": Row(f"{_CONFIG}:cs", "", {"density": 0.1}),
    },
    best=True,
)
