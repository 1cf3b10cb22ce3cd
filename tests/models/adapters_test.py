"""Adapters beside a frozen network: identities, FLOPs and bits by hand, refusals."""

import functools
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict

import sparsefl_jax as sfl
from configs import flash_sst2
from sparsefl_jax import export, models
from sparsefl_jax.config import build, defaults
from sparsefl_jax.config.defaults import freeze
from sparsefl_jax.core.types import Frozen
from sparsefl_jax.models import Model, base, transformer
from sparsefl_jax.runs import describe, experiment, results, setup
from sparsefl_jax.runs.plan import plan
from sparsefl_jax.training import local
from sparsefl_jax.wire import ledger
from tests.networks import gradients, normal, quick_jit
from tests.reference import transformer_by_hand as by_hand
from tests.reference.by_hand import needed, same
from tests.refusals import refused

IN, OUT, RANK, ETA = 3, 4, 2, 0.1
KEY0 = jax.random.key(0)
TARGET = {"targets": ("kernel",), "whole": ()}
SGD = local.make_optimizer(learning_rate=ETA)


def flat(tree):
    return flatten_dict(jax.device_get(tree), sep="/")


@functools.cache
def raw_dense():
    return Model.from_flax(nn.Dense(OUT), jax.ShapeDtypeStruct((1, IN), jnp.float32))


class _Network(nn.Module):
    """Two layers, of which the second is whole."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2, name="score")(nn.tanh(nn.Dense(8, name="fc")(x)))


def network():
    return base.model_of(_Network(), (6,))


def adapted_network(**options):
    given = {"targets": ("fc/kernel",), "whole": ("score/*",)} | options
    return network().with_adapters(2, **given)


def small_encoder():
    sizes = {"layers": 1, "width": 8, "heads": 2, "hidden": 8, "vocabulary": 16}
    return models.build("encoder", 2, (5,), **sizes, dropout=0.0)


TOKENS = jnp.array([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0], [5, 3, 5, 0, 0]], jnp.int32)


def moved(params, scale=0.5):
    """Returns parameters none of which is where it starts."""
    leaves, tree = jax.tree.flatten(params)
    draws = [scale * normal(i, *v.shape) for i, v in enumerate(leaves)]
    return jax.tree.unflatten(tree, draws)


def logits(model, params, x, **options):
    options = {"train": False} | options
    return quick_jit(lambda p, x: model.apply(p, {}, x, **options)[0])(params, x)


def data_of(clients=3, each=4, texts=False):
    """Samples of two classes, `each` a client."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients * each, 6)).astype(np.float32)
    if texts:
        x = rng.integers(1, 11, (clients * each, 5)).astype(np.int32)
    y = (x[:, 0] > np.median(x)).astype(np.int32)
    users = np.repeat(np.arange(clients), each)
    return sfl.from_arrays(
        x, y, x_test=x, y_test=y, users=users, users_test=users, partition="natural"
    )


def run(method, model, rounds=1, cohort=2, **settings):
    stage = sfl.Stage(method, rounds, cohort, batch_size=2)
    data = data_of(texts=model.tokens)
    return sfl.run(jax.random.key(1), [stage], model, data, **settings)


def train_records(done):
    return [r for r in done.metrics if r["phase"] == "train"]


def test_multiply_adds_by_hand():
    """Ten tokens: query 64 x 64, up 64 x 128; a low rank of 4: 64 x 4, 4 x 128.

    Held are those of six dense layers and of the pooler: 10 x (4 x 64 x 64 + 2 x 64 x
    128) + 64 x 64, and all weights but the last layer's 64 x 2 + 2.
    """
    base = models.build("encoder", 2, (10,), layers=1)
    targets = ("*query/kernel", "*up/kernel")
    model = base.with_adapters(4, targets=targets, whole=("score/*",))
    of_query = {"lora_a": {"kernel": 2560}, "lora_b": {"kernel": 2560}}
    of_up = {"lora_a": {"kernel": 2560}, "lora_b": {"kernel": 5120}}
    assert model.macs == {
        "layer1": {"query": of_query, "up": of_up},
        "score": {"bias": 0, "kernel": 128},
    }
    assert model.frozen.macs == 331_776 == ledger.macs_per_sample(base) - 128
    trained = 128 + 3 * 2560 + 5120
    assert ledger.flops_per_sample(model) == 6 * trained + 4 * 331_776
    sizes = [leaf.size for leaf in jax.tree.leaves(base.shapes()[0])]
    assert model.frozen.entries == sum(sizes) - 130


