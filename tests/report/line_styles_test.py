"""Lines of a comparison's figures are named at their ends."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from sparsefl_jax.report import figure


@pytest.mark.parametrize("ends", [[0.5] * 9, [0.0, 0.1, 0.11, 0.9, 1.0], [0.97, 1.0]])
def test_names_keep_apart_and_on_the_page(ends):
    sizes = np.full(len(ends), 0.08)
    places = figure.apart(ends, sizes)
    assert np.all(np.diff(places) >= 0.08 - 1e-12) and places[-1] <= 1.0
    assert np.abs(places - ends).max() <= 0.08 * len(ends)


def test_every_line_is_named_beside_its_end():
    ax = Figure(figsize=(4.9, 3.3)).subplots()
    ax.plot([0, 1], [0.0, 1.0], label="up", color="#0072b2")
    ax.plot([0, 1, 2], [1.0, 0.5, 0.0], label="down, a very long name of a method")
    ax.plot([0, 1], [0.5, 0.5], label="_$x$")  # which legends would leave out
    ax.plot([0], [0.5])
    ax.plot([0], [0.5], label="")
    figure.name_lines(ax)
    named = {text.get_text().replace("\n", " "): text.xy for text in ax.texts}
    down = "down, a very long name of a method"
    assert named == {"up": (1, 1), r"_\$x\$": (1, 0.5), down: (2, 0)}
    high, _, low = (
        text.xyann[1] for text in sorted(ax.texts, key=lambda t: -t.xyann[1])
    )
    assert high - low > 0.5


@pytest.mark.usefixtures("drawn")
def test_equal_figures_are_equal_files(tmp_path):
    paths = [tmp_path / name for name in ("a.svg", "b.svg")]
    for path in paths:
        with figure.axes(path, "round", "accuracy [%]") as ax:
            ax.plot([0, 1], [0.0, 1.0])
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_figure_grows_with_its_names():
    ax = Figure(figsize=(4.9, 3.3)).subplots()
    for i in range(30):
        ax.plot([0, 1], [0, i], label=f"line {i}")
    figure.name_lines(ax)
    assert ax.figure.get_size_inches()[1] >= 30 * 0.15
