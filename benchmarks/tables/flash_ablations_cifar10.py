"""FLASH, Tables 4, 6, 8, 11, 12 and Figures 7, 9, 10, 11 (b): CIFAR-10, ResNet-18.

Only rows that Tables 3 and 5 (`flash_cifar10`) lack. The figures print no numbers.
Table 4 quotes the best of ZeroFL's three uplinks from its paper. With r_int = 5 and
alpha = 0.1 Table 11 prints 75.47 ± 1.08, Table 3 75.47 ± 1.18.
"""

from benchmarks.tables import Row, _flash

_PRINTED = {
    "jmwst5_no_stage1": "74.70 ± 1.70",
    "jmwst5_no_stage1_a1000": "86.93 ± 0.10",
    "jmwst2": "73.73 ± 1.18",
    "jmwst10": "77.14 ± 0.22",
    "jmwst2_a1": "86.26 ± 0.07",
    "jmwst10_a1": "86.68 ± 0.25",
    "jmwst2_a1000": "87.76 ± 0.07",
    "jmwst10_a1000": "87.67 ± 0.09",
    "spdst_n_of_m": "77.64",
    "spdst_n_of_m_a1": "86.96",
}
_GPU = "a GPU, or 10 hours"
_CONFIG, _ZEROFL = "configs/flash_cifar10.py", "configs/zerofl_cifar10.py"
_D05, _IID = {"density": 0.05}, {"partition.alpha": 1000.0}
_STATIC = {"model.norm": "static"}
_MORE = {
    # Table 8
    "fedspa": Row(f"{_CONFIG}:fedspa,release", "73.08", _D05, _GPU),
    "fedspa_a1000": Row(f"{_CONFIG}:fedspa,release", "85.63", _D05 | _IID, _GPU),
    "fedspa_dst": Row(f"{_CONFIG}:fedspa_dst,release", "73.08", _D05, _GPU),
    "fedspa_dst_a1000": Row(
        f"{_CONFIG}:fedspa_dst,release", "85.63", _D05 | _IID, _GPU
    ),
    # Table 4
    "zerofl_iid": Row(f"{_ZEROFL}:top_of_diff,iid", "82.71 ± 0.37", {}, _GPU),
    "zerofl_iid_d05": Row(f"{_ZEROFL}:diff_on_top,iid", "78.22 ± 0.35", _D05, _GPU),
    "zerofl_a1": Row(f"{_ZEROFL}:weights", "81.04 ± 0.28", {}, _GPU),
    "zerofl_a1_d05": Row(f"{_ZEROFL}:weights", "75.54 ± 1.15", _D05, _GPU),
    # Figure 11 (b)
    "fedavg_static": Row(f"{_CONFIG}:fedavg,release", "", _STATIC, _GPU),
    "spdst_static": Row(f"{_CONFIG}:spdst,release", "", _STATIC, _GPU),
}

TABLE = _flash.ablations(_CONFIG, _PRINTED, _GPU, _MORE)
