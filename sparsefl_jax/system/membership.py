"""Joins the processes of a run, and ends all of them when one fails.

The processes meet at JAX's coordination service on process 0. A process that fails
leaves the reason there, and all others end with that line. Otherwise they would wait
for it in their next computation, or fail with a network error.
"""

import atexit
import contextlib
import functools
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core.validate import in_range, one_line
from sparsefl_jax.system import processes

# Seconds after which a process that sends no heartbeat, or does not shut down with the
# others, counts as lost, so that the others end.
HEARTBEAT, SHUTDOWN = 100, 60
WAIT_MINUTES = 5.0
_NOTICE = 5.0  # seconds of waiting after which a process prints a notice
_POLL = 1.0  # seconds between two checks for a failure elsewhere
_PARTING = 5_000  # milliseconds for the others to read the reason
_REASON = "sparsefl_jax/why"
_BROKEN = ("Gloo", "NCCL", "coordination", "closed by peer", "Socket closed")

_ending = threading.Lock()  # held by the thread that ends this process


def start(
    coordinator: str | None = None,
    count: int | None = None,
    index: int | None = None,
    wait_minutes: float = WAIT_MINUTES,
) -> None:
    """Joins this process to the others of its run; call it before anything else of JAX.

    Without arguments, `jax.distributed.initialize` asks the launcher: SLURM, Open MPI,
    Kubernetes or a TPU pod. If the other processes do not start in time, this process
    prints an error and exits with code 2.

    Args:
      coordinator: 'host:port' of process 0, which listens on that port.
      count: P, the number of processes.
      index: the index of this process, from 0 to P - 1.
      wait_minutes: the time to wait for the others, in minutes.

    Raises:
      ValueError: some arguments are missing or out of range, there is no launcher, or
        the port cannot be used.
      RuntimeError: JAX has already started.

    Example:
      >>> start("10.0.0.1:4321", 2, 0)  # doctest: +SKIP
      >>> start("10.0.0.1:4321", 2, 2)
      Traceback (most recent call last):
        ...
      ValueError: coordinator='10.0.0.1:4321', processes=2, process_id=2, expected all
      three: host:port, P, and an integer from 0 to P - 1
    """
    arguments = coordinator, count, index
    complete = (
        coordinator is not None
        and count is not None
        and index is not None
        and re.fullmatch(r".+:\d+", coordinator)
        and 0 <= index < count
    )
    if arguments != (None, None, None) and not complete:
        raise ValueError(
            f"coordinator={coordinator!r}, processes={count}, process_id={index}, "
            "expected all three: host:port, P, and an integer from 0 to P - 1"
        )
    in_range("wait_minutes", wait_minutes, "(0, inf)")
    # `interrupt` handles the signals.
    jax.config.update("jax_enable_preemption_service", False)
    with _waiting(coordinator, wait_minutes):
        _initialize(arguments, wait_minutes)
    if _client() is None:  # the launcher started a single process
        return
    _watch()
    _meet(wait_minutes)


def _initialize(arguments: tuple, wait_minutes: float) -> None:
    coordinator, *_ = arguments
    try:
        jax.distributed.initialize(
            *arguments,
            # JAX aborts the process at its limit, so `_waiting` has a lower one.
            initialization_timeout=int(60 * wait_minutes) + 600,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=SHUTDOWN,
        )
    except ValueError as error:
        if coordinator is not None:
            raise
        raise ValueError(
            "found no launcher of several processes, expected SLURM, Open MPI or "
            "Kubernetes, or --coordinator=host:port --processes=P --process_id=I"
        ) from error
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"coordinator={coordinator!r}: {one_line(error)}") from error


