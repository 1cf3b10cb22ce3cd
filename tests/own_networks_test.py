"""Networks and partitions of one's own, by `module:function`."""

import numpy as np
import pytest

from sparsefl_jax import models
from sparsefl_jax.runs.config import build, defaults, fields, reference
from tests.tiny import tiny_config


def own(folder, **values):
    """A configuration whose network is one's own."""
    config = tiny_config(folder)
    config.model = {"name": "tests.tiny:a_network"} | values
    return defaults.complete(config)


def test_a_network_of_ones_own_has_its_arguments_as_fields(tmp_path):
    config = own(tmp_path)
    assert config.model.width == 4  # the default became a field
    config.model.width = 7
    fields.check(config)
    model = build.build_model(config, build.build_data(config))
    # Six pixels, seven units, four classes.
    assert model.macs["fc1"]["kernel"] == 42 and model.macs["fc2"]["kernel"] == 28


def test_a_partition_of_ones_own_deals_out_the_samples(tmp_path):
    config = tiny_config(tmp_path)
    config.partition = {"name": "tests.tiny:a_partition", "stride": 2}
    fields.check(config)
    data = build.build_data(config)
    assert data.train.index[1].tolist() == list(range(1, 160, 16))


@pytest.mark.parametrize(
    "name, line",
    [
        ("tests.tiny:a_network", "model.width         int  4"),
        ("tests.tiny:a_partition", "partition.stride"),
        ("tests.tiny:a_method", "algorithm.strength"),
    ],
)
def test_fields_lists_what_a_function_of_ones_own_takes(name, line):
    assert f"\n{line.split('  ')[0]}" in reference.listing(name)


def test_fields_tells_a_network_by_its_first_argument():
    listing = reference.listing("tests.tiny:a_network")
    assert listing.startswith("tests.tiny:a_network: A network of one's own.\n")
    assert "of its hidden layer" in listing and "model.dtype" in listing
    with pytest.raises(ValueError, match="--fields=json:dumps: its first argument is"):
        reference.listing("json:dumps")


BAD = [
    ({"name": "tests.tiny:nothing"}, "model.name='tests.tiny:nothing': module"),
    ({"name": "no_module_here:a"}, "model.name='no_module_here:a': No module named"),
    ({"name": "tests.tiny:a_list"}, "'tests.tiny:a_list' returns a list, expected a M"),
    ({"name": "json:dumps"}, "model='json:dumps': too many positional arguments"),
    ({"name": "tests.tiny:a_network", "width": 0.5}, "model.width=0.5, expected an"),
    ({"name": "tests.tiny:a_network", "witdh": 5}, "did you mean 'model.width'"),
]


@pytest.mark.parametrize("section, told", BAD, ids=str)
def test_what_is_no_network_is_refused_in_one_line(tmp_path, section, told):
    config = tiny_config(tmp_path)
    config.model = section
    with pytest.raises(ValueError) as caught:
        fields.check(config)
        build.build_model(config, build.build_data(config))
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_the_builder_takes_a_network_of_ones_own():
    model = models.build("tests.tiny:a_network", 3, (5,), width=2, dtype="bfloat16")
    assert model.dtype == "bfloat16"
    assert np.sum(list(model.macs["fc1"].values())) == 10
    with pytest.raises(ValueError, match="argument of model .*did you mean 'width'"):
        models.build("tests.tiny:a_network", 3, (5,), widht=2)
