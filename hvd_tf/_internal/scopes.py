# SPDX-License-Identifier: Apache-2.0
"""Ends of scopes: this rank will not ask for certain names any more."""

from __future__ import annotations

import threading

import tensorflow as tf

from hvd_tf._internal import native
from hvd_tf._internal.graph_names import collectives_of
from hvd_tf._internal.names import (
    BROADCAST_PREFIX,
    DATA_PREFIX,
    END_TOGETHER_PREFIX,
    GRADIENT_PREFIX,
    ROOT_PREFIX,
)

# The names of collectives that hooks run beside the steps begin with these.
_NOT_OF_STEPS = (BROADCAST_PREFIX, ROOT_PREFIX)

_data_lock = threading.Lock()
_data_failure = ""  # guarded by it: what peers have been told that wait in hvd_tf.data


def end_scope(name: str, text: str) -> None:
    """Peers that wait for this rank in a call of that name fail with `text`; "" takes it back.

    A name that ends with "/" stands for all that begin with it. The runtime puts the call's name
    and this rank in front of the text.
    """
    for process_set_id in native.process_set_ids():
        if native.lib.hvd_process_set_rank(process_set_id) >= 0:  # this rank is a member
            # An error may name a file whose name is no UTF-8.
            words = text.encode(errors="backslashreplace")
            native.lib.hvd_end_scope(process_set_id, name.encode(), words)


def end_training(text: str) -> None:
    """Peers that wait for a gradient of this rank fail with `text`; "" takes that back."""
    end_scope(GRADIENT_PREFIX, text)


def leave_training(text: str) -> None:
    """The same where this rank is in no training any more, and will not agree on its end either."""
    end_training(text)
    end_scope(END_TOGETHER_PREFIX, text)


def fail_data(text: str) -> None:
    """Peers that wait for this rank in `hvd_tf.data` fail with `text`; "" takes that back."""
    global _data_failure
    with _data_lock:
        _data_failure = text
        end_scope(DATA_PREFIX, text)


def fail_data_again() -> None:
    """Call it in another thread after a collective of `hvd_tf.data`.

    That may have come to the leader behind what peers were told, and has then taken it back.
    """
    with _data_lock:
        if _data_failure:
            end_scope(DATA_PREFIX, _data_failure)


def leave_data_failed() -> None:
    """What peers have been told stays so, but is not told again: this rank may start anew."""
    global _data_failure
    with _data_lock:
        _data_failure = ""


def has_gradients(graph: tf.Graph) -> bool:
    """Whether a step of this graph of TF 1 may reduce gradients."""
    return any(name.startswith(GRADIENT_PREFIX) for name in collectives_of(graph))


def end_steps(graph: tf.Graph, text: str) -> None:
    """The same of all other collectives that a step of this graph of TF 1 may have."""
    for name in collectives_of(graph):
        if not name.startswith((GRADIENT_PREFIX, *_NOT_OF_STEPS)):
            end_scope(name, text)
