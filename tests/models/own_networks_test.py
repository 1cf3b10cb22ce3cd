"""Networks and partitions of one's own, by `module:function`."""

import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax import models
from sparsefl_jax.config import build
from sparsefl_jax.config.defaults import freeze
from tests.refusals import refused
from tests.tiny import tiny_config


def own(folder, **values):
    """A configuration whose network is one's own."""
    config = tiny_config(folder)
    config.model = {"name": "tests.tiny:a_network"} | values
    return config


def test_a_network_of_ones_own_has_its_arguments_as_fields(tmp_path):
    config = own(tmp_path)
    assert freeze(config).model["width"] == 4  # the default became a field
    config.model.width = 7
    model = build.build_model(freeze(config), build.build_data(freeze(config)))
    # Six pixels, seven units, four classes.
    assert model.macs["fc1"]["kernel"] == 42 and model.macs["fc2"]["kernel"] == 28


def test_a_partition_of_ones_own_deals_out_the_samples(tmp_path):
    config = tiny_config(tmp_path)
    config.partition = {"name": "tests.tiny:a_partition", "stride": 2}
    data = build.build_data(freeze(config))
    assert data.train.index[1].tolist() == list(range(1, 160, 16))


@pytest.mark.parametrize(
    "section, told",
    [
        ({"name": "tests.tiny:nothing"}, "model.name='tests.tiny:nothing': module"),
        ({"name": "tests.tiny:a_list"}, "expected a Model"),
        ({"name": "json:dumps"}, "too many positional arguments"),
    ],
    ids=str,
)
def test_what_is_no_network_is_refused_in_one_line(tmp_path, section, told):
    config = tiny_config(tmp_path)
    config.model = section
    data = build.build_data(freeze(tiny_config(tmp_path)))
    refused(lambda: build.build_model(freeze(config), data), told)


def wide(num_classes, input_shape):
    """A network of one's own for nine features, whatever it is asked for."""
    del input_shape
    return models.build("mlp", num_classes, (9,), widths=(2,))


@pytest.mark.parametrize("name", ["small_cnn", "tests.models.own_networks_test:wide"])
def test_a_network_on_data_of_another_kind_is_refused(tmp_path, name):
    """In one line that names both, by shape; in Python, the shape."""
    shape = (9,) if name == "small_cnn" else (16, 16, 3)
    x, y = np.zeros((12, *shape), np.float32), np.arange(12) % 3
    data = sfl.from_arrays(x, y, num_clients=2, x_test=x, y_test=y)
    config = tiny_config(tmp_path)
    config.model = {"name": name}
    said = f"on samples of float32 {list(shape)}: "
    refused(lambda: build.build_model(freeze(config), data), f"{name!r} {said}")
    model = models.build("mlp", 3, (7,))
    method = sfl.fedavg(model, sfl.training.make_optimizer())
    run = lambda: sfl.experiment([sfl.Stage(method, 1, 2)], model, data)  # noqa: E731
    refused(run, f"the network {said}")


def test_integers_that_a_network_takes_for_numbers_are_told_of():
    x, y = np.array([[31, 52000], [64, 18000]] * 20), np.arange(40) % 2
    data, model = sfl.from_arrays(x, y, num_clients=4), models.build("mlp", 2, (2,))
    with pytest.warns(UserWarning, match="not standardised; pass floats"):
        models.registry.try_network(data, lambda: model)