@contextlib.contextmanager
def _waiting(coordinator: str | None, minutes: float) -> Iterator[None]:
    """Prints that this process waits for others, and ends it if they do not come."""
    place = f" at {coordinator}" if coordinator else ""

    say = functools.partial(print, file=sys.stderr, flush=True)
    notice = f"waiting for the other processes{place}, {minutes:g} minutes at most"

    def give_up():
        say(
            f"error: the other processes have not come{place} within "
            f"wait_minutes={minutes:g}, expected all to be started, with the same "
            "coordinator and number"
        )
        os._exit(2)

    timers = [
        threading.Timer(_NOTICE, say, [notice]),
        threading.Timer(60 * minutes, give_up),
    ]
    for timer in timers:
        timer.daemon = True
        timer.start()
    # Python's own handler would not run before the others have come.
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL) if is_main else None
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        if is_main:
            signal.signal(signal.SIGINT, handler)


def _client():
    """Returns the client of the service at process 0; None in a single process.

    It is the only part of JAX without a public name that this package reads.

    Raises:
      RuntimeError: this version of JAX keeps it elsewhere.
    """
    try:
        from jax._src import distributed

        return distributed.global_state.client
    except (ImportError, AttributeError) as error:
        raise RuntimeError(
            f"runs of several processes do not work with jax {jax.__version__}: {error}"
        ) from None


def _meet(wait_minutes: float) -> None:
    """Connects all devices with each other.

    Gloo opens a connection on first use and waits 30 s for the other side; on an open
    connection it waits without a limit. So the connections cannot be left to the first
    program, which one process may compile much longer than another.
    """
    mesh = Mesh(np.array(jax.devices()), ("all",))
    sharded, replicated = (NamedSharding(mesh, P(*axes)) for axes in (["all"], []))
    zeros = processes.put(np.zeros(mesh.size, np.float32), sharded)
    add = jax.jit(jnp.sum, out_shardings=replicated).lower(zeros).compile()
    connections = {
        "devices": lambda: jax.block_until_ready(add(zeros)),
        "processes": lambda: processes.most(0),
    }
    for name, connect in connections.items():
        barrier = f"sparsefl_jax/{name}"
        _client().wait_at_barrier(barrier, int(60_000 * wait_minutes))
        connect()


def _watch() -> None:
    """Starts a thread that ends this process when another one has failed."""
    finished = threading.Event()

    def watch():
        while not finished.wait(_POLL):
            if reason := _reason():
                _end(f"error: {reason}", 1)

    def stop():
        finished.set()
        thread.join()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    atexit.register(stop)  # runs before JAX disconnects from the service
    old_hook = sys.excepthook

    def hook(kind, error, trace):
        if lost(error):
            leave(f"error: {explained(error)}")
        old_hook(kind, error, trace)
        _end(f"error: {kind.__name__}: {one_line(error)}", 1, show=False)

    sys.excepthook = hook


def _reason() -> str:
    """Returns the reason that a failed process has left; '' if there is none."""
    try:
        return _client().key_value_try_get(_REASON)
    except jax.errors.JaxRuntimeError:
        return ""


def lost(error: BaseException) -> bool:
    """Tells whether an error may come from another process that has ended."""
    joined = jax.distributed.is_initialized()
    return joined and isinstance(error, jax.errors.JaxRuntimeError)


def explained(error: BaseException) -> str:
    """Returns the reason why a computation of several processes failed, in one line."""
    text = one_line(error)
    if not any(sign in text for sign in _BROKEN):
        return text
    for _ in range(10):
        if reason := _reason():
            return reason
        time.sleep(0.1)
    return "another process of this run has ended without a reason; it may be killed"


def leave(text: str, code: int = 1) -> None:
    """Prints a line and ends this process, and then the other processes of its run.

    Args:
      text: the line, the reason that the other processes print.
      code: the exit code.

    Raises:
      SystemExit: this is the only process.
    """
    if jax.distributed.is_initialized():
        _end(text, code)
    print(text, file=sys.stderr)
    sys.exit(code)


def _end(text: str, code: int, show: bool = True) -> None:
    _ending.acquire()
    if show:
        print(text, file=sys.stderr)
    reason = f"process {jax.process_index()} has ended: {text.removeprefix('error: ')}"
    # The first reason counts; setting a second one is an error.
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        _client().key_value_set(_REASON, reason)
    # The service ends with process 0, so the others need time to read the reason.
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        _client().wait_at_barrier("sparsefl_jax/parting", _PARTING)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
