# SPDX-License-Identifier: Apache-2.0
"""Gives all ranks one rank's global variables, in a session of a graph."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_tf import ops
from hvd_tf._internal.compat import v1
from hvd_tf._internal.facts import check_same_sets
from hvd_tf._internal.names import ROOT_PREFIX, variable_names
from hvd_tf._internal.runtime import global_process_set, rank, size
from hvd_tf._internal.variables import broadcast_global_variables


class RootVariables:
    """The operations that compare the ranks' lists of global variables and send the root's values.

    Make it on every rank, while the graph can still be changed. The job has several ranks.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        """root_rank: a rank of the job. device: for the broadcasts. "" leaves it to TensorFlow."""
        self._root_rank = root_rank
        listing = sorted(
            f"{variable.name.split(':')[0]} {variable.dtype.base_dtype.name} {variable.shape}"
            for variable in v1.global_variables()
        )
        text = json.dumps(listing).encode()
        with tf.device(device):
            self._digests = _gather(hashlib.sha256(text).digest(), "digests")
            self._listings = [
                _gather(np.array([len(text)], np.int64), "listing_sizes"),
                _gather(text, "listings"),
            ]
            self.broadcast_op = broadcast_global_variables(root_rank)

    def check(self, session: v1.Session) -> None:
        """Raise ValueError on every rank if the ranks' variables differ."""
        digests = session.run(self._digests).reshape(size(), -1)
        if (digests == digests[0]).all():
            return
        sizes, joined = session.run(self._listings)
        texts = np.split(joined, np.cumsum(sizes)[:-1])
        listings = [json.loads(text.tobytes()) for text in texts]
        check_same_sets(
            listings,
            self._root_rank,
            "the global variables",
            "every rank must build the same model",
        )

    def broadcast(self, session: v1.Session) -> None:
        """Take the root's values, on every rank, after `check`."""
        session.run(self.broadcast_op)


class LateRootVariables:
    """The operations that send the values of a root that is known only when they run.

    The root of a broadcast is a part of the graph. So each variable is gathered instead, as one row
    of the root and none of the other ranks.

    Make it on every rank, while the graph can still be changed. The job has several ranks.
    """

    def __init__(self) -> None:
        variables = v1.global_variables()
        self._rows = v1.placeholder(tf.int32, [], f"{ROOT_PREFIX}rows")
        updates = []
        for variable, name in zip(variables, variable_names(variables)):
            value = tf.identity(variable)  # read where the variable is
            with tf.device("CPU"):  # GPUs may lack room for all twice
                gathered = ops.allgather(
                    tf.expand_dims(value, 0)[: self._rows],
                    name=f"{ROOT_PREFIX}late/{name}",
                    ignore_name_scope=True,
                    process_set=global_process_set,
                )
            updates.append(variable.assign(gathered[0]).op)
        self._update = tf.group(*updates)

    def broadcast(self, session: v1.Session, root_rank: int) -> None:
        """Take the root's values, on every rank."""
        session.run(self._update, {self._rows: int(rank() == root_rank)})


def _gather(data: Any, name: str) -> tf.Tensor:
    """Concatenate bytes, or an array, of all ranks."""
    if isinstance(data, bytes):
        data = np.frombuffer(data, np.uint8)
    with tf.device("CPU"):
        return ops.allgather(
            tf.constant(data),
            name=f"{ROOT_PREFIX}{name}",
            ignore_name_scope=True,
            process_set=global_process_set,
        )
