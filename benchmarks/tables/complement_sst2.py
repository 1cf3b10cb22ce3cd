"""Complement Sparsification, Figures 2, 3, 6, 8, Tables 2, 4: SA, T = 500.

SST-2 with hashed letters replaces tweets, whose figures are printed: 10 of 400 clients
a round, or all. Accuracy is that of the pruned model on the validation sentences, best
round.
"""

from benchmarks.tables import _complement

_CONFIG, _EVERYONE = "configs/complement_sst2.py", {"cohort_size": 400}
_ALL = _complement.rows(_CONFIG, _complement.SA_ALL, overrides=_EVERYONE)
_ROWS = _complement.rows(_CONFIG, _complement.SA)
_ROWS |= {f"all_{name}": row for name, row in _ALL.items()}

TABLE = _complement.table(_ROWS, "sa", 2, (768,), seeds=3)