def test_a_new_network_computes_what_its_base_does(key):
    plain = small_encoder()
    model = plain.with_adapters(2, 6.0, dropout=0.5)
    (params, _), (own, _) = model.init(key), plain.init(KEY0)
    whole = {n: params[n] for n in ("pooler", "score")}
    want = logits(plain, own | whole, TOKENS)
    np.testing.assert_array_equal(logits(model, params, TOKENS), want)
    same(model.merged(params), own | whole)
    a, b = (params["layer1"]["query"][f"lora_{f}"]["kernel"] for f in "ab")
    assert a.shape == (8, 2) and not b.any() and b.shape == (2, 8)
    assert 0.2 < jnp.abs(a).max() <= 8**-0.5  # uniform


def test_constants_and_adapters_follow_the_dtype(key):
    model = small_encoder().with_adapters(2).with_dtype("bfloat16")
    params, _ = model.init(key)
    traced = jax.make_jaxpr(lambda p: model.apply(p, {}, TOKENS, train=False)[0])
    products = [
        line for line in str(traced(params)).splitlines() if "= dot_general" in line
    ]
    assert len(products) == 2 + 6 + 2 + 4  # attention's, dense, the head's, adapters'
    assert all(":bf16" in line.split(" = ")[0] for line in products)


def test_the_first_step_by_hand(key):
    """dA = 0, dB = s A^T dW, so the merged kernel moves by -eta s^2 A A^T dW."""
    model = raw_dense().with_adapters(RANK, 6.0, **TARGET)
    params, x = jax.device_get(model.init(key)[0]), normal(1, 5, IN)
    base = jax.device_get(raw_dense().init(KEY0)[0])
    dw = x.T @ (2 * (x @ base["kernel"] + base["bias"]))
    got, _ = gradients(model, params, {}, x)
    a, s = params["lora_a"]["kernel"], 3.0
    assert not got["lora_a"]["kernel"].any()
    np.testing.assert_allclose(got["lora_b"]["kernel"], s * a.T @ dw, rtol=1e-5)
    new = jax.tree.map(lambda p, g: p - ETA * g, params, got)
    change = np.asarray(model.merged(new)["kernel"]) - base["kernel"]
    np.testing.assert_allclose(change, -ETA * s**2 * a @ a.T @ dw, atol=1e-5)


def test_hooks_see_the_inputs_of_adapters(key):
    """What a layer saves is doubled, hence the gradient of its kernel."""
    model = raw_dense().with_adapters(RANK, **TARGET)
    params, x = moved(model.init(key)[0]), normal(1, 5, IN)
    double = model.with_inputs(lambda x, kernel, weight: 2 * x, ("lora_a/kernel",))
    exact, found = (gradients(m, params, {}, x)[0]["lora_a"] for m in (model, double))
    np.testing.assert_allclose(found["kernel"], 2 * exact["kernel"], rtol=1e-6)


