"""Reading what TFDS has prepared, with a builder of ours.

The builder hands over encoded images, so TFDS needs no TensorFlow to write them.
"""

import importlib
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from sparsefl_jax.data import sources

pytestmark = pytest.mark.slow

BUILDER = '''
import io

import numpy as np
import PIL.Image
import tensorflow_datasets as tfds


class SparseflDots(tfds.core.GeneratorBasedBuilder):
    """Images whose grey level is the class."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "picture": tfds.features.Image(shape=(8, 8, 1)),
            "kind": tfds.features.ClassLabel(num_classes=3),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, download_manager):
        sizes = {"train": 30, "validation": 9}
        return {name: self._generate_examples(num) for name, num in sizes.items()}

    def _generate_examples(self, num):
        for i in range(num):
            image, file = np.full((8, 8), 80 * (i % 3), np.uint8), io.BytesIO()
            PIL.Image.fromarray(image).save(file, "png")
            file.seek(0)
            yield i, {"picture": file, "kind": i % 3}
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Returns a data folder, and registers the builders with TFDS."""
    (tmp_path / "dots.py").write_text(BUILDER)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("dots")
    monkeypatch.setenv("SPARSEFL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "data"


def test_what_a_builder_has_prepared_is_read(folder):
    builder = tfds.builder("sparsefl_dots", data_dir=folder)
    builder.download_and_prepare(file_format="array_record")
    data = sources.load("sparsefl_dots", data_dir=folder)
    assert data.x.shape == (30, 8, 8, 1) and data.x_test.shape == (9, 8, 8, 1)
    assert data.num_classes == 3
    np.testing.assert_array_equal(data.x[:, 3, 3, 0], 80 * data.y)
    assert np.bincount(data.y).tolist() == [10, 10, 10]
    assert "tensorflow" not in sys.modules
    info = folder / "sparsefl_dots" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    with pytest.raises(ValueError, match="choose another data_dir"):
        sources.load("sparsefl_dots", data_dir=folder)
