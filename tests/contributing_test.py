import re
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.data.federated import from_arrays
from sparsefl_jax.models.base import Model
from sparsefl_jax.runs import loop
from sparsefl_jax.training import local

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()


def test_the_template_runs_learns_and_is_counted(key):
    names = {}
    exec(re.search(r"<!-- template -->\n```python\n(.*?)```", TEXT, re.S)[1], names)
    x = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    data = from_arrays(x, y, x_test=x, y_test=y, num_clients=4)
    model = Model.from_flax(nn.Dense(2), jax.ShapeDtypeStruct((1, 5), np.float32))
    method = names["random_mask"](
        model, local.make_optimizer(learning_rate=0.5), density=1.0
    )
    stage = Stage(method, num_rounds=2, cohort_size=4, epochs=2, batch_size=10)
    run = loop.run(key, [stage], model, data, eval_every=2)
    first, second, evaluated = run.metrics
    assert evaluated["models"]["global"]["accuracy"] > 0.9
    # 5 x 2 weights and 2 biases in float32; 10 positions, in the first round only.
    assert first["bits_up"] == second["bits_up"] == 4 * 12 * 32
    assert first["bits_down"] == 4 * (12 * 32 + 10)
    assert second["bits_down"] == 4 * 12 * 32
