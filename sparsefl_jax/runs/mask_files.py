"""The packed masks in a run's directory, and the layers that they belong to."""

import json
from pathlib import Path

import jax

from sparsefl_jax.models.base import Model
from sparsefl_jax.report.masks import snapshot_files
from sparsefl_jax.runs.simulate import Segment, Snapshot
from sparsefl_jax.sparsity import trees
from sparsefl_jax.system import files


def write(workdir: Path, segment: Segment, model: Model) -> None:
    """Writes the masks that a segment keeps, and with the first of them the layers.

    Args:
      workdir: the run's directory.
      segment: a segment with a snapshot.
      model: the network, whose layers are named.

    Raises:
      OSError: a file cannot be written.
    """
    folder, at = workdir / "masks", segment.snapshot
    if segment.masks and not (folder / "layers.json").exists():
        folder.mkdir(exist_ok=True)
        shapes, _ = model.shapes()
        layers = jax.tree.map(lambda m: m > 0, model.macs)
        sizes = trees.layer_sizes(shapes, layers).tolist()
        outputs = [leaf.shape[-1] for leaf in trees.layers(shapes, layers)]
        for name, numbers in (("layers", sizes), ("filters", outputs)):
            text = json.dumps({"names": trees.layer_paths(layers), "sizes": numbers})
            files.write_text(folder / f"{name}.json", text)
    for owner, packed in segment.masks.items():
        name = f"{owner}_{at.stage}_{at.round:06d}.npy"
        files.write_array(folder / name, packed)


def remove_later(workdir: Path, at: Snapshot) -> None:
    """Removes the masks of rounds after `at`, which will run again."""
    for file, _, stage, round in list(snapshot_files(workdir / "masks")):
        if (stage, round) > (at.stage, at.round):
            file.unlink()
