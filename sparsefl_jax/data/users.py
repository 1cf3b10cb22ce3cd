"""Converts the user ids of samples to int32 without merging two users."""

import numpy as np

_INT32 = np.iinfo(np.int32)


def number(given: dict, lengths: dict) -> dict:
    """Numbers users, with the same number for a user in all splits.

    Args:
      given: by name, ids [n], integers or strings in any array or list, or None.
      lengths: by name, the number of samples n.

    Returns:
      By name, [n] int32, or None where None was given. Integers that fit int32 stay as
      they are. Strings and larger integers become their places in ascending order.

    Raises:
      ValueError: there is not one id for each sample, or an id is neither an integer
        nor a string, or both occur.

    Example:
      >>> ids = {"users": [2**32 + 7, 7], "users_test": [7]}
      >>> number(ids, {"users": 2, "users_test": 1})
      {'users': array([1, 0], dtype=int32), 'users_test': array([0], dtype=int32)}
    """
    known = {k: v for k, v in given.items() if v is not None}
    ids = {name: _plain(name, v, lengths[name]) for name, v in known.items()}
    distinct = set().union(*ids.values())
    if any(isinstance(user, str) for user in distinct):
        ids = {name: [*map(str, v)] for name, v in ids.items()}
        distinct = set(map(str, distinct))
    elif all(_INT32.min <= user <= _INT32.max for user in distinct):
        return given | {name: np.array(v, np.int32) for name, v in ids.items()}
    places = {user: place for place, user in enumerate(sorted(distinct))}
    numbers = {k: np.array([places[u] for u in v], np.int32) for k, v in ids.items()}
    return given | numbers


def _plain(name: str, ids, length: int) -> list:
    """Returns ids as Python integers or strings, without merging any two."""
    ids = np.asarray(ids)
    if ids.shape != (length,):
        raise ValueError(
            f"{name} has shape {ids.shape}, expected {length} ids, one for each sample"
        )
    ids = [
        u.decode("utf-8", "surrogateescape") if isinstance(u, bytes) else u
        for u in ids.tolist()
    ]
    kind = str if ids and isinstance(ids[0], str) else int
    for i, user in enumerate(ids):
        if isinstance(user, bool) or not isinstance(user, kind):
            raise ValueError(
                f"{name}[{i}]={user!r} is a {type(user).__name__}, expected only "
                "integers or only strings"
            )
    return ids
