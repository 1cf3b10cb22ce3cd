"""Complement Sparsification, Figures 4, 5, 7, 9, Tables 3, 5: FEMNIST, IC, T = 500.

10 users a round. Accuracy is that of the pruned model on all held-out samples, best
round.
"""

from benchmarks.tables import Table, _complement

_ROWS = _complement.rows(
    "configs/complement_femnist.py", _complement.IC, needs="FEMNIST"
)

TABLE = Table(
    rows=_ROWS,
    seeds=1,
    best=True,
    columns=_complement.SHOWN,
    extra=_complement.emergent("ic", 62, (28, 28, 1)),
)
