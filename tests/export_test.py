"""Exported models: read back bit for bit, as long as the ledger says, and refused."""

import functools
import json
import math
import shutil
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors

import sparsefl_jax as sfl
from sparsefl_jax import export, models
from sparsefl_jax.export import __main__, files
from sparsefl_jax.runs import experiment, results
from sparsefl_jax.runs.config import objects
from sparsefl_jax.simulation import batch_statistics, evaluate
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.wire import packets, streams
from tests.tiny import tiny_config

NETWORK = {
    "name": "conv4",
    "num_classes": 3,
    "input_shape": (32, 32, 1),
    "widths": (2, 3, 2, 2, 3, 2),
}
READING = {"mean": (np.float32(0.3),), "std": (np.float32(0.1),), "scale": 255.0}
QUICK = {"xla_backend_optimization_level": 0}
INDEXES = ("none", "bitmap", "coo", "csr")


@pytest.fixture(scope="module")
def sparse():
    """A sixth of every leaf alive, some of it zero; one leaf is whole, one is empty."""
    rng = np.random.default_rng(0)
    model = models.build(**NETWORK)
    params, stats = jax.eval_shape(model.init, jax.random.key(0))
    params, stats = jax.tree.map(
        lambda v: rng.normal(size=v.shape).astype(np.float32), (params, stats)
    )
    mask = jax.tree.map(lambda v: rng.random(v.shape) < 1 / 6, params)
    mask["fc3"]["kernel"][:] = True
    mask["conv2"]["kernel"][:] = False
    params["fc3"]["kernel"][0] = 0.0, -0.0, 1e-45
    stats = jax.tree.map(np.abs, stats)
    return sfl.SparseModel(masks.apply(params, mask), mask, stats)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of a method with personal models, and its configuration."""
    folder = tmp_path_factory.mktemp("finished")
    config = tiny_config(folder)
    config.first_stage = {}
    config.algorithm = {"name": "spafl", "alpha": 1.0}
    config.normalize, config.seed = True, 5
    config = objects.complete(config)
    experiment.run(config, folder / "run", progress=False)
    return folder / "run", config


def same(a, b) -> bool:
    """Whether two models are the same bit for bit."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(*(map(np.asarray, jax.tree.leaves(m)) for m in (a, b)), strict=True)
    return all(
        (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())
        for x, y in pairs
    )


@pytest.mark.parametrize("index", INDEXES)
def test_a_model_comes_back_bit_for_bit(sparse, tmp_path, index):
    path = tmp_path / "model"
    dirty = jax.tree.map(lambda p, m: jnp.where(m, p, -1.0), sparse.params, sparse.mask)
    given = sparse._replace(params=dirty)  # what is pruned is 0, whatever it was
    told = sfl.save_sparse(path, given, index=index, network=NETWORK)
    back = sfl.load_sparse(path)
    assert same(back.sparse, sparse)
    assert back.sizes == told
    assert same(back.sparse.params["fc3"]["kernel"][0], np.float32([0, -0.0, 1e-45]))
    again = tmp_path / "again"
    sfl.save_sparse(again, back.sparse, index=index, network=NETWORK)
    assert again.read_bytes() == path.read_bytes()


