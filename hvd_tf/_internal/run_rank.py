# SPDX-License-Identifier: Apache-2.0
"""A rank of `hvd_tf.run`: gets the call, makes it, and has rank 0 write the results."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

from hvd_tf._internal import failure, native
from hvd_tf._internal.objects import allgather_object, broadcast_object
from hvd_tf._internal.run import CALL, RESULTS
from hvd_tf._internal.runtime import init, rank, shutdown

# Files that the next `init` would begin anew.
_OF_THE_FUNCTION = [
    f"{brand}_{name}"
    for brand in ("HVD", "HOROVOD")
    for name in ("TIMELINE", "AUTOTUNE", "AUTOTUNE_LOG")
]


def main(directory: Path) -> None:
    """Make the call of this directory, which is on rank 0's host."""
    init()
    _check(directory)
    data = broadcast_object((directory / CALL).read_bytes() if rank() == 0 else None, 0)
    # The function may pass arguments to init, and its first one is the program's first one.
    shutdown()
    native.lib.hvd_forget_runs()
    try:
        result = _called(data)
    except (SystemExit, KeyboardInterrupt) as error:
        failure.install()
        raise RuntimeError(
            f"run: the function ended by {type(error).__name__}({error}) and returned nothing"
        ) from error
    except BaseException:
        # hvd need not run now. Yet the peers wait for this rank, in `init` below or earlier.
        failure.install()
        raise
    # It may run on some of the ranks.
    shutdown()
    native.lib.hvd_forget_runs()
    for name in _OF_THE_FUNCTION:
        os.environ.pop(name, None)
    # Others may still be at work. They are no stall.
    os.environ["HVD_STALL_WARNING_S"] = "0"
    init()
    results = allgather_object(result)
    if rank() == 0:
        descriptor, draft = tempfile.mkstemp(dir=directory)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_pickled(results))
        os.replace(draft, directory / RESULTS)


def _check(directory: Path) -> None:
    there = broadcast_object((directory / CALL).exists(), 0)
    if not there:
        raise RuntimeError(
            "run: rank 0 is not on the host that called hvd_tf.run: name that host first in hosts="
        )


def _called(data: bytes) -> Any:
    (program, python), rest = pickle.loads(data)
    # In the caller's order. This rank's Python may be another one, so its packages come before the
    # caller's. `python -m` has put the working directory first, where other modules may have the
    # names of the program's.
    here = sys.path[1:] if sys.path[:1] == [os.getcwd()] else sys.path
    sys.path[:] = dict.fromkeys([*program, *here, *python])
    func, args, kwargs = pickle.loads(rest)
    return func(*args, **kwargs)


def _pickled(results: Any) -> bytes:
    try:
        return pickle.dumps(results, protocol=5)
    except Exception:
        import cloudpickle

        data: bytes = cloudpickle.dumps(results)
        return data


if __name__ == "__main__":
    main(Path(sys.argv[1]))
