# SPDX-License-Identifier: Apache-2.0
"""Train the flights model with Keras' fit, on one rank or on many.

    hvdrun -np 2 python estimator_examples/keras/fit.py

The lines marked `# hvd:` are what hvd_tf asks of a Keras program.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from run import Data, arguments, evaluate, prepare, shown
from wide_deep import WideAndDeep, adagrad, take_averages

import hvd_tf.keras as hvd
from hvd_tf import broadcast_variables


class Validation(tf.keras.callbacks.Callback):
    """Evaluates the averaged weights after each epoch, on all ranks.

    Callbacks after it see the result and, until the next epoch begins, these weights.
    """

    def __init__(self, data: Data) -> None:
        super().__init__()
        self._data = data
        self._weights: list[np.ndarray] = []

    def on_epoch_begin(self, epoch: int, logs: Optional[dict[str, Any]] = None) -> None:
        if self._weights:
            self.model.set_weights(self._weights)

    def on_epoch_end(self, epoch: int, logs: Optional[dict[str, Any]] = None) -> None:
        self._weights = take_averages(self.model, self.model.optimizer)
        found = evaluate(self.model, self._data, "validation")
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in found.items()})


def main() -> None:
    """Train, take the weights that were best on validation, and test them."""
    args = arguments(__doc__.splitlines()[0])
    data = prepare(args)
    steps = data.steps_per_pass * args.passes
    model = WideAndDeep()
    rate = args.lr * hvd.size()  # hvd: for size times the batch
    optimizer = adagrad(rate, steps)
    optimizer = hvd.DistributedOptimizer(optimizer)  # hvd: averages the gradients over the ranks
    model.compile(optimizer, tf.keras.losses.BinaryCrossentropy(from_logits=True))
    with tempfile.TemporaryDirectory() as folder:
        best = str(Path(folder, "best.weights.h5"))
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # hvd: all start as rank 0
            hvd.callbacks.MetricAverageCallback(),  # hvd: the loss of all ranks
            Validation(data),
            tf.keras.callbacks.ModelCheckpoint(
                best, monitor="val_auc", mode="max", save_best_only=True, save_weights_only=True
            ),
        ]
        begin = time.perf_counter()
        model.fit(
            data.training(args),
            epochs=args.passes,
            steps_per_epoch=data.steps_per_pass,
            verbose=2 if hvd.rank() == 0 else 0,
            callbacks=callbacks,
        )
        seconds = time.perf_counter() - begin
        if hvd.rank() == 0:  # hvd: only rank 0 has written the file
            model.load_weights(best)
    broadcast_variables(model.variables, 0)
    found = evaluate(model, data, "held_out")
    if hvd.rank() == 0:
        flights = steps * args.batch * hvd.size()
        print(f"test {shown(found)}: flights after 15 November")
        print(f"{flights / seconds:,.0f} examples/s with the evaluations, {hvd.size()} worker(s)")


if __name__ == "__main__":
    main()
