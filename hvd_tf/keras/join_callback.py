# SPDX-License-Identifier: Apache-2.0
"""`JoinCallback`: `fit` with different numbers of batches on the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Union

import tensorflow as tf

from hvd_tf._internal.compat import variables_given
from hvd_tf._internal.keras.joined_epochs import JoinedEpochs

Logs = Optional[dict[str, Any]]


class JoinCallback(tf.keras.callbacks.Callback):
    """Lets ranks have different numbers of batches. Pass it on every rank, anywhere in the list.

    In each epoch a rank that has no more batches waits (`hvd.join`), and the others go on without
    it. So no batch is lost. When the last one's data has ended, all ranks take its weights and the
    state of its optimizer. Then they validate, call the other callbacks, and begin the next epoch
    together.

    Averages of gradients are divided by the number of all ranks, as with Horovod. With
    HVD_JOIN_AVERAGE=active they are divided by that of the ranks that still have batches.

    All ranks make the same number of epochs, which is checked. In Keras 2 every rank needs a batch
    in each epoch, and has at most as many in a later one as in its first: Keras counts them there.
    If `fit` fails on a rank, it raises on all ranks, at the end of the epoch at the latest.
    """

    def __init__(self, local_variables: Union[None, Any, Sequence[Any]] = None) -> None:
        """local_variables: a variable, or several, that stay as they are on each rank."""
        super().__init__()
        self._local = variables_given(local_variables)
        self._epochs: Optional[JoinedEpochs] = None

    def set_model(self, model: Any) -> None:
        """Lets the other callbacks know, before any of them is called."""
        super().set_model(model)
        self._epochs = JoinedEpochs(model, self._local)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Meets. Raises ValueError if the model has no distributed optimizer."""
        self._of_fit().begin()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Meets. Raises ValueError on all ranks if one has ended its training."""
        self._of_fit().begin_epoch(epoch)

    def on_test_begin(self, logs: Logs = None) -> None:
        """Waits before the validation: it needs the weights that the epoch ends with."""
        self._of_fit().end_epoch()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Waits, where there was no validation."""
        self._of_fit().end_epoch()

    def on_train_end(self, logs: Logs = None) -> None:
        """Meets. Raises ValueError on all ranks if some go on."""
        self._of_fit().end()

    def _of_fit(self) -> JoinedEpochs:
        assert self._epochs is not None  # Keras sets the model first
        return self._epochs
