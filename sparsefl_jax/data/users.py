"""Who wrote each sample: ids of any kind as int32, no two users as one."""

import numpy as np

_INT32 = np.iinfo(np.int32)


def number(given: dict, lengths: dict) -> dict:
    """Numbers users alike in all splits.

    Args:
      given: by name, ids [n], integers or strings in any array or list; None: unknown.
      lengths: by name, how many samples there are.

    Returns:
      By name [n] int32, or None. Integers that fit stay as they are; others and strings
      become their places in ascending order.

    Raises:
      ValueError: there are more or fewer than one for each sample, or of another kind.

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
    """Ids as Python's own integers or strings, of which no two are merged."""
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
    for at, user in enumerate(ids):
        if isinstance(user, bool) or not isinstance(user, kind):
            raise ValueError(
                f"{name}[{at}]={user!r} is a {type(user).__name__}, expected "
                "integers, or strings, for all of them"
            )
    return ids
