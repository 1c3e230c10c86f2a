# SPDX-License-Identifier: Apache-2.0
"""Training on P ranks against training on one: the same global batches, the same variables.

    hvdrun -np 2 python estimator_examples/flights/parity.py

P ranks with b flights each average the gradients of their slices; one process takes all P * b,
with the same learning rate. Prints the norm-relative difference of every variable after 50 steps,
and fails above 1e-6. Without a shuffle, `hvd.data.shard` deals out the records of the shards in
turn, so b is to be a multiple of a record's flights.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from hooks import Keep, Variables, difference
from inputs import InputFn, parse
from shards import BLOCK, Shards
from starting import library, limit_threads
from tasks import flight_shards
from train import arguments, train

v1 = tf.compat.v1
BOUND = 1e-6


def in_turn(hvd: ModuleType, shards: Shards, batch: int) -> InputFn:
    """Every size-th record of the shards, as they are; all but the last have as many flights."""

    def input_fn() -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(shards.files("train"))
        return hvd.data.shard(records, epochs=None).map(parse).rebatch(batch)

    return input_fn


def trained(hvd: ModuleType, shards: Shards, words: list[str], batch: int, lr: float) -> Variables:
    """The trainable variables after training as train.py does with these words of its line."""
    args = arguments(words)
    args.lr = lr
    keep = Keep()
    with tempfile.TemporaryDirectory() as folder:
        train(args, hvd, in_turn(hvd, shards, batch), Path(folder), [keep])
    return keep.variables


def differences(
    hvd: ModuleType, shards: Shards, *, batch: int, steps: int, lr: float = 0.1
) -> dict[str, float]:
    """Variable -> norm of (this job's value - one process's value) / norm of the latter.

    hvd is initialised. Every rank calls it and gets its own ranks' figures: each of them trains
    the reference too, with batch * size flights. lr: the effective learning rate of both.
    """
    size = hvd.size()
    line = [f"--steps={steps}"]
    many = trained(hvd, shards, line, batch, lr / size)  # train.py takes it times size
    one = trained(library(plain=True), shards, line, batch * size, lr)
    return {name: difference(many[name], value) for name, value in one.items()}


def main() -> None:
    """Compare and print."""
    v1.logging.set_verbosity(v1.logging.ERROR)
    args = arguments()
    if args.batch % BLOCK:
        sys.exit(f"--batch {args.batch}: take a multiple of {BLOCK}, the flights of a record")
    hvd = library(args.plain)
    hvd.init()
    limit_threads(args.threads)
    shards = flight_shards(args, hvd)
    steps = args.steps or 50
    wanted, there = steps * args.batch * hvd.size(), shards.flights["train"]
    # The last record of a pass is shorter, and ranks' slices differ after it.
    if wanted > there:
        sys.exit(
            f"{steps} steps take {wanted} flights, but there are {there} to train on: "
            "take fewer --steps or a smaller --batch"
        )
    found = differences(hvd, shards, batch=args.batch, steps=steps, lr=args.lr)
    if hvd.rank() == 0:
        for name, value in found.items():
            print(f"{value:.1e}  {name}")
    if max(found.values()) > BOUND:
        sys.exit(f"rank {hvd.rank()}: differs by more than {BOUND:g}")


if __name__ == "__main__":
    main()
