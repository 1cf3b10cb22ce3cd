"""The seconds that compilation takes, apart from those that rounds take."""

import time

import jax
import pytest

from sparsefl_jax.system import progress


def test_time_spent_on_programs_counts_once_and_only_while_it_is_asked_for():
    span = "/jax/core/compile/jaxpr_trace_duration"
    tell = jax.monitoring.record_event_time_span
    with progress.measure_compilation() as taken:
        tell(span, 100.0, 101.0)
        tell(span, 101.5, 102.0)
        tell(span, 99.0, 103.0)  # both were inside
        tell("/jax/core/compile/backend_compile_duration", 104.0, 110.0)
        tell("/another/event", 104.0, 500.0)
        assert taken() == pytest.approx(4.0 + 6.0)
        assert taken() == 0
        start = time.perf_counter()
        jax.jit(lambda x: x * 3.25 - 1)(1.0)
        assert 0 < taken() < time.perf_counter() - start
    tell(span, 0.0, 1.0)
    assert taken() == 0
