# SPDX-License-Identifier: Apache-2.0
"""Ends of scopes: this rank will not ask for names with a certain prefix any more."""

from __future__ import annotations

from hvd_tf._internal import native
from hvd_tf._internal.names import GRADIENT_PREFIX


def end_scope(prefix: str, text: str) -> None:
    """Peers that wait for this rank in a call of such a name fail with `text`; "" takes it back.

    The runtime puts the call's name and this rank in front of the text.
    """
    for process_set_id in native.process_set_ids():
        if native.lib.hvd_process_set_rank(process_set_id) >= 0:  # this rank is a member
            native.lib.hvd_end_scope(process_set_id, prefix.encode(), text.encode())


def end_training(text: str) -> None:
    """Peers that wait for a gradient of this rank fail with `text`; "" takes that back."""
    end_scope(GRADIENT_PREFIX, text)
