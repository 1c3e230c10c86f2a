# SPDX-License-Identifier: Apache-2.0
"""Reads what a dataset is made of while it is being built, also in a graph of TF 1."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import tensorflow as tf

from hvd_tf._internal.compat import v1


def early_value(scalar: Any) -> Optional[int]:
    """The value of an integer scalar. None if it depends on something that is initialised later."""
    value = early_array(scalar)
    return None if value is None else int(value)


def early_array(tensor: Any) -> Optional[np.ndarray]:
    """The value of a tensor. None if it depends on something that is initialised later."""
    value = tf.get_static_value(tensor)
    if value is not None:
        return np.asarray(value)
    try:
        with v1.Session(graph=tensor.graph, config=v1.ConfigProto(device_count={"GPU": 0})) as once:
            return np.asarray(once.run(tensor))
    except (tf.errors.OpError, AttributeError):  # AttributeError: it is in no graph
        return None