def test_dropout_draws_in_training_alone(key):
    """Half of the inputs of the adapter are 0, the others are doubled."""
    plain = raw_dense().with_adapters(RANK, **TARGET)
    model = raw_dense().with_adapters(RANK, **TARGET, dropout=0.5)
    params, x = jax.device_get(moved(plain.init(key)[0])), np.eye(IN, dtype=np.float32)
    base = jax.device_get(raw_dense().init(KEY0)[0])
    whole = params["lora_a"]["kernel"] @ params["lora_b"]["kernel"]
    np.testing.assert_array_equal(
        logits(plain, params, x), logits(model, params, x, key=key)
    )
    seen = set()
    for i in range(4):
        options = {"train": True, "key": jax.random.key(i)}
        out = np.asarray(logits(model, params, x, **options))
        share = (out - base["kernel"] - base["bias"]) / whole
        for row in share:  # an input reaches all outputs, or none
            np.testing.assert_allclose(row, np.full(OUT, round(row[0])), atol=1e-4)
        seen |= {round(v) for v in share[:, 0].tolist()}
    assert seen == {0, 2}


def test_a_given_base_is_held_and_describes_the_network():
    base = {"kernel": np.ones((IN, OUT)), "bias": np.full(OUT, 2.0)}
    model = raw_dense().with_adapters(RANK, **TARGET, base=base)
    params, _ = model.init(KEY0)
    assert logits(model, params, np.ones((1, IN), np.float32)).tolist() == [[5.0] * OUT]
    assert model.frozen == Frozen(IN * OUT + OUT, IN * OUT, "the given network")
    other = raw_dense().with_adapters(
        RANK, **TARGET, base=base | {"bias": np.ones(OUT)}
    )
    told = [describe.plain_value("model", m)["adapter"] for m in (model, other)]
    assert told[0].pop("base") != told[1].pop("base") and told[0] == told[1]


@pytest.fixture(scope="module")
def federated():
    """Three rounds of FedAvg on adapters, each with two of three clients."""
    model = adapted_network()
    return model, run(sfl.fedavg(model, SGD), model, rounds=3)


def test_the_base_is_untouched_and_a_seed_brings_it(federated):
    model, done = federated
    params = done.models["global"].params
    merged, own = flat(model.merged(params)), flat(network().init(KEY0)[0])
    changed = {p for p, v in merged.items() if (v != own[p]).any()}
    assert changed == {"fc/kernel", "score/kernel", "score/bias"}
    seen, sizes = set(), 6 * 2 + 2 * 8 + (8 * 2 + 2)
    for record in train_records(done):
        bits = [32 * sizes + 32 * (c not in seen) for c in record["clients"]]
        assert record["bits_down_by_client"] == bits
        new = len(set(record["clients"]) - seen)
        assert record["entries_down"]["model/base"] == new
        seen |= set(record["clients"])
    assert new < 2  # by then, a client has come again


def test_the_flops_of_a_round_by_hand(federated):
    """Two clients of 4 samples; the kernel 6 x 8 is held, its factors are trained."""
    record = train_records(federated[1])[0]
    want = 8 * (6 * (6 * 2 + 2 * 8 + 8 * 2) + 4 * (6 * 8))
    assert record["flops"] == pytest.approx(want, rel=1e-6)
    assert record["flops_dense"] == record["flops_executed"] == want


def test_a_folder_s_weights_are_held(tmp_path, key):
    """The embeddings have 6 x (11 + 8) entries and a norm's 12; the head has 56."""
    pytest.importorskip("safetensors", reason="needs the extra [text]")
    tensors = by_hand.tensors("distilbert", 2)
    given = {"folder": by_hand.write(tmp_path / "a", "distilbert", tensors)}
    whole = transformer.pretrained_encoder(2, (5,), **given, frozen=False)
    frozen = transformer.pretrained_encoder(2, (5,), **given)
    assert frozen.frozen == Frozen(6 * 19 + 12, 0, "the pretrained network")
    sizes = [leaf.size for leaf in jax.tree.leaves(whole.shapes()[0])]
    for network in (whole, frozen):  # the embeddings are held now, or already
        model = network.with_adapters(2)
        assert model.frozen == frozen.frozen._replace(
            entries=sum(sizes) - 56, macs=model.frozen.macs
        )
        params = moved(model.init(key)[0])
        want = logits(network, model.merged(params), TOKENS)
        np.testing.assert_allclose(logits(model, params, TOKENS), want, atol=1e-4)


