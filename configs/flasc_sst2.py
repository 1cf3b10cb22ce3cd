"""FLASC on SST-2 (not a data set of the paper): DistilBERT, adapters of rank 16.

python launch.py --config=configs/flasc_sst2.py[:METHOD][,ffa][,mini]

METHOD is flasc (default) at a density of 1/4 both ways; fedavg, which sends everything;
pruned, which prunes once after a dense round; gradual, whose density is 1, 1/2 and
1/4 in thirds of the rounds and which trains what it sends alone; or rank_tiers, in
which a third of the clients each has ranks 1, 4 and 16, and a round has nine clients.
With `ffa` A is frozen. --config.algorithm.density=0.0625 sets another density,
--config.adapter.rank=1 another rank.

Settings of the released code for its texts: 350 clients of a Dirichlet 0.1 over the
classes, 10 a round, 200 rounds, one epoch, batches of 16, SGD at 5e-4 with momentum
0.9, Adam at 1e-3 on the server, alpha 16, adapters beside query and value kernels as
in its ViT. The released code has AdamW with a weight decay of 0.01 and drops a tenth of
the adapters' inputs; `pruned` has no server optimizer here. **Not run yet**, because
the weights of DistilBERT were not available: it needs SST-2 and a folder with
`config.json`, `model.safetensors` and `vocab.txt`, see `flash_sst2.py`.

`mini` has an encoder of two layers with random frozen weights, the sentences of a play,
20 clients of a Dirichlet 1, and Adam at 0.02. It gave 61.3 % (always the most frequent
class: 55.0 %) with seed 0, with 31.8 Mbit up and 32.5 Mbit down, in 38 s on two busy
cores with compilation (2026-11-26). The other methods have not been run.
"""

from sparsefl_jax.config import default_config
from sparsefl_jax.presets.options import parse_options

METHODS = {
    "flasc": {"name": "flasc", "density": 1 / 4},
    "fedavg": {"name": "fedavg", "weighting": "uniform"},
    "pruned": {"name": "magnitude", "density": 1 / 4, "prunable": ("*",)},
    "gradual": {"name": "flasc", "density": 1.0, "decay": 1 / 2, "train": "masked"},
    "rank_tiers": {"name": "rank_tiers"},
}


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = parse_options(arg, tuple(METHODS), ("ffa",), ("mini",))
    method = next((name for name in METHODS if name in options), "flasc")
    config = default_config()
    config.dataset, config.tokenizer = "sst2", "models/distilbert-base-uncased"
    config.model = {"name": "pretrained_encoder"}
    config.num_clients, config.num_rounds, config.batch_size = 350, 200, 16
    config.partition = {"name": "dirichlet", "alpha": 0.1}
    config.optimizer.learning_rate, config.optimizer.momentum = 5e-4, 0.9
    config.adapter.rank, config.adapter.alpha = 16, 16.0
    if "ffa" in options:
        config.adapter.freeze = ("*lora_a*",)
    if "mini" in options:
        config.dataset, config.tokenizer = "sentences_sample", "words"
        config.model, config.max_tokens = {"name": "encoder"}, 24
        config.num_clients, config.num_rounds, config.batch_size = 20, 30, 8
        config.partition.alpha, config.optimizer.learning_rate = 1.0, 0.05
    config.algorithm = dict(METHODS[method])
    if method == "pruned":
        config.first_stage = {"name": "fedavg", "weighting": "uniform", "num_rounds": 1}
    else:
        rate = 0.02 if "mini" in options else 1e-3
        config.server_optimizer = {"name": "adam", "learning_rate": rate}
    if method == "gradual":
        rounds = config.get_oneway_ref("num_rounds")
        config.algorithm.decay_every = (rounds + 2) // 3
    if method == "rank_tiers":
        config.num_clients -= config.num_clients % 3  # tiers of equal size
        config.cohort_size = 9
        config.budgets = tuple((rank / 16, 1 / 3) for rank in (1, 4, 16))
    return config
