# SPDX-License-Identifier: Apache-2.0
"""Ends the lines of Keras' progress bar where the launcher holds back what has no end.

The bar draws itself over and over within one line. mpirun of Open MPI 5 passes on whole lines only.
So nothing would be seen before the end of an epoch.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Optional

from hvd_tf._internal.keras.any_keras import AnyKerasCallback

_INTERVAL_S = 1.0
# Set for every rank by Open MPI's mpirun.
_VARIABLE = "OMPI_COMM_WORLD_RANK"


def end_lines(arguments: dict[str, Any]) -> None:
    """Have the progress bar of a `fit` with these arguments shown while it goes on."""
    callbacks = arguments.get("callbacks")
    is_list = callbacks is None or isinstance(callbacks, (list, tuple))
    if _VARIABLE in os.environ and arguments.get("verbose", "auto") in ("auto", 1) and is_list:
        arguments["callbacks"] = [*(callbacks or ()), _LineEnds()]


class _LineEnds(AnyKerasCallback):
    """Ends the line that the bar has drawn, once a second at most."""

    def __init__(self) -> None:
        super().__init__()
        self._ended_s = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Optional[dict[str, Any]] = None) -> None:
        """The bar begins a line."""
        self._ended_s = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Optional[dict[str, Any]] = None) -> None:
        """Keras calls its bar after a program's callbacks: there is the one of the last batch."""
        now_s = time.monotonic()
        if batch > 0 and now_s - self._ended_s >= _INTERVAL_S:
            self._ended_s = now_s
            sys.stdout.write("\n")
            sys.stdout.flush()
