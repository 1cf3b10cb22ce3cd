"""How the processes of a run come together, and how they part.

They find each other at process 0, where JAX keeps a small service for them. One that
fails leaves word there why, so that all the others end with that line: without it they
would wait for it in their next computation, or break off with an error of the network.
"""

import atexit
import contextlib
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core.validate import one_line
from sparsefl_jax.system import processes

# Seconds after which a process that tells nothing, or does not end with the others,
# counts as lost, and the others end.
HEARTBEAT, SHUTDOWN = 100, 60
WAIT_MINUTES = 5.0
_SOON = 5.0  # seconds after which a process that waits says so
_POLL = 1.0  # seconds between two looks whether another has failed
_PARTING = 5_000  # milliseconds for the others to read why
_WHY = "sparsefl_jax/why"
_BROKEN = ("Gloo", "NCCL", "coordination", "closed by peer", "Socket closed")

_ending = threading.Lock()  # held by the thread that ends this process


def start(
    coordinator: str | None = None,
    count: int | None = None,
    index: int | None = None,
    wait_minutes: float = WAIT_MINUTES,
) -> None:
    """Joins this process to the others of its run; call it before JAX does anything.

    Without arguments the launcher tells: SLURM, Open MPI, Kubernetes or a TPU pod, as
    `jax.distributed.initialize` finds them. Where the others do not come, this process
    ends with a line that says so, exit code 2.

    Args:
      coordinator: 'host:port' of process 0, which listens on that port.
      count: number of processes.
      index: of this process, from 0.
      wait_minutes: how long to wait for the others.

    Raises:
      ValueError: some of the arguments are missing or out of range, nobody tells, or
        the port cannot be used.
      RuntimeError: JAX has started already.

    Example:
      >>> start("10.0.0.1:4321", 2, 0)  # doctest: +SKIP
      >>> start("10.0.0.1:4321", 2, 2)
      Traceback (most recent call last):
        ...
      ValueError: coordinator='10.0.0.1:4321', processes=2, process_id=2, expected all
      three: host:port, P, and an integer from 0 to P - 1
    """
    told = coordinator, count, index
    if told != (None, None, None) and not _whole(*told):
        raise ValueError(
            f"coordinator={coordinator!r}, processes={count}, process_id={index}, "
            "expected all three: host:port, P, and an integer from 0 to P - 1"
        )
    if not 0 < wait_minutes < math.inf:
        raise ValueError(f"wait_minutes={wait_minutes}, expected above 0")
    jax.config.update("jax_enable_preemption_service", False)  # signals are heard here
    with _waiting(coordinator, wait_minutes):
        _initialize(told, wait_minutes)
    if _client() is None:  # a launcher of one process
        return
    _keep_programs()
    _watch()
    _meet(wait_minutes)


def _whole(coordinator: str | None, count: int | None, index: int | None) -> bool:
    if coordinator is None or count is None or index is None:
        return False
    return bool(re.fullmatch(r".+:\d+", coordinator)) and 0 <= index < count


def _initialize(told: tuple, wait_minutes: float) -> None:
    coordinator, *_ = told
    try:
        jax.distributed.initialize(
            *told,
            # JAX aborts the process at its limit, so this module's comes before.
            initialization_timeout=int(60 * wait_minutes) + 600,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=SHUTDOWN,
        )
    except ValueError as error:
        if coordinator is not None:
            raise
        raise ValueError(
            "no launcher of several processes is found, expected SLURM, Open MPI or "
            "Kubernetes, or --coordinator=host:port --processes=P --process_id=I"
        ) from error
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"coordinator={coordinator!r}: {one_line(error)}") from error


