# SPDX-License-Identifier: Apache-2.0
"""A pass that fails on one rank, whose peers are told, as `EndTogetherHook` tells them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf

import hvd_tf
from hvd_tf._internal.scopes import end_training


def failed_pass(run: Callable[[], None], is_mine: bool) -> None:
    """`run` fails on a rank whose it is by an assertion, on the others by their reduction."""
    if is_mine:
        with pytest.raises(tf.errors.InvalidArgumentError):
            run()
        end_training("its pass failed")
    else:
        with pytest.raises(tf.errors.UnknownError, match="its pass failed"):
            run()
    hvd_tf.allgather_object(None)  # all have failed
    end_training("")
    hvd_tf.allgather_object(None)