def test_an_assumed_base_is_told_and_one_that_is_charged_goes_once():
    """48 + 8 entries are held; factors 12 and 16, and the last layer 18, always go."""
    base = {"base": network().init(KEY0)[0]}
    model = adapted_network(**base)
    planned = plan(
        setup.make([sfl.Stage(sfl.fedavg(model, SGD), 1, 2)], model, data_of())
    )
    assert planned.stages[0].memory.fixed["frozen weights"] == 224 * len(jax.devices())
    (record,) = train_records(run(sfl.fedavg(model, SGD), model))
    (said,) = record["assumed"].values()
    text = describe.text(planned)
    assert f"Not charged: down/model/base in stage 0 ({said})." in text
    assert record["bits_down_by_client"] == [32 * 46] * 2
    model = adapted_network(charge_base=True, **base)
    for record in train_records(run(sfl.fedavg(model, SGD), model, 2, 3)):
        bits = 32 * (46 + (56 if record["round"] == 1 else 0))
        assert record["bits_down_by_client"] == [bits] * 3
        assert "assumed" not in record


REFUSED = "snip grasp ssfl sparsyfed spafl local_only fedpm heterofl fedrolex fjord"


@pytest.mark.parametrize("name", REFUSED.split())
def test_methods_that_cannot_train_adapters_say_so(name):
    factory, model = getattr(sfl, name), raw_dense().with_adapters(RANK, **TARGET)
    given = {"weights": "initial"} if name == "fedpm" else needed(factory)
    refused(lambda: factory(model, SGD, **given), "model has adapters, expected none: ")
    factory(raw_dense(), SGD, **given)


@pytest.mark.parametrize(
    "change, told",
    [
        ({"alpha": 0.0}, "alpha=0.0, expected above 0"),
        ({"targets": ("fc/kernel",)}, "targets: 'fc/kernel' matches no leaf, expected"),
        ({"targets": ("bias",)}, "'bias' is of shape (4,), expected a kernel [i, o]"),
        ({"whole": ("kernel",)}, "targets: 'kernel' is trained whole, expected"),
        ({"freeze": ("lora*",)}, "expected globs that leave a leaf"),
        ({"base": {"kernel": np.ones((IN, OUT))}}, "'bias' has shape None, expected"),
    ],
    ids=str,
)
def test_arguments_are_refused(change, told):
    refused(lambda: raw_dense().with_adapters(**{"rank": RANK} | TARGET | change), told)


def test_adapters_are_for_layers_of_linen_alone():
    example = jax.ShapeDtypeStruct((2, IN), jnp.float32)
    linear = Model.from_nnx(lambda rngs: nnx.Linear(IN, OUT, rngs=rngs), example)
    model = linear.with_adapters(RANK, **TARGET)
    params, _ = model.init(KEY0)
    with pytest.raises(ValueError, match="targets: kernel, expected kernels of linen"):
        model.apply(params, {}, jnp.ones((2, IN)), train=False)
    refused(lambda: model.with_adapters(RANK), "has adapters, expected none")


def configured(**adapter):
    config = defaults.default_config()
    config.model = {"name": "encoder", "layers": 1, "width": 8, "heads": 2}
    config.model.vocabulary, config.model.dtype = 16, "float32"
    config.adapter.update(adapter)
    return config


