"""FLASH on SST-2 (TMLR 2023, Table 10): BERT-base, frozen embeddings, T = 50.

python launch.py --config=configs/flash_sst2.py[:METHOD][,adapters][,mini]

METHOD is fedavg, nst, pdst, spdst (default) or jmwst. **Not run yet**, because BERT's
weights were not available. It needs the extras `text` and `hf`, SST-2 (`tfds
build glue/sst2 --file_format=array_record`), and a folder with `config.json`,
`model.safetensors` and `vocab.txt` or `tokenizer.json` of bert-base-uncased, by default
models/bert-base-uncased; --config.tokenizer=FOLDER names another one. Clients train and
send the layers and the head, and prune the dense kernels of the layers.

With `adapters`, not in the paper, clients train and prune adapters of rank 16 and alpha
16 beside the query and value kernels, and train the head; all else is frozen.

As printed, alpha = 1, d = 0.2: dense 92.25, NST 77.59, PDST 78.96, SPDST 83.07, JMWST
80.5 (r_int = 1) and 81.78 (r_int = 5). The paper states alpha, d, T and that the
embeddings are frozen. 100 clients, 10 a round, one epoch and batches of 32 are those of
its Table 1; Adam with a rate of 2e-5 and 64 tokens a sentence are ours.

`mini` trains an encoder of two layers from scratch on the sentences of a play, their
words hashed to 4,096 tokens, with 20 clients and 30 rounds. It gave 64.7 %
(always the most frequent class: 55.0 %) with seed 0 in 27 s on two busy cores
(2026-11-23).
"""

from sparsefl_jax.presets import flash
from sparsefl_jax.presets.options import parse_options

METHODS = ("fedavg", "nst", "pdst", "spdst", "jmwst")


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = parse_options(arg, METHODS, ("mini",), ("adapters",))
    config = flash.base(options)
    config.partition.alpha, config.num_rounds = 1.0, 50
    if config.density is not None:
        config.density = 0.2
    config.optimizer.name, config.optimizer.learning_rate = "adam", 2e-5
    config.final_learning_rate = None
    if "mini" in options:
        config.dataset, config.num_clients = "sentences_sample", 20
        config.tokenizer, config.max_tokens = "words", 24
        config.model = {"name": "encoder", "dtype": "float32"}
        config.optimizer.learning_rate, config.batch_size = 0.005, 8
        config.num_rounds, config.epochs = 30, 2
    else:
        config.dataset, config.tokenizer = "sst2", "models/bert-base-uncased"
        config.model = {"name": "pretrained_encoder", "dtype": "float32"}
    if "adapters" in options:
        config.adapter.rank, config.adapter.alpha = 16, 16.0
    return flash.finish(config, ("layer*kernel",))
