"""The peers' side of a comparison: runs a round when the other process requests one.

A worker gets the set-up as JSON in the environment, writes a line of facts once it is
ready, then for every line that it reads runs a round and writes a line. What libraries
print goes to the error stream.
"""

import json
import os
import sys


def setup() -> dict:
    """What to train: a workload's fields, and the shape, classes and rate."""
    return json.loads(os.environ["PEER_SETUP"])


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Turns:
    """One end of the pipe."""

    def __init__(self):
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def tell(self, **facts) -> None:
        """Reports that the worker is ready, or that a round is done."""
        print(json.dumps(facts), file=self._out, flush=True)

    def wait(self) -> bool:
        """Returns whether another round is requested."""
        return bool(sys.stdin.readline())