@contextlib.contextmanager
def _waiting(coordinator: str | None, minutes: float) -> Iterator[None]:
    """Says that this process waits for others, and ends it where they do not come."""
    at = f" at {coordinator}" if coordinator else ""

    def tell():
        print(
            f"waiting for the other processes{at}, {minutes:g} minutes at most",
            file=sys.stderr,
            flush=True,
        )

    def give_up():
        print(
            f"error: the other processes have not come{at} within "
            f"wait_minutes={minutes:g}, expected all to be started, with the same "
            "coordinator and number",
            file=sys.stderr,
            flush=True,
        )
        os._exit(2)

    timers = [threading.Timer(_SOON, tell), threading.Timer(60 * minutes, give_up)]
    for timer in timers:
        timer.daemon = True
        timer.start()
    # Python's own handler would only run once the others have come.
    hears = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_DFL) if hears else None
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        if hears:
            signal.signal(signal.SIGINT, before)


def _client():
    """The connection to the service at process 0; None outside of such a run."""
    from jax._src import distributed  # which has no public name

    return distributed.global_state.client


def _keep_programs() -> None:
    """Lets every process keep its compiled programs on the disk.

    JAX lets process 0 alone write them. On CPUs, though, a program has another name in
    the cache for every process, so that all but the first one would always compile anew
    and the first one wait for them.
    """
    from jax._src import compiler

    if jax.default_backend() == "cpu":
        state = SimpleNamespace(process_id=0, client=None)
        compiler.distributed = SimpleNamespace(global_state=state)


def _meet(wait_minutes: float) -> None:
    """Connects all devices to all.

    Gloo makes a connection when it is first used, and gives the others 30 s to come; on
    what is connected it waits as long as it takes. So this is not left to the first
    program, for which one process may compile much longer than another.
    """
    mesh = Mesh(np.array(jax.devices()), ("all",))
    each, whole = (NamedSharding(mesh, P(*axes)) for axes in (["all"], []))
    zeros = processes.put(np.zeros(mesh.size, np.float32), each)
    add = jax.jit(jnp.sum, out_shardings=whole).lower(zeros).compile()
    connections = {
        "devices": lambda: jax.block_until_ready(add(zeros)),
        "processes": lambda: processes.most(0),
    }
    for name, connect in connections.items():
        barrier = f"sparsefl_jax/{name}"
        _client().wait_at_barrier(barrier, int(60_000 * wait_minutes))
        connect()


def _watch() -> None:
    """Ends this process, whatever it does, when another one has left word why."""
    over = threading.Event()

    def watch():
        while not over.wait(_POLL):
            if said := _word():
                _end(f"error: {said}", 1)

    def stop():
        over.set()
        thread.join()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    atexit.register(stop)  # runs before JAX takes leave of the service
    before = sys.excepthook

    def hook(kind, error, trace):
        if lost(error):
            leave(f"error: {explained(error)}")
        before(kind, error, trace)
        _end(f"error: {kind.__name__}: {one_line(error)}", 1, show=False)

    sys.excepthook = hook


def _word() -> str:
    """What another process has said; '' if nothing."""
    try:
        return _client().key_value_try_get(_WHY)
    except jax.errors.JaxRuntimeError:
        return ""


def lost(error: BaseException) -> bool:
    """Whether an error may come of another process that has ended."""
    joined = jax.distributed.is_initialized()
    return joined and isinstance(error, jax.errors.JaxRuntimeError)


def explained(error: BaseException) -> str:
    """Why a computation of several processes has failed, in one line."""
    text = one_line(error)
    if not any(sign in text for sign in _BROKEN):
        return text
    for _ in range(10):
        if said := _word():
            return said
        time.sleep(0.1)
    return "another process of this run has ended without a word, perhaps it was killed"


def leave(text: str, code: int = 1) -> None:
    """Prints a line and ends this process; one of several tells the others why.

    Raises:
      SystemExit: there are no others.
    """
    if jax.distributed.is_initialized():
        _end(text, code)
    print(text, file=sys.stderr)
    sys.exit(code)


def _end(text: str, code: int, show: bool = True) -> None:
    _ending.acquire()
    if show:
        print(text, file=sys.stderr)
    said = f"process {jax.process_index()} has ended: {text.removeprefix('error: ')}"
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # another one has said why
        _client().key_value_set(_WHY, said)
    # Process 0 takes the service with it.
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        _client().wait_at_barrier("sparsefl_jax/parting", _PARTING)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
