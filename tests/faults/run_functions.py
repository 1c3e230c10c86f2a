# SPDX-License-Identifier: Apache-2.0
"""Functions for hvd_tf.run."""

from __future__ import annotations

import os
import sys
from typing import Any


def _launched_rank() -> int:
    from hvd_tf._internal import launched

    return launched.rank()


def train(factor: int, add: int = 0) -> dict[str, Any]:
    import tensorflow as tf

    import hvd_tf as hvd

    hvd.init(process_sets=[[0]])
    mean = hvd.allreduce(tf.constant(float(hvd.rank() * factor + add)), name="mean").numpy()
    return {"rank": hvd.rank(), "mean": float(mean)}


def ranks_alone() -> int:
    """Each rank is a job of its own, and leaves it running."""
    import hvd_tf as hvd

    hvd.init()
    number = hvd.rank()
    hvd.shutdown()
    hvd.init(comm=[number])
    return number * 10 + hvd.size()


def fail_before_init() -> None:
    if _launched_rank() == 1:
        raise KeyError("wrong shoe size")


def exit_before_init() -> None:
    if _launched_rank() == 1:
        sys.exit("wrong shoe size")


def fail_after_shutdown() -> None:
    import hvd_tf as hvd

    hvd.init()
    number = hvd.rank()
    hvd.shutdown()
    if number == 1:
        raise KeyError("wrong shoe size")


def fail() -> None:
    import hvd_tf as hvd

    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("wrong shoe size")


def train_from_commit(rate: float, *, mark: str) -> tuple[float, int]:
    """Fails where the file is not there yet, and makes it. Returns the step at which it began."""
    import hvd_tf as hvd

    hvd.init()

    @hvd.elastic.run
    def train(state: Any) -> int:
        began = int(state.step)
        state.step = 6
        state.commit()
        if not os.path.exists(mark):
            open(mark, "x").close()
            raise ValueError("wrong shoe size")
        return began

    return rate, train(hvd.elastic.ObjectState(step=0))
