# SPDX-License-Identifier: Apache-2.0
"""A loop of its own over shards of different lengths: late flights, and no batch is lost.

    hvdrun -np 2 python estimator_examples/uneven_loop.py

The lines marked `# hvd:` are what a program for one process gains.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from flights.data import load, split

import hvd_tf as hvd

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd_tf_flights"
BATCH = 512  # flights per rank and step


def main() -> None:
    """Train for some epochs. The ranks have different numbers of batches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=CACHE)
    parser.add_argument("--epochs", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--one-in", type=int, default=1, help="use one flight in so many")
    args = parser.parse_args()

    hvd.init()  # hvd: start
    train, _, held_out = split(load(args.data_dir).take(slice(None, None, args.one_in)), "october")
    # hvd: this rank's flights, as if files were shared out by day. Later ranks have more of them.
    begin, end = (len(train) * r**2 // hvd.size() ** 2 for r in (hvd.rank(), hvd.rank() + 1))
    mine = train.numeric[begin:end], train.late[begin:end]
    dataset = tf.data.Dataset.from_tensor_slices(mine).batch(BATCH)

    layers = [tf.keras.layers.Dense(units, activation="relu") for units in (64, 32)]
    model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)])
    model.build([None, train.numeric.shape[1]])
    optimizer = tf.keras.optimizers.Adagrad(0.05)
    optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.BinaryCrossentropy(from_logits=True)

    def variables() -> list[tf.Variable]:
        of_optimizer = optimizer.variables
        return [*model.variables, *(of_optimizer() if callable(of_optimizer) else of_optimizer)]

    @tf.function
    def train_step(numeric: tf.Tensor, late: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(late, model(numeric)[:, 0])
        tape = hvd.DistributedGradientTape(tape)  # hvd: averages the gradients over the ranks
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    hvd.broadcast_variables(variables(), root_rank=0)  # hvd: all start as rank 0
    steps = 0
    for _ in range(args.epochs):
        for numeric, late in dataset:
            train_step(numeric, late)
            steps += 1
        last = int(hvd.join())  # hvd: wait for the ranks that have more batches
        hvd.broadcast_variables(variables(), root_rank=last)  # hvd: all go on as the last rank

    print(f"rank {hvd.rank()}: {steps} batches")
    if hvd.rank() == 0:
        logits = model(held_out.numeric)[:, 0]
        steps = int(optimizer.iterations.numpy())
        found = float(loss_of(held_out.late, logits))
        print(f"{steps} steps on {hvd.size()} rank(s), held-out loss {found:.4f}")


if __name__ == "__main__":
    main()
