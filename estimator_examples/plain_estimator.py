# SPDX-License-Identifier: Apache-2.0
"""A plain custom Estimator: how late flights arrive, by carrier, airport and hour.

hvdrun -np 2 python estimator_examples/plain_estimator.py

The lines marked `# hvd:` are what a program for one process gains.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from flights.batches import positions
from flights.data import Flights, load, split
from flights.features import CATEGORICAL

import hvd_tf as hvd

v1 = tf.compat.v1
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd_tf_flights"
BATCH = 512  # flights per rank and step
ROWS = 1 << 16  # of the table that all categories share


def model_fn(
    features: tf.Tensor, labels: tf.Tensor, mode: str, params: dict[str, Any]
) -> tf.estimator.EstimatorSpec:
    """Logistic regression. features: int32 [b, fields], hashes; labels: float32 [b]."""
    table = v1.get_variable("weights", [ROWS], initializer=v1.zeros_initializer())
    bias = v1.get_variable("bias", [], initializer=v1.zeros_initializer())
    logits = tf.reduce_sum(tf.nn.embedding_lookup(table, features % ROWS), axis=1) + bias
    probability = tf.sigmoid(logits)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=probability)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = {"auc": v1.metrics.auc(labels, probability, num_thresholds=1000)}
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = v1.train.AdagradOptimizer(params["lr"] * hvd.size())  # hvd: larger global batch
    optimizer = hvd.DistributedOptimizer(optimizer)  # hvd: averages the gradients
    train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def dataset(part: Flights, training: bool) -> tf.data.Dataset:
    """Batches (int32 [b, fields], float32 [b]): this rank's share for ever, or all of it once."""

    def shares() -> Iterator[Any]:
        if not training:
            yield part.categorical, part.late
            return
        for which in positions(  # hvd: every rank reads its own share
            len(part), BATCH, seed=1, rank=hvd.rank(), size=hvd.size()
        ):
            yield part.categorical[which], part.late[which]

    signature = (
        tf.TensorSpec([None, len(CATEGORICAL)], tf.int32),
        tf.TensorSpec([None], tf.float32),
    )
    return tf.data.Dataset.from_generator(shares, output_signature=signature)


def main() -> None:
    """Train on every rank, evaluate on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=CACHE)
    parser.add_argument("--steps", type=int, default=2000, help="for one worker (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.05, help="for one worker (%(default)s)")
    args = parser.parse_args()
    v1.logging.set_verbosity(v1.logging.ERROR)

    hvd.init()  # hvd: start
    hvd.estimator.provide_tf_estimator()  # hvd: for TensorFlow 2.16 and later
    train, _, held_out = split(load(args.data_dir), "october")
    with tempfile.TemporaryDirectory() as folder:
        config = tf.estimator.RunConfig(
            save_checkpoints_secs=300 if hvd.rank() == 0 else None  # hvd: on rank 0 only
        )
        estimator = tf.estimator.Estimator(
            model_fn, model_dir=folder, config=config, params={"lr": args.lr}
        )
        estimator.train(
            lambda: dataset(train, training=True),
            max_steps=args.steps // hvd.size(),  # hvd: fewer, larger steps
            hooks=[hvd.BroadcastGlobalVariablesHook(0)],  # hvd: all start with rank 0's weights
        )
        if hvd.rank() == 0:  # hvd: evaluate on one rank
            found = estimator.evaluate(lambda: dataset(held_out, training=False))
            print(
                f"{found['global_step']} steps on {hvd.size()} rank(s), "
                f"held-out AUC {found['auc']:.4f}, loss {found['loss']:.4f}"
            )


if __name__ == "__main__":
    main()
