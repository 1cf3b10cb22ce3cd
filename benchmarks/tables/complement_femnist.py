"""Complement Sparsification, Figures 4, 5, 7, 9, Tables 3, 5: FEMNIST, IC, T = 500.

10 users a round. Accuracy is that of the pruned model on all held-out samples, best
round.
"""

from benchmarks.tables import _complement

_ROWS = _complement.rows(
    "configs/complement_femnist.py", _complement.IC, needs="FEMNIST"
)

TABLE = _complement.table(_ROWS, "ic", 62, (28, 28, 1))
