# SPDX-License-Identifier: Apache-2.0
"""Passing Python objects between ranks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from hvd_tf import ops
from hvd_tf._internal import pickling
from hvd_tf._internal.compat import v1
from hvd_tf._internal.op_names import unnamed
from hvd_tf._internal.runtime import ProcessSet, global_process_set, rank

# Bytes of pickled objects that travel at a time, of all ranks together.
_SHARD_BYTES = 1 << 30


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Optional[v1.Session] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object on every rank of the set. Synchronous.

    Only bytes that a rank of the job sent over the job's own transport are unpickled. All ranks
    are therefore trusted alike: they are one program of one user.

    Args:
      obj: on the root, anything that pickle can store (or cloudpickle, where it is installed: it
        adds lambdas and local functions). Ignored elsewhere. May exceed 2 GiB.
      root_rank: rank in the job (not within the process set) whose object is taken.
      session: accepted for Horovod's sake. Not used, since nothing enters the caller's graph.
      name: tells calls from different threads apart, and is the same on every rank. Threads other
        than the main one and the one that called `init` need it.
      process_set: the ranks that take part.

    Returns:
      `obj` itself on the root, a copy of the root's elsewhere.

    Raises:
      ValueError: on every rank, when the root's object cannot be pickled; or before `init`; or
        without a name in a thread that needs one.
      RuntimeError: while a tf.function is traced.
    """
    del session
    channel = _HostCollectives(name or unnamed("broadcast_object"), process_set)
    is_root = rank() == root_rank
    payload, error = _pickle(obj) if is_root else (b"", None)
    header = np.array([error is not None, len(payload)], np.int64)
    failed, size = channel.broadcast(header, root_rank, "size")
    shards = []
    for start in range(0, int(size), _SHARD_BYTES):
        count = min(_SHARD_BYTES, int(size) - start)
        shard = np.zeros(count, np.uint8)
        if is_root:
            shard = np.frombuffer(payload, np.uint8, count, start)
        received = channel.broadcast(shard, root_rank, "bytes")
        if not is_root:
            shards.append(received)
    data = payload if is_root else b"".join(shards)
    if failed:
        raise ValueError(
            f"broadcast_object: rank {root_rank} could not pickle its object: {data.decode()}"
        ) from error
    return obj if is_root else pickle.loads(data)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Optional[v1.Session] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function of one argument that calls `broadcast_object` with the other arguments set."""

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


def allgather_object(
    obj: Any,
    session: Optional[v1.Session] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns the objects of all ranks of the set, in the order of their ranks. Synchronous.

    Ranks that have called `join` have none, so the list is shorter while there are some.

    Arguments, trust and errors are `broadcast_object`'s. Every rank's object must be picklable.
    """
    del session
    channel = _HostCollectives(name or unnamed("allgather_object"), process_set)
    payload, error = _pickle(obj)
    headers = channel.allgather(
        np.array([[error is not None, len(payload), rank()]], np.int64), "size"
    )
    parts: list[list[np.ndarray]] = [[] for _ in headers]
    sizes = [int(size) for _, size, _ in headers]
    step = max(1, _SHARD_BYTES // len(sizes))
    mine = np.frombuffer(payload, np.uint8)
    for start in range(0, max(sizes), step):
        gathered = channel.allgather(mine[start : start + step], "bytes")
        offset = 0
        for part, size in zip(parts, sizes):
            count = min(max(size - start, 0), step)
            part.append(gathered[offset : offset + count])
            offset += count
    data = [b"".join(part) for part in parts]
    failures = [
        f"rank {sender}: {text.decode()}"
        for text, (failed, _, sender) in zip(data, headers)
        if failed
    ]
    if failures:
        raise ValueError(
            f"allgather_object: objects that could not be pickled: {'; '.join(failures)}"
        ) from error
    return [pickle.loads(pickled) for pickled in data]


class _HostCollectives:
    """Runs one collective at a time on NumPy arrays, in eager code and beside any graph."""

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        process_set.size()  # raises ValueError before init; the operations would too, as OpError
        self._name = name
        self._process_set = process_set
        if v1.executing_eagerly_outside_functions() and not tf.executing_eagerly():
            raise RuntimeError(
                f"{name} passes Python objects, so it cannot be a part of a tf.function: "
                "call it outside"
            )

    def broadcast(self, array: np.ndarray, root_rank: int, part: str) -> np.ndarray:
        return self._run(
            lambda tensor, **common: ops.broadcast(tensor, root_rank, **common), array, part
        )

    def allgather(self, array: np.ndarray, part: str) -> np.ndarray:
        return self._run(ops.allgather, array, part)

    def _run(self, verb: Callable[..., tf.Tensor], array: np.ndarray, part: str) -> np.ndarray:
        common = {
            "name": f"{self._name}/{part}",
            "ignore_name_scope": True,
            "process_set": self._process_set,
        }
        if tf.executing_eagerly():
            with tf.device("CPU"):  # whatever GPUs the ranks have
                return verb(tf.constant(array), **common).numpy()
        # A graph of its own: the caller's may be finalized. Fed, because a graph's constants
        # end at 2 GiB. Without GPUs: the caller's session may number them in another way.
        config = v1.ConfigProto(device_count={"GPU": 0})
        with tf.Graph().as_default(), v1.Session(config=config) as session:
            fed = v1.placeholder(array.dtype, array.shape)
            return session.run(verb(fed, **common), {fed: array})


def _pickle(obj: Any) -> tuple[bytes, Optional[Exception]]:
    """The pickled object and None, or the error's text as UTF-8 and the error."""
    try:
        return pickling.dumps(obj), None
    except Exception as error:
        return _words_of(error), error


def _words_of(error: Exception) -> bytes:
    # It may name a file whose name is no UTF-8.
    return f"{type(error).__name__}: {error}".encode(errors="backslashreplace")