def by_hand(index, shape, alive) -> int:
    """The bits of a leaf: values and positions."""
    size, rows = math.prod(shape), shape[-1]
    count = math.ceil(math.log2(size + 1))  # the number of entries stands in front
    if index == "bitmap":
        return 32 * alive + size
    if index == "coo":
        return 32 * alive + count + alive * math.ceil(math.log2(max(size, 2)))
    pointers = (rows + 1) * max(math.ceil(math.log2(alive + 1)), 1)
    column = math.ceil(math.log2(max(size // rows, 2)))
    return 32 * alive + count + pointers + alive * column


@pytest.mark.parametrize("index", INDEXES)
def test_the_payload_is_what_the_ledger_charges(sparse, tmp_path, index):
    path = tmp_path / "model"
    told = sfl.save_sparse(path, sparse, index=index, network=NETWORK, reading=READING)
    stored = safetensors.load_file(path)
    assert {t.name: t.payload for t in told.tensors} == {
        name: array.nbytes for name, array in stored.items()
    }
    for tensor in told.tensors:
        part, _, leaf = tensor.name.partition("/")
        layer, leaf = leaf.split("/")
        alive = int(sparse.mask[layer][leaf].sum()) if part != "stats" else 0
        if part == "mask":
            bits = math.prod(tensor.shape)
        elif part == "stats" or index == "none":
            bits = 32 * math.prod(tensor.shape)
        else:
            bits = by_hand(index, tensor.shape, alive)
        assert (tensor.bits, tensor.payload) == (bits, -(-bits // 8)), tensor
    header = 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]
    assert told.header == header
    assert told.payload + header == path.stat().st_size
    counts = (jax.tree.map(np.size, part) for part in (sparse.params, sparse.stats))
    assert told.dense == 4 * sum(sum(jax.tree.leaves(part)) for part in counts)


@pytest.mark.parametrize("index", ["bitmap", "coo", "csr"])
def test_a_file_holds_what_a_new_client_would_be_sent(sparse, tmp_path, index):
    told = sfl.save_sparse(tmp_path / "model", sparse, index=index)
    message = {
        "weights": packets.Packet(sparse.params, sparse.mask, index=index),
        "stats": packets.Packet(sparse.stats),
    }
    charged = packets.bits(packets.layout(message), packets.count(message))
    assert sum(tensor.bits for tensor in told.tensors) == int(charged.total)
    kernel = sparse.params["fc1"]["kernel"], sparse.mask["fc1"]["kernel"]
    stored = safetensors.load_file(tmp_path / "model")["params/fc1/kernel"]
    assert stored.tobytes() == streams.encode(packets.Packet(*kernel, index=index))


def test_without_an_index_any_reader_sees_plain_tensors(sparse, tmp_path):
    sfl.save_sparse(tmp_path / "model", sparse, index="none")
    stored = safetensors.load_file(tmp_path / "model")
    for part, tree in (("params", sparse.params), ("stats", sparse.stats)):
        for path, leaf in zip(
            trees.leaf_paths(tree), jax.tree.leaves(tree), strict=True
        ):
            assert same(stored[f"{part}/{path}"], leaf)
    assert "mask/conv1/kernel" in stored and "mask/fc3/kernel" not in stored


def test_the_network_comes_back_and_takes_raw_samples(sparse, tmp_path):
    path = tmp_path / "model"
    sfl.save_sparse(path, sparse, network=NETWORK, reading=READING, run={"seed": 1})
    back = sfl.load_sparse(path)
    assert back.about["run"] == {"seed": 1}
    x = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 1), dtype=np.uint8)
    mean, std = READING["mean"][0], READING["std"][0]
    inputs = (x.astype(np.float32) / np.float32(255) - mean) / std
    got, want = (
        jax.jit(functools.partial(model.apply, train=False), compiler_options=QUICK)(
            sparse.params, sparse.stats, samples
        )[0]
        for model, samples in ((back.model, x), (models.build(**NETWORK), inputs))
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    other = NETWORK | {"name": "of_a_later_version"}
    sfl.save_sparse(path, sparse, network=other)
    assert sfl.load_sparse(path).model is None


def change_last_byte(content):
    return content[:-1] + bytes([content[-1] ^ 1])


def of_another_format(content):
    old, new = b'\\"format\\": 1', b'\\"format\\": 9'
    assert old in content
    return content.replace(old, new)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda content: content[:-1], "is damaged"),
        (lambda content: content[:50], "is damaged"),
        (lambda content: b"", "is damaged"),
        (lambda content: b"a text " * 9, "is damaged"),
        (change_last_byte, "its checksum differs"),
        (lambda content: content.replace(b"[3, 2]", b"[2, 3]"), "checksum differs"),
        (lambda content: content.replace(b"fc3", b"fc7"), "checksum differs"),
        (lambda content: content.replace(b"crc32", b"crc33"), "is damaged: crc32"),
        (of_another_format, "has format 9, expected 1"),
        (lambda content: safetensors.save({"w": np.ones(3)}), "holds no sparse model"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_in_a_line(sparse, tmp_path, damage, said):
    path = tmp_path / "model"
    sfl.save_sparse(path, sparse)
    content = path.read_bytes()
    assert damage(content) != content
    path.write_bytes(damage(content))
    with pytest.raises(ValueError, match=said) as error:
        sfl.load_sparse(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


@pytest.mark.parametrize("part", ["network", "reading"])
def test_a_file_of_another_version_is_refused_in_a_line(sparse, tmp_path, part):
    told = {
        "network": {"name": "mlp", "num_classes": 2, "input_shape": [3]},
        "reading": {"mean": None, "std": None},
    }
    told[part]["other"] = 1
    sfl.save_sparse(tmp_path / "model", sparse, **told)
    with pytest.raises(ValueError, match="model' is damaged: .*other") as error:
        sfl.load_sparse(tmp_path / "model")
    assert "\n" not in str(error.value)


def test_what_can_not_be_written_is_refused(sparse, tmp_path, monkeypatch):
    path = tmp_path / "model"
    with pytest.raises(ValueError, match="index='entropy', expected one of none, bit"):
        sfl.save_sparse(path, sparse, index="entropy")
    half = jax.tree.map(lambda v: v.astype(np.float16), sparse.params)
    with pytest.raises(ValueError, match="params/bn1/bias is float16, expected float3"):
        sfl.save_sparse(path, sparse._replace(params=half))
    with pytest.raises(ValueError, match="mask has other leaves than params"):
        sfl.save_sparse(path, sparse._replace(mask=sparse.mask["fc1"]))
    weights = [np.ones(3, np.float32)]
    with pytest.raises(ValueError, match="params is not a nested dict"):
        sfl.save_sparse(path, sfl.SparseModel(weights, [np.ones(3, bool)], {}))
    with pytest.raises(ValueError, match="expected a file that an export wrote"):
        sfl.load_sparse(tmp_path)
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'sparsefl_jax\[export\]'"):
        sfl.save_sparse(path, sparse)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("index", ["none", "csr"])
def test_a_run_s_model_needs_neither_the_run_nor_its_data(
    finished, tmp_path, monkeypatch, index
):
    run, config = finished
    data = objects.build_data(config)
    model, deployed = objects.build_model(config, data), results.load(run).models
    shutil.copytree(run, tmp_path / "run")
    start = {"name": "newcomer", "index": index}
    path, _ = export.export_run(tmp_path / "run", tmp_path / "model", **start)
    shutil.rmtree(tmp_path / "run")
    monkeypatch.setattr(objects, "build_data", None)
    back = sfl.load_sparse(path)
    assert same(back.sparse, list(deployed.values())[-1])
    accuracies = [
        evaluate.make_evaluator(m, data.x_test, data.y_test)(s)[0].mean()
        for m, s in ((back.model, back.sparse), (model, [*deployed.values()][-1]))
    ]
    assert accuracies[0] == accuracies[1]
    assert back.about["run"]["method"] == "spafl" and back.about["run"]["seed"] == 5


@pytest.mark.slow
def test_a_client_s_own_model_is_exported(finished, tmp_path):
    run, config = finished
    shutil.copytree(run, tmp_path / "run")
    path, sizes = export.export_run(tmp_path / "run", client=3)
    assert path == tmp_path / "run/client_3.safetensors"
    back = sfl.load_sparse(path)
    own, other = (each["personal"] for each in results.load_clients(run, [3, 4]))
    assert same(back.sparse, own) and not same(back.sparse, other)
    assert not all(mask.all() for mask in jax.tree.leaves(own.mask))
    assert back.about["run"]["client"] == 3 and back.about["run"]["name"] == "personal"
    assert sizes == back.sizes
    with pytest.raises(ValueError, match="clients=8, expected ids below 8"):
        export.export_run(run, tmp_path / "model", client=8)
    with pytest.raises(ValueError, match="best=True with client=3, expected one"):
        export.export_run(run, tmp_path / "model", client=3, best=True)


def test_which_of_a_run_s_models(finished, tmp_path, monkeypatch):
    run, config = finished
    found = results.load(run)
    (only,) = found.models
    other = jax.tree.map(np.zeros_like, found.models[only])
    best = found.best._replace(models={only: other, "last": found.models[only]})
    monkeypatch.setattr(results, "load", lambda run: found._replace(best=best))
    with pytest.raises(ValueError, match="no trained model, expected a client, or"):
        export.export_run(run, tmp_path / "model")
    model = objects.build_model(config, objects.build_data(config))
    with pytest.raises(ValueError, match="no trained model.*init_what='mask'"):
        results.start_from(run, "model", jax.random.key(0), model)
    results.start_from(run, "mask", jax.random.key(0), model)
    at_best = {"path": tmp_path / "model", "best": True}
    for name, want in (("last", found.models[only]), (only, other)):
        path, _ = export.export_run(run, name=name, **at_best)
        assert same(sfl.load_sparse(path).sparse, want)
    with pytest.raises(ValueError, match="did you mean 'last'"):
        export.export_run(run, name="lost", **at_best)


def test_the_command_writes_and_tells(finished, tmp_path, capsys):
    run, _ = finished
    out = tmp_path / "model.safetensors"
    start = ["--model", "newcomer"]
    assert __main__.main([str(run), *start, "-o", str(out), "--index", "coo"]) == 0
    printed = capsys.readouterr()
    sizes = sfl.load_sparse(out).sizes
    assert printed.out.rstrip() == export.sizes_table(sizes)
    assert f"{sizes.payload + sizes.header:,}" in printed.out
    assert sizes.payload + sizes.header == out.stat().st_size
    assert printed.err == f"wrote {out}\n"
    assert __main__.main([str(run), "--model", "none such"]) == 2
    assert __main__.main([str(run), *start, "-o", str(tmp_path / "no/folder")]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and all(line.startswith("error: ") for line in told)


@pytest.mark.slow
def test_static_statistics_are_made_before(finished, tmp_path, monkeypatch):
    run, config = finished
    config = config.copy_and_resolve_references()
    config.model = {"name": "resnet18", "base": 2, "norm": "static"}
    data = objects.build_data(config)
    model = objects.build_model(config, data)
    params, stats = jax.device_get(model.init(jax.random.key(0)))
    blank = sfl.SparseModel(params, masks.full(params), stats)
    result = results.load(run)._replace(models={"global": blank})
    monkeypatch.setattr(results, "load", lambda run: result)
    monkeypatch.setattr(export.runs.run_directory, "read_config", lambda run: config)
    path, _ = export.export_run(run, tmp_path / "model")
    back = sfl.load_sparse(path).sparse
    x = jnp.asarray(data.x[evaluate.used_rows(data.train)])
    want = batch_statistics.recalibrate(jax.random.key(9), model, blank, x)
    assert same(back.params, blank.params) and not same(back.stats, blank.stats)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), back.stats, want.stats
    )


def test_the_header_names_what_rebuilds_the_network(finished, tmp_path):
    run, config = finished
    path, _ = export.export_run(run, tmp_path / "model", name="newcomer")
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    metadata = json.loads(content[8 : 8 + size])["__metadata__"]
    head = json.loads(metadata["sparsefl_jax"])
    assert head["network"] == {
        "name": "mlp",
        "num_classes": 4,
        "input_shape": [2, 3, 1],
        "widths": [16],
    }
    data = objects.build_data(config)
    assert (
        np.float32(head["reading"]["mean"]).tolist() == np.float32(data.mean).tolist()
    )
