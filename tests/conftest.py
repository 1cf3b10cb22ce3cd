"""Settings and fixtures of all tests: two CPU devices, exact, silent, cached."""

import os
import signal
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()

# Environment variables, so that processes started by a test inherit them; they must
# stand before JAX is imported.
_XLA_FLAGS = {
    "--xla_force_host_platform_device_count": 2,
    "--xla_cpu_collective_timeout_seconds": 100_000,
    "--xla_cpu_collective_call_terminate_timeout_seconds": 100_000,
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds": 1_000,
}
_given = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join(
    [_given, *(f"{k}={v}" for k, v in _XLA_FLAGS.items() if k not in _given)]
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_CPU_ENABLE_ASYNC_DISPATCH", "false")  # as `use_cpu_cores`
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE / "sparsefl_jax" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("MPLBACKEND", "Agg")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")


def pytest_configure(config):
    """Compiles quickly by default, as compilation takes most of the time.

    Programs are then not optimised, and written as one module, by XLA's older emitters
    where it still has them. XLA reads its flags when JAX starts its devices, and ends
    the process at one that it does not know.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As in a script's background; tests that send Ctrl-C would wait for ever.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    quick = config.getoption("markexpr") == "not slow"
    jax.config.update("jax_disable_most_optimizations", quick)
    if quick:
        os.environ["XLA_FLAGS"] += " --xla_cpu_parallel_codegen_split_count=1"
    if quick and jax.__version_info__ < (0, 11):
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"


@pytest.fixture
def key():
    """Returns a typed PRNG key, the same in every test."""
    return jax.random.key(0)


@pytest.fixture
def strict_dtypes():
    """Refuses every implicit promotion of dtypes."""
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture(scope="session", autouse=True)
def savefig():
    """Writes figures as the names of their lines, as drawing takes seconds a run."""
    from matplotlib.figure import Figure

    def write(self, path, **_):
        texts = [text.get_text() for each in self.legends for text in each.texts]
        Path(path).write_text("\n".join(texts))

    drawing, Figure.savefig = Figure.savefig, write
    yield drawing
    Figure.savefig = drawing


@pytest.fixture
def drawn(monkeypatch, savefig):
    """Draws figures."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", savefig)


@pytest.fixture
def unplotted(monkeypatch):
    """Leaves out the plots of single runs."""
    monkeypatch.setattr("sparsefl_jax.report.plot_run", lambda path: [])


@pytest.fixture
def quick_compilation(pytestconfig):
    """Compiles quickly in every run, as a default run does."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    quick = pytestconfig.getoption("markexpr") == "not slow"
    jax.config.update("jax_disable_most_optimizations", quick)


@pytest.fixture
def shared(request):
    """Returns the shared data: `SPARSEFL_SHARED`, or `../shared` by the repository.

    `@pytest.mark.needs("data/tfds/cifar10")` names what a test reads there; the test is
    skipped, with the missing path as the reason, where that is absent.
    """
    folder = Path(os.environ.get("SPARSEFL_SHARED") or _ROOT.parent / "shared")
    marker = request.node.get_closest_marker("needs")
    for path in [folder, *(folder / name for name in (marker.args if marker else ()))]:
        if not path.exists():
            pytest.skip(f"needs {path}, which is absent (set SPARSEFL_SHARED)")
    return folder
