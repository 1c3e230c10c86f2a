# SPDX-License-Identifier: Apache-2.0
"""Reads numbers of a dataset while it is being built, also in a graph of TF 1."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.compat import v1


def early_value(scalar: Any) -> Optional[int]:
    """The value of an integer scalar. None if it depends on something that is initialised later."""
    value = tf.get_static_value(scalar)
    if value is not None:
        return int(value)
    try:
        with v1.Session(graph=scalar.graph, config=v1.ConfigProto(device_count={"GPU": 0})) as once:
            return int(once.run(scalar))
    except (tf.errors.OpError, AttributeError):  # AttributeError: it is in no graph
        return None
