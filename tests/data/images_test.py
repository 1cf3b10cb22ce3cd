"""Folders of images: modes and sizes that are read, converted, or told and refused."""

import numpy as np
import pytest

from sparsefl_jax.data import sources
from tests.refusals import refused

datasets = pytest.importorskip("datasets", reason="needs the extra [hf]")
from PIL import Image  # noqa: E402


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEFL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    datasets.disable_progress_bars()
    return tmp_path / "pets"


def write(folder, images):
    """Writes the first half of the images as cats, the others as dogs."""
    for i, image in enumerate(images):
        path = folder / ("cat", "dog")[2 * i >= len(images)] / f"{i}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    return str(folder)


def level(value, mode="RGB", height=4):
    """An image of one colour."""
    if mode == "I;16":
        return Image.fromarray(np.full((height, 6), 256 * value, np.uint16))
    return Image.fromarray(np.full((height, 6, 3), value, np.uint8)).convert(mode)


@pytest.mark.parametrize("modes", [("L", "RGB"), ("RGB", "1"), ("P", "L")], ids=str)
def test_grey_and_coloured_images_in_any_order_are_coloured(place, modes):
    data = sources.load(write(place, [level(255, mode) for mode in modes]))
    assert data.x.shape == (2, 4, 6, 3) and (data.x == 255).all()
    assert data.classes == ("cat", "dog")


@pytest.mark.parametrize(
    "found, mode", [("RGBA", "RGB"), ("LA", "L"), ("I;16", "L"), ("CMYK", "RGB")]
)
def test_modes_that_differ_are_counted_and_converted_if_asked(place, found, mode):
    name = write(place, [level(80, mode), level(80, found)])
    refused(lambda: sources.load(name), f"{mode} (1), {found} (1), 4 x 6 (2)")
    data = sources.load(name, image={"mode": mode})
    assert data.x.shape == (2, 4, 6, len(mode)) and (data.x == 80).all()
    refused(lambda: sources.load(name, image={"mode": "HSV"}), "image.mode='HSV'")


def test_sizes_that_differ_are_counted_and_changed_if_asked(place):
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[:, 3:] = 200  # the right half
    name = write(place, [Image.fromarray(pixels), level(7), level(7, height=5)])
    refused(lambda: sources.load(name), "RGB (3), 4 x 6 (2), 5 x 6 (1), expected one")
    left, right = sources.load(name, image={"size": (1, 2)}).x[0, 0, :, 0].tolist()
    assert left < 60 and right > 140 and left + right == 200
    refused(lambda: sources.load(name, image={"size": (4,)}), "(height, width)")


def test_a_damaged_file_is_named(place):
    noise = np.random.default_rng(0).integers(0, 256, (4, 32, 32), np.uint8)
    name = write(place, [Image.fromarray(pixels) for pixels in noise])
    file = place / "dog" / "3.tif"
    file.write_bytes(file.read_bytes()[:500])
    refused(lambda: sources.load(name), str(file))


def test_captions_are_no_users(place):
    name = write(place, [level(i) for i in range(12)])
    files = [str(file.relative_to(place)) for file in place.glob("*/*.tif")]
    lines = [f"{file},caption of {file},{file[:3]}" for file in files]
    (place / "metadata.csv").write_text("\n".join(["file_name,caption,kind", *lines]))
    hf = {"label": "kind", "user": "caption"}
    refused(lambda: sources.load(name, hf=hf), "'caption' differs in all 12 rows")
    assert sources.load(name, hf={"label": "kind"}).classes == ("cat", "dog")
