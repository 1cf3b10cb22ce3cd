"""The folder of a run: whose it may be, and a file system without locks."""

import errno
import fcntl
import warnings

import pytest

from sparsefl_jax.config.fields import Config
from sparsefl_jax.runs import folder


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_once(tmp_path, monkeypatch, number):
    """As NFS without its lock daemon answers, and Lustre mounted without `flock`."""

    def flock(file, operation):
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(2):
            with folder.lock(tmp_path):
                assert not folder.in_use(tmp_path)
    assert "no locks here" in str(told[0].message)
    assert len({str(one.message) for one in told}) == 1


def test_a_folder_with_files_of_others_is_left_alone(tmp_path):
    (tmp_path / "lock").touch()  # such as a run leaves that was killed at its start
    folder.check_folder(tmp_path, Config(), resume=False)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match="holds notes.txt, expected an empty dir"):
        folder.check_folder(tmp_path, Config(), resume=False)
