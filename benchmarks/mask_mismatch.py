"""Draws FLASH's mask mismatch as a page of figures, from four small runs.

    python -m benchmarks.mask_mismatch                    # some minutes on two cores
    python -m benchmarks.mask_mismatch --rounds 20 --out /tmp/mismatch

The methods run `configs/flash_cifar10.py:METHOD,mini` on images that ship with the
package. The sparse mask mismatch of two masks is 1 - |a & b| / |a | b| over all layers
(Babakniya et al., TMLR 2023, Definition 1). The paper trains ResNet-18 and VGG16 on all
of CIFAR-10, and shows the server's masks: between every two rounds (Figures 3b, 15b,
15c) and between consecutive rounds by layer (4b, 16b, 16c). This page adds the mismatch
between the masks that the clients of a round send. JMWST's clients start from one mask,
so there it measures the exchange of one mask surgery, which does not fall; the change
of the server's mask over ten rounds does.

It writes `mask_mismatch.png` and `mask_mismatch.md`. The runs stay beside them;
finished ones are reused, and stopped ones are resumed.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

from sparsefl_jax.system import hardware

hardware.use_cpu_cores()  # before JAX starts

import numpy as np  # noqa: E402

from configs import flash_cifar10  # noqa: E402
from sparsefl_jax.report.figure import COLORS, canvas, whole_numbers  # noqa: E402
from sparsefl_jax.report.masks import mean_of_pairs, pairwise_mismatch, read_masks  # noqa: E402
from sparsefl_jax.runs import experiment, simulate  # noqa: E402
from sparsefl_jax.system import interrupt  # noqa: E402

METHODS = ("nst", "pdst", "spdst", "jmwst")
APART = 10  # rounds between two masks of the server, which shows lasting changes
_BEFORE = "server, the round before"


class Mismatch(NamedTuple):
    """The mismatch in the main stage of a run over the pruned layers, as shares."""

    pairs: np.ndarray  # [R, R], the server's masks after every two rounds
    layers: dict[str, np.ndarray]  # the same by layer
    observed: list[int]  # C rounds, from 1
    clients: np.ndarray  # [C], mean over the pairs of clients of such a round


def configured(method: str, rounds: int):
    """Returns the configuration of a method that keeps every mask of the server."""
    config = flash_cifar10.get_config(f"{method},mini")
    config.num_rounds, config.eval_every = rounds, rounds
    spaced = np.unique(np.linspace(1, rounds, 7).round().astype(int))
    config.observe_rounds = tuple(spaced.tolist())
    return config


def measure(run_dir: Path) -> Mismatch:
    """Reads the masks that a finished run kept."""
    kept = read_masks(run_dir)
    stage = kept.server[-1].stage
    server = np.stack([s.packed for s in kept.server if s.stage == stage])
    clients = [s for s in kept.clients if s.stage == stage]
    bits = np.unpackbits(server, axis=1, count=sum(kept.sizes)).astype(bool)
    ends = np.cumsum(kept.sizes)
    pruned = [not layer.all() for layer in np.split(bits, ends[:-1], axis=1)]
    names, sizes = (
        [value for value, chosen in zip(values, pruned, strict=True) if chosen]
        for values in (kept.names, kept.sizes)
    )

    def mismatch(packed):
        bits = np.unpackbits(packed, axis=1, count=ends[-1])
        return pairwise_mismatch(
            np.packbits(bits[:, np.repeat(pruned, kept.sizes)], axis=1), sizes
        )

    pairs, by_layer = mismatch(server)
    between = [mean_of_pairs(mismatch(s.packed)[0]) for s in clients]
    layers = dict(zip(names, by_layer, strict=True))
    return Mismatch(pairs, layers, [s.round for s in clients], np.array(between))


def draw(found: dict[str, Mismatch], path: Path) -> None:
    """Draws the page: heat maps, layers, then all methods side by side."""
    with canvas(path, (14, 10.5)) as figure:
        grid = figure.add_gridspec(3, 12)
        width = 12 // len(found)
        maps = []
        for i, (name, told) in enumerate(found.items()):
            columns = slice(width * i, width * (i + 1))
            maps.append(figure.add_subplot(grid[0, columns]))
            image = _heat_map(maps[-1], name, told)
            _layers(figure.add_subplot(grid[1, columns]), name, told)
        figure.colorbar(image, ax=maps, label="mismatch [%]", shrink=0.9)
        panels = [figure.add_subplot(grid[2, i : i + 4]) for i in (0, 4, 8)]
        for color, (name, told) in zip(COLORS, found.items(), strict=False):
            look = {"label": name, "color": color}
            panels[0].plot(*_apart(told.pairs, 1), **look)
            panels[1].plot(*_apart(told.pairs, APART), **look)
            panels[2].plot(told.observed, 100 * told.clients, "o-", **look)
        titles = "against the round before", f"against {APART} rounds before"
        for ax, title in zip(panels, (*titles, "between clients, mean"), strict=True):
            _finish(ax, title)
        panels[-1].legend(loc=(0.72, 0.1))


def _apart(pairs: np.ndarray, distance: int):
    """Returns the rounds, and the mismatch in % with `distance` rounds before."""
    values = 100 * np.diagonal(pairs, distance)
    return np.arange(len(values)) + 1 + distance, values


def _finish(ax, title: str) -> None:
    ax.set(xlabel="round", ylabel="mismatch [%]", title=title)
    ax.set_ylim(-1.5, max(10, ax.get_ylim()[1]))  # lines at 0 can be seen
    whole_numbers(ax.xaxis)


def _heat_map(ax, name: str, told: Mismatch):
    edges = (0.5, len(told.pairs) + 0.5)
    image = ax.imshow(
        100 * told.pairs, cmap="viridis", vmin=0, vmax=100, origin="lower",
        extent=(*edges, *edges), interpolation="nearest",
    )  # fmt: skip
    ax.grid(visible=False)
    ax.set(xlabel="round", ylabel="round", title=f"{name}: server's masks")
    return image


def _layers(ax, name: str, told: Mismatch) -> None:
    for color, (layer, pairs) in zip(COLORS, told.layers.items(), strict=False):
        label = layer.removesuffix("/kernel")
        ax.plot(*_apart(pairs, 1), label=label, color=color, linewidth=1.5)
    _finish(ax, f"{name}: by layer")
    ax.set_ylim(top=60)
    ax.legend()


def markdown(found: dict[str, Mismatch]) -> str:
    """Formats the mismatch of clients and of the server in the observed rounds."""
    rounds = next(iter(found.values())).observed
    lines = [
        f"| mismatch, % | method | {' | '.join(f'round {r}' for r in rounds)} |",
        f"| --- | --- |{' --: |' * len(rounds)}",
    ]
    for name, told in found.items():
        cells = [f"{100 * value:.1f}" for value in told.clients]
        lines.append(f"| between clients | {name} | {' | '.join(cells)} |")
    for distance in (1, APART):
        for name, told in found.items():
            rounds_after, values = _apart(told.pairs, distance)
            by_round = dict(zip(rounds_after.tolist(), values, strict=True))
            cells = [f"{by_round[r]:.1f}" if r in by_round else "-" for r in rounds]
            what = f"server, {distance} rounds before" if distance > 1 else _BEFORE
            lines.append(f"| {what} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Runs the missing methods, then draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=simulate.SNAPSHOTS)
    parser.add_argument("--out", type=Path, default=Path("runs/mask_mismatch"))
    args = parser.parse_args()
    if not 2 <= args.rounds <= simulate.SNAPSHOTS:  # of which every mask is kept
        parser.error(f"rounds={args.rounds}, expected 2 to {simulate.SNAPSHOTS}")
    hardware.keep_compilations()
    found = {}
    for method in METHODS:
        path = args.out / f"{method}_{args.rounds}"
        config = configured(method, args.rounds)
        try:
            experiment.run(config, path, resume=(path / "config.json").exists())
        except interrupt.StoppedError as error:
            print(f"{error}; the same command goes on", file=sys.stderr)
            sys.exit(error.code)
        found[method] = measure(path)
    draw(found, args.out / "mask_mismatch.png")
    text = markdown(found)
    (args.out / "mask_mismatch.md").write_text(text + "\n")
    print(f"{text}\n{args.out}/mask_mismatch.png")


if __name__ == "__main__":
    main()
