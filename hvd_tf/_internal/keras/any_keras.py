# SPDX-License-Identifier: Apache-2.0
"""The base of the callbacks that `fit` is given beside the program's, whichever Keras it is of."""

from __future__ import annotations

import tensorflow as tf


class AnyKerasCallback(tf.keras.callbacks.Callback):
    """A callback of tf.keras that tf_keras takes too, where tf.keras is Keras 3."""

    def __init__(self) -> None:
        super().__init__()
        self._supports_tf_logs = True  # it looks at none, so that Keras 2 need not fetch them

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False
