"""Reads the rows of FLASH's Tables 3 and 5 from their printed lines."""

import re

from benchmarks.tables import Row, Table

_FIVE = {"algorithm.r_int": 5}
_COLUMNS = {  # what a line prints, by the number of its figures: row, option, overrides
    1: (("fedavg", "fedavg", {}),),
    3: (
        ("hetero_spdst", "hetero_spdst", {}),
        ("hetero_jmwst", "hetero_jmwst", {}),
        ("hetero_jmwst5", "hetero_jmwst", _FIVE),
    ),
    5: (
        ("nst", "nst", {}),
        ("pdst", "pdst", {}),
        ("spdst", "spdst", {}),
        ("jmwst", "jmwst", {}),
        ("jmwst5", "jmwst", _FIVE),
    ),
}


def printed(config: str, lines: str, needs: str = "", **overrides) -> Table:
    """Returns a table with a row for each printed accuracy.

    Args:
      config: a file in configs/.
      lines: alpha, density and accuracies: one of FedAvg; five of NST, PDST, SPDST and
        JMWST with r_int = 1 and 5 (Table 3); or three of hetero-SPDST and hetero-JMWST
        with r_int = 1 and 5 (Table 5). "-" stands for an alpha that the file has none
        of, and for an accuracy that is not printed.
      needs: as in `Row`.
      **overrides: of every row.

    Returns:
      The table in the order of its lines. A row's name ends in `_a` and alpha unless
      that is 0.1, and in `_d` and the hundredths of a density of Table 3 below 0.1.
    """
    rows = {}
    for line in lines.strip().splitlines():
        alpha, density, rest = line.split(maxsplit=2)
        accuracies = re.split(r"\s{2,}", rest)
        for column, paper in zip(_COLUMNS[len(accuracies)], accuracies, strict=True):
            name, method, own = column
            changed = overrides | own
            if alpha not in ("-", "0.1"):
                name += f"_a{alpha}"
                changed = changed | {"partition.alpha": float(alpha)}
            if len(accuracies) == 5 and density != "0.1":
                name += f"_d{density.removeprefix('0.')}"
                changed = changed | {"density": float(density)}
            paper = paper.strip("-")
            rows[name] = Row(f"{config}:{method},release", paper, changed, needs)
    return Table(rows)


_ABLATIONS = {  # row: option, overrides but for an alpha in its name
    # Table 6, d = 0.05: stage 1 off. With it, the row is `jmwst5_d05` of Table 3.
    "jmwst5_no_stage1": ("jmwst,no_stage1", _FIVE | {"density": 0.05}),
    "jmwst5_no_stage1_a1000": ("jmwst,no_stage1", _FIVE | {"density": 0.05}),
    # Table 11: r_int; 1 and 5 are in Table 3.
    "jmwst2": ("jmwst", {"algorithm.r_int": 2}),
    "jmwst10": ("jmwst", {"algorithm.r_int": 10}),
    "jmwst2_a1": ("jmwst", {"algorithm.r_int": 2}),
    "jmwst10_a1": ("jmwst", {"algorithm.r_int": 10}),
    "jmwst2_a1000": ("jmwst", {"algorithm.r_int": 2}),
    "jmwst10_a1000": ("jmwst", {"algorithm.r_int": 10}),
    # Table 12: N:M masks; the paper does not state M.
    "spdst_n_of_m": ("spdst", {"first_stage.group": 10, "density": 0.2}),
    "spdst_n_of_m_a1": ("spdst", {"first_stage.group": 10, "density": 0.2}),
    # Figure 7: c_d clients and E_d epochs of stage 1; 10 and 10 are in Table 3.
    "spdst_c20": ("spdst", {"first_stage.cohort_size": 20}),
    "spdst_e20": ("spdst", {"first_stage.epochs": 20}),
    "spdst_e40": ("spdst", {"first_stage.epochs": 40}),
    "spdst_c20_e20": (
        "spdst",
        {"first_stage.cohort_size": 20, "first_stage.epochs": 20},
    ),
    "spdst_c20_e40": (
        "spdst",
        {"first_stage.cohort_size": 20, "first_stage.epochs": 40},
    ),
    # Figure 9: WFA where FedAvg is usual, and FedAvg where WFA is.
    "jmwst_wfa_a1": ("jmwst", {"algorithm.average": "wfa"}),
    "hetero_jmwst_fedavg_a1": ("hetero_jmwst", {"algorithm.average": "fedavg"}),
    "hetero_spdst_fedavg": ("hetero_spdst", {"algorithm.average": "fedavg"}),
    "hetero_spdst_fedavg_a1": ("hetero_spdst", {"algorithm.average": "fedavg"}),
    "hetero_spdst_fedavg_a1000": ("hetero_spdst", {"algorithm.average": "fedavg"}),
    # Figure 10: ERK in place of stage 1 or of equal densities.
    "pdst_erk": ("pdst", {"algorithm.allocation": "erk"}),
    "pdst_erk_d05": ("pdst", {"algorithm.allocation": "erk", "density": 0.05}),
}


def ablations(
    config: str, papers: dict[str, str], needs: str = "", more: dict | None = None
) -> Table:
    """Returns a table of Tables 6, 11 and 12 and Figures 7, 9 and 10.

    Args:
      config: a file in configs/.
      papers: the printed accuracies of rows, if there are any.
      needs: as in `Row`.
      more: further rows.
    """
    rows = {}
    for name, (option, overrides) in _ABLATIONS.items():
        if alpha := re.search(r"_a(\d+)$", name):
            overrides = overrides | {"partition.alpha": float(alpha[1])}
        paper = papers.get(name, "")
        rows[name] = Row(f"{config}:{option},release", paper, overrides, needs)
    rows |= more or {}
    return Table(rows)
