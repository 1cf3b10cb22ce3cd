"""Complement Sparsification, Figures 2, 3, 6, 8, Tables 2, 4: tweets, SA, T = 500.

10 of 436 users a round, or all. The letters of a tweet are hashed; the paper has the
features of a DistilBERT. Accuracy is that of the pruned model on all held-out tweets,
best round.
"""

from benchmarks.tables import _complement

_CONFIG, _NEEDS = "configs/complement_twitter.py", "Sentiment140"
_ALL = _complement.rows(_CONFIG, _complement.SA_ALL, "all", needs=_NEEDS)
_ROWS = _complement.rows(_CONFIG, _complement.SA, "users10", needs=_NEEDS)
_ROWS |= {f"all_{name}": row for name, row in _ALL.items()}

TABLE = _complement.table(_ROWS, "sa", 3, (768,))
