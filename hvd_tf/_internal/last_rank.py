# SPDX-License-Identifier: Apache-2.0
"""`wait_for_last`: this rank has no more data, and waits for the ranks that have."""

from __future__ import annotations

import tensorflow as tf

from hvd_tf import ops
from hvd_tf._internal.compat import eager_mode
from hvd_tf._internal.runtime import ProcessSet, global_process_set


def wait_for_last(process_set: ProcessSet = global_process_set) -> int:
    """Join, from eager code or beside any graph, until all ranks of the set have.

    Returns:
      The rank of the job that came last. It has taken the last step.

    Raises:
      tf.errors.UnknownError: a peer is lost.
    """
    with eager_mode(), tf.device("CPU"):
        return int(ops.join(process_set))
