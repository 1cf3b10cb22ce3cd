"""The folder of a run on a file system without locks."""

import errno
import fcntl

import pytest

from sparsefl_jax.runs import folder


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_once(tmp_path, monkeypatch, number):
    """As NFS without its lock daemon answers, and Lustre mounted without `flock`."""
    said = []

    def flock(file, operation):
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr("builtins.print", lambda *args, **_: said.append(args[0]))
    for _ in range(2):
        with folder.locked(tmp_path):
            assert not folder.in_use(tmp_path)
    folder._say_unlocked.cache_clear()
    assert len(said) == 1 and "no locks here" in said[0]
