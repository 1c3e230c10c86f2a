# SPDX-License-Identifier: Apache-2.0
"""Pickling as all of hvd_tf does: by pickle, else by cloudpickle, where it is installed."""

from __future__ import annotations

import pickle
from typing import IO, Any


def dumps(obj: Any) -> bytes:
    """The pickled object. Raises what pickle or cloudpickle raises, which may be anything."""
    try:
        return pickle.dumps(obj, protocol=5)
    except Exception:  # pickle lets through whatever __reduce__ raises
        try:
            import cloudpickle
        except ImportError:
            cloudpickle = None
        if cloudpickle is None:
            raise
    pickled: bytes = cloudpickle.dumps(obj, protocol=5)
    return pickled


def dump(obj: Any, file: IO[bytes]) -> None:
    """The same to an empty file. A large object is not in memory a second time."""
    try:
        pickle.dump(obj, file, protocol=5)
        return
    except (OSError, MemoryError):  # of the file
        raise
    except Exception:
        try:
            import cloudpickle
        except ImportError:
            cloudpickle = None
        if cloudpickle is None:
            raise
    file.seek(0)
    file.truncate()
    cloudpickle.dump(obj, file, protocol=5)
