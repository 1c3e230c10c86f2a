# SPDX-License-Identifier: Apache-2.0
"""Functions for hvd_tf.run."""

from __future__ import annotations

from typing import Any


def train(factor: int, add: int = 0) -> dict[str, Any]:
    import tensorflow as tf

    import hvd_tf as hvd

    hvd.init(process_sets=[[0]])
    mean = hvd.allreduce(tf.constant(float(hvd.rank() * factor + add)), name="mean").numpy()
    return {"rank": hvd.rank(), "mean": float(mean)}


def fail() -> None:
    import hvd_tf as hvd

    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("wrong shoe size")
