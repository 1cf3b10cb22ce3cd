"""FLASH, Tables 3 to 5: FEMNIST, LEAF's CNN, 34 of 3400 users a round, T = 1000.

At d = 0.05 Table 3 repeats CIFAR-100's row of alpha = 0.1, digit for digit; Table 4 has
another figure for SPDST, 81.18, and that is the one here.
"""

from benchmarks.tables import _flash

PRINTED = """
-    1     84.68 ± 0.20
-    0.1   76.92 ± 0.42  76.01 ± 1.26  82.70 ± 0.26  83.02 ± 0.21  83.40 ± 0.26
-    0.05  -  -  81.18 ± 0.36  -  -
-    0.2   82.58 ± 0.24  82.20 ± 0.42  82.50 ± 0.55
"""

TABLE = _flash.printed("configs/flash_femnist.py", PRINTED, "FEMNIST")