@pytest.mark.slow
def test_an_export_has_the_merged_network(tmp_path):
    """The network of the file has no adapters, and computes the same."""
    pytest.importorskip("safetensors", reason="needs the extra [export]")
    config = flash_sst2.get_config("spdst,adapters,mini")
    config.num_rounds, config.first_stage.epochs, config.adapter.rank = 2, 1, 2
    experiment.run(config, tmp_path / "run", progress=False)
    path, _ = export.export_run(tmp_path / "run", tmp_path / "model")
    back = sfl.load_sparse(path)
    assert flat(back.sparse.params).keys() == flat(back.model.shapes()[0]).keys()
    assert all(mask.all() for mask in flat(back.sparse.mask).values())
    data = build.build_data(freeze(config))
    model = build.build_model(freeze(config), data)
    params = results.load_run(tmp_path / "run").models["global"].params
    got = logits(back.model, back.sparse.params, data.x_test[:8])
    want = logits(model, params, data.x_test[:8])
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert 0.1 < np.mean(flat(params)["layer1/query/lora_a/kernel"] != 0) < 0.9
    config.adapter.seed = 9
    start = lambda: results.start_from(  # noqa: E731
        tmp_path / "run", "weights", 0, None, freeze(config).adapter
    )
    refused(start, "adapter.seed=0, expected 9, as here")


def network_of(folder):
    return transformer.pretrained_encoder(2, (5,), folder=folder, frozen=False)


@pytest.mark.parametrize("kind", ("bert", "distilbert"))
def test_the_files_for_peft_by_hand(kind, tmp_path, key):
    """W + s (B A) of the file, [out, in], in the formulas of the encoder."""
    safetensors = pytest.importorskip("safetensors.numpy", reason="needs [text]")
    found = by_hand.tensors(kind, 2)
    folder = by_hand.write(tmp_path / "a", kind, found)
    globs = ("layer*/up/kernel", "*value/kernel")
    model = network_of(folder).with_adapters(2, 6.0, targets=globs)
    params = moved(model.init(key)[0])
    export.save_peft(tmp_path / "a/adapter", model, params, base=folder)
    told = json.loads((tmp_path / "a/adapter/adapter_config.json").read_text())
    written = safetensors.load_file(tmp_path / "a/adapter/adapter_model.safetensors")
    written = {n.removeprefix("base_model.model."): v for n, v in written.items()}
    scale, layers = told["lora_alpha"] / told["r"], by_hand.LAYER[kind]
    targets = {f"{kind}.{layers[n].format(i)}" for n in (2, 5) for i in range(2)}
    assert scale == 3.0 and set(told["target_modules"]) == targets
    assert set(told["modules_to_save"]) == set(by_hand.HEAD[kind])
    for name in targets:
        a, b = (written.pop(f"{name}.lora_{f}.weight") for f in "AB")
        found[f"{name}.weight"] = found[f"{name}.weight"] + scale * b @ a
    assert written.keys() <= found.keys()
    frozen = network_of(folder).with_adapters(2, freeze=("*lora_a*",))
    save = lambda: export.save_peft(tmp_path, frozen, frozen.init(key)[0], base=folder)  # noqa: E731
    refused(save, "params lack A or B, expected adapters")
    want = by_hand.forward(kind, found | written, [3, 1, 4, 1, 5])
    np.testing.assert_allclose(logits(model, params, TOKENS[:1])[0], want, atol=1e-4)


def test_a_configuration_takes_the_frozen_weights_from_an_export(tmp_path):
    pytest.importorskip("safetensors", reason="needs the extra [export]")
    data, path = data_of(texts=True), tmp_path / "base.safetensors"
    network = build.build_model(freeze(configured()), data)
    params, stats = network.init(jax.random.key(7))
    mask = jax.tree.map(lambda w: np.ones(w.shape, bool), params)
    export.save_sparse(path, sfl.SparseModel(params, mask, stats), index="none")
    config = configured(rank=2, base=str(path))
    model = build.build_model(freeze(config), data)
    own, _ = model.init(KEY0)
    whole = {n: own[n] for n in ("pooler", "score")}
    same(model.merged(own), params | whole)
    assert model.frozen.source == "the given network"
    path.write_bytes(b"what is no such file")
    refused(lambda: build.build_model(freeze(config), data), "base.safetensors': ")
    said = "adapter.dropout=0.5 has no effect here"
    refused(lambda: freeze(configured(dropout=0.5)), said)
