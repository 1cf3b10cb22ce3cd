import json
import math

import numpy as np
import pytest

from sparsefl_jax.report import figure, plot_run, read_run

LAYERS = ("Conv_0/kernel", "Conv_1/kernel", "Dense_0/kernel", "Dense_1/kernel")
STAGE = dict(bits_values=3_000_000_000, bits_positions=500_000_000, flops=2e12)
STAGE |= dict(bits_up=1_500_000_000, bits_down=2_000_000_000)
STAGE |= dict(flops_dense=8e12, flops_executed=9e12)
SUMMARY = {
    "method": "fedsparsify",
    "model": "lenet5",
    "dataset": "fashion_mnist",
    "partition": "dirichlet(0.1)",
    "seed": 3,
    "rounds": 60,
    "metric": "pooled",
    "stages": [
        {"name": "sensitivity", "rounds": 20, **STAGE},
        {"name": "train", "rounds": 40, **STAGE},
    ],
    "accuracy": {
        "aggregated": dict(final=0.872, best=0.88, best_round=35, density=1.0),
        "masked": dict(final=0.869, best=0.875, best_round=40, density=0.05),
    },
    "client_accuracy": {"p10": 0.7, "median": 0.88, "mean": 0.84},
    "seconds": 723.0,
    "rounds_per_second": 0.083,
    "versions": {"jax": "0.10.2"},
    "device": "2 x cpu",
    "commit": "0123abc",
}


COUNTED = dict(bits_up=1000, bits_up_values=900, bits_up_positions=100)
COUNTED |= dict(bits_down=2000, bits_down_values=2000, bits_down_positions=0)
COUNTED |= dict(flops_dense=1e9, flops_executed=1.2e9, clients=[1, 2])


def records(stages=(20, 40), layers=LAYERS, every=5):
    """Yields fake records in the form of a real run, smooth with noise."""
    rng = np.random.default_rng(0)
    done, gbit = 0, 0.0
    for stage, num_rounds in enumerate(stages):
        for r in range(1, num_rounds + 1):
            t = (done + r) / sum(stages)
            density = 0.05 + 0.95 * (1 - t) ** 3
            by_layer = {
                n: float(np.clip(density * 2 ** (1 - i), 0.01, 1))
                for i, n in enumerate(layers)
            }
            gbit += 0.3 * density + 0.05
            at = dict(stage=stage, round=r, gbit_cumulative=gbit)
            at["pflop_cumulative"] = 1e-6 * (done + r)
            told = dict(
                phase="train",
                loss=2 * math.exp(-3 * t),
                train_accuracy=0.95 - 0.7 * math.exp(-6 * t) + 0.02 * rng.normal(),
                flops=1e9 * density,
                density=density,
                layer_density=by_layer,
                mismatch=0.4 * (1 - t),
                layer_mismatch={n: x * 0.4 * (1 - t) for n, x in by_layer.items()},
            )
            yield told | at | COUNTED
            if r % every == 0 or r == num_rounds:
                accuracy = 0.88 - 0.7 * math.exp(-5 * t)
                models = {"aggregated": dict(accuracy=accuracy, loss=1.0, density=1.0)}
                models["masked"] = dict(accuracy=accuracy - 0.05, loss=1, density=0.05)
                shares = dict(p10=accuracy - 0.2, median=accuracy, mean=accuracy - 0.04)
                found = dict(models=models, accuracy=accuracy, client_accuracy=shares)
                yield dict(phase="eval") | at | found
        done += num_rounds


def write_run(folder, lines, summary=SUMMARY, num_clients=20, num_classes=10):
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(x) + "\n" for x in ({"schema": 1}, *lines)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    (folder / "config.json").write_text('{"algorithm": {"name": "flash"}}')
    if summary:
        (folder / "summary.json").write_text(json.dumps(summary))
    rng = np.random.default_rng(0)
    sizes = rng.lognormal(5, 0.6, num_clients)
    shares = rng.dirichlet(np.full(num_classes, 0.3), num_clients)
    np.save(folder / "partition.npy", (sizes[:, None] * shares).astype(np.int64))
    return folder


def test_read_run_drops_a_truncated_last_line_only(tmp_path):
    metrics = write_run(tmp_path, records()) / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    metrics.write_text("\n".join(lines)[:-7])
    whole = sum(json.loads(line)["phase"] == "eval" for line in lines[1:])
    assert len(read_run(tmp_path).evals) == whole - 1
    metrics.write_text("\n".join([*lines[:2], lines[2][:-7], lines[3]]))
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 3: "):
        read_run(tmp_path)


def test_records_of_another_schema_are_refused(tmp_path):
    metrics = write_run(tmp_path, records()) / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('{"schema": 1}', '{"schema": 3}'))
    with pytest.raises(ValueError, match="metrics.jsonl: schema=3, expected 1"):
        read_run(tmp_path)


PLOTS = ("accuracy_by_round", "loss_by_round", "accuracy_by_gbit")
PLOTS += ("density_by_round", "mismatch_by_round", "partition_by_client")


@pytest.mark.parametrize(
    ("stages", "num_layers", "num_clients", "num_classes"),
    [((1,), 1, 1, 2), ((5, 10), 21, 3000, 100)],
)
@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("drawn")
def test_plot_run_draws_all(tmp_path, stages, num_layers, num_clients, num_classes):
    names = [f"Conv_{i}/kernel" for i in range(num_layers)]
    lines = records(stages, names)
    write_run(tmp_path, lines, num_clients=num_clients, num_classes=num_classes)
    paths = plot_run(tmp_path)
    still = ("density_by_round", "mismatch_by_round") if stages == (1,) else ()
    drawn = [name for name in PLOTS if name not in still]
    assert paths == [tmp_path / "plots" / f"{name}.svg" for name in drawn]


@pytest.mark.filterwarnings("error")
def test_plot_run_leaves_out_what_is_absent_or_not_finite(tmp_path):
    lines = list(records(stages=(6,), every=2))
    for record in lines:
        record.pop("mismatch", None)
        record.pop("layer_mismatch", None)
        record.pop("client_accuracy", None)
    lines[0]["train_accuracy"] = None
    lines[1]["layer_density"][LAYERS[0]] = None
    write_run(tmp_path, lines, summary=None)
    (tmp_path / "partition.npy").unlink()
    assert [p.stem for p in plot_run(tmp_path)] == list(PLOTS[:4])
    (tmp_path / "metrics.jsonl").write_text('{"schema": 1}\n')
    assert plot_run(tmp_path) == []


@pytest.mark.usefixtures("drawn")
def test_equal_figures_are_equal_files(tmp_path):
    paths = [tmp_path / name for name in ("a.svg", "b.svg")]
    for path in paths:
        with figure.axes(path, "round", "accuracy [%]") as ax:
            ax.plot([0, 1], [0.0, 1.0])
    assert paths[0].read_bytes() == paths[1].read_bytes()
