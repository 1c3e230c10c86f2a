# SPDX-License-Identifier: Apache-2.0
"""`MetricSums`: adds up the ranks' states of an evaluation's metrics, once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from hvd_tf import ops
from hvd_tf._internal.compat import v1
from hvd_tf._internal.runtime import Sum, global_process_set

# float64 and int64 have more bits than single states, for the sums of many ranks.
_WIDE = (tf.float64, tf.int64)


class MetricSums:
    """The operations that replace each rank's state by the state after all ranks' batches.

    Make it on every rank, while the graph can still be changed. If a state does not begin at zero,
    its initial value counts once.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        """variables: the states, the same on every rank and in the same order."""
        self._variables = list(variables)
        self._begin = [v1.placeholder(v.dtype.base_dtype, v.shape) for v in self._variables]
        self._values: list[np.ndarray] = []
        assigned = []
        for dtype in _WIDE:
            chosen = [
                (variable, begin)
                for variable, begin in zip(self._variables, self._begin)
                if variable.dtype.base_dtype.is_floating == dtype.is_floating
            ]
            if chosen:
                assigned += _sums(chosen, dtype)
        self._sum_op = tf.group(*assigned)

    def remember(self, session: v1.Session) -> None:
        """Keeps the states before the first batch."""
        self._values = session.run(self._variables)

    def sum(self, session: v1.Session) -> None:
        """Adds up the states. Call it on every rank, after its last batch."""
        session.run(self._sum_op, dict(zip(self._begin, self._values)))


def _sums(states: Sequence[tuple[tf.Variable, tf.Tensor]], dtype: tf.DType) -> list[tf.Tensor]:
    """The operations that assign each state its sum. Sums are sent as `dtype` in one vector."""
    added = [tf.cast(v.read_value(), dtype) - tf.cast(begin, dtype) for v, begin in states]
    with tf.device("CPU"):  # as metrics are, most of the time
        vector = ops.allreduce(
            tf.concat([tf.reshape(delta, [-1]) for delta in added], axis=0),
            op=Sum,
            name=f"evaluation/{dtype.name}_sums",
            ignore_name_scope=True,
            process_set=global_process_set,
        )
    parts = tf.split(vector, [tf.size(delta) for delta in added])
    assigned = []
    for (variable, begin), part in zip(states, parts):
        total = tf.reshape(part, tf.shape(begin)) + tf.cast(begin, dtype)
        assigned.append(v1.assign(variable, tf.cast(total, begin.dtype)))
    return assigned
