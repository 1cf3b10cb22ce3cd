"""Joins the processes of a run, and ends all of them when one fails.

A process that fails ends at once, without waiting for the others as JAX would: its
connections close, and so the next computation of the others fails. If process 0 has
ended, or one of them stops answering, JAX itself ends the others.
"""

import contextlib
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

from sparsefl_jax.core import users_code
from sparsefl_jax.core.check import UserError, check, one_line
from sparsefl_jax.system import processes

# Seconds after which a process that sends no heartbeat, or does not shut down with the
# others, counts as lost, so that the others end.
HEARTBEAT, SHUTDOWN = 100, 60
WAIT_MINUTES = 5.0
_GRACE = 1.0  # seconds in which the others may print why they fail like process 0
_BROKEN = ("Gloo", "NCCL", "coordination", "closed by peer", "Socket closed")


def start(
    coordinator: str | None = None,
    count: int | None = None,
    index: int | None = None,
    wait_minutes: float = WAIT_MINUTES,
) -> None:
    """Joins this process to the others of its run; call it before anything else of JAX.

    Without arguments, `jax.distributed.initialize` uses the launcher: SLURM, Open MPI,
    Kubernetes or a TPU pod. If the other processes do not start in time, this process
    prints an error and exits with code 2. From then on an error that nothing catches
    ends the process at once.

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
      >>> start("10.0.0.1", 2, 0)
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: coordinator='10.0.0.1', expected host:port
    """
    if coordinator is not None and not re.fullmatch(r".+:\d+", coordinator):
        raise UserError(f"coordinator={coordinator!r}, expected host:port")
    check("wait_minutes", wait_minutes, "(0, inf)")
    # `interrupt` handles the signals.
    jax.config.update("jax_enable_preemption_service", False)
    _join((coordinator, count, index), wait_minutes)
    if processes.are_several():
        _meet()
    old_hook = sys.excepthook

    def hook(kind, error, trace):
        if lost(error):
            leave(f"error: {one_line(error)}")
        old_hook(kind, error, trace)
        _end(1)

    sys.excepthook = hook


def _join(arguments: tuple, minutes: float) -> None:
    """Joins the others, or ends this process if they do not start in time."""
    coordinator, *_ = arguments
    place = f" at {coordinator}" if coordinator else ""

    def give_up():
        print(
            f"error: the other processes have not come{place} within "
            f"wait_minutes={minutes:g}, expected all to be started, with the same "
            "coordinator and number",
            file=sys.stderr,
            flush=True,
        )
        os._exit(2)

    timer = threading.Timer(60 * minutes, give_up)
    timer.daemon = True
    timer.start()
    # Python's own handler would not run before the others have started.
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        jax.distributed.initialize(
            *arguments,
            # JAX aborts the process at its limit, so the timer has a lower one.
            initialization_timeout=int(60 * minutes) + 600,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=SHUTDOWN,
        )
    except ValueError as error:
        if coordinator is not None:
            raise
        raise UserError(
            "found no launcher of several processes, expected SLURM, Open MPI or "
            "Kubernetes, or --coordinator=host:port --processes=P --process_id=I"
        ) from error
    except jax.errors.JaxRuntimeError as error:
        raise UserError(f"coordinator={coordinator!r}: {one_line(error)}") from error
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, handler)


def _meet() -> None:
    """Connects all devices with each other, and then the processes.

    Gloo opens a connection on first use and waits 30 s for the other side; on an open
    connection it waits without a limit. So the connections cannot be left to the first
    program, which one process may compile much longer than another.
    """
    mesh = Mesh(np.array(jax.devices()), ("all",))
    sharded, replicated = (NamedSharding(mesh, P(*axes)) for axes in (["all"], []))
    zeros = processes.put(np.zeros(mesh.size, np.float32), sharded)
    jax.block_until_ready(jax.jit(jnp.sum, out_shardings=replicated)(zeros))
    processes.most(0)


@contextlib.contextmanager
def guard() -> Iterator[None]:
    """Prints user errors as one line, and ends the process with code 2.

    So are files that cannot be read or written, a loss that is not finite, and a lack
    of memory. All else keeps its traceback, as does what a user's own code raises.
    Modules in the current folder can be imported too, wherever `launch.py` is. With
    `SPARSEFL_DEBUG=1` every exception is raised with its traceback.
    """
    sys.path.append(os.getcwd())  # last, so that nothing there replaces a package
    if os.environ.get("SPARSEFL_DEBUG"):
        yield
        return
    try:
        yield
    except KeyboardInterrupt:
        leave("interrupted; what was saved is kept", 130)
    except Exception as error:
        code = _code(error)
        if code is None:
            raise
        leave(f"error: {one_line(error)}", code)


def _code(error: Exception) -> int | None:
    """Returns the exit code of an error that is told in one line, None for others."""
    if isinstance(error, UserError):
        return 2
    if users_code.owns(error):
        return None
    if isinstance(error, OSError):
        return 2
    if isinstance(error, RuntimeError):  # XLA's errors are of this class
        return 1 if "RESOURCE_EXHAUSTED" in str(error) or lost(error) else None
    return 1 if isinstance(error, FloatingPointError | MemoryError) else None


def lost(error: object) -> bool:
    """Returns whether an error says that another process of this run has ended."""
    joined = jax.distributed.is_initialized()
    return joined and any(sign in str(error) for sign in _BROKEN)


def leave(text: str, code: int = 1) -> None:
    """Prints a line and ends this process, by which the others of its run end.

    Args:
      text: the line.
      code: the exit code.

    Raises:
      SystemExit: this is the only process.
    """
    if lost(text):
        text = "error: another process of this run has ended; its output says why"
    print(text, file=sys.stderr)
    if jax.distributed.is_initialized():
        _end(code)
    sys.exit(code)


def _end(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if processes.leads():  # with which the service of JAX ends, and so the others
        time.sleep(_GRACE)
    os._exit(code)
