# SPDX-License-Identifier: Apache-2.0
"""A small network in a MonitoredTrainingSession: late flights from numbers known beforehand.

hvdrun -np 2 python estimator_examples/monitored_session.py

The lines marked `# hvd:` are what a program for one process gains.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from flights.batches import positions
from flights.data import load, split

import hvd_tf as hvd

v1 = tf.compat.v1
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd_tf_flights"
BATCH = 512  # flights per rank and step


def dense(inputs: tf.Tensor, units: int, name: str) -> tf.Tensor:
    """[b, k] -> [b, units], linear."""
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", [inputs.shape[1], units])
        return tf.matmul(inputs, kernel) + v1.get_variable(
            "bias", [units], initializer=v1.zeros_initializer()
        )


def network(numeric: tf.Tensor) -> tf.Tensor:
    """float32 [b, k] numbers -> float32 [b] log odds of being late."""
    hidden = tf.nn.relu(dense(numeric, 64, "hidden_0"))
    hidden = tf.nn.relu(dense(hidden, 32, "hidden_1"))
    return dense(hidden, 1, "logits")[:, 0]


def main() -> None:
    """Train for some steps, then let rank 0 look at the held-out flights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=CACHE)
    parser.add_argument("--checkpoint-dir", help="of rank 0 (a temporary one)")
    parser.add_argument("--steps", type=int, default=2000, help="for one worker (%(default)s)")
    args = parser.parse_args()
    v1.logging.set_verbosity(v1.logging.ERROR)
    v1.disable_eager_execution()

    hvd.init()  # hvd: start
    train, _, held_out = split(load(args.data_dir), "october")
    numeric = v1.placeholder(tf.float32, [None, train.numeric.shape[1]], "numeric")
    late = v1.placeholder(tf.float32, [None], "late")
    logits = network(numeric)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=late, logits=logits))
    step = v1.train.get_or_create_global_step()

    optimizer = v1.train.AdagradOptimizer(0.05 * hvd.size())  # hvd: for size times the batch
    optimizer = hvd.DistributedOptimizer(optimizer)  # hvd: averages the gradients
    train_op = optimizer.minimize(loss, global_step=step)

    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),  # hvd: all start with rank 0's weights
        v1.train.StopAtStepHook(last_step=args.steps // hvd.size()),  # hvd: fewer, larger steps
    ]
    batches = positions(  # hvd: every rank reads its own share
        len(train), BATCH, seed=1, rank=hvd.rank(), size=hvd.size()
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.checkpoint_dir or scratch
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=folder if hvd.rank() == 0 else None,  # hvd: checkpoints on rank 0 only
            hooks=hooks,
            config=v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1),
        ) as session:
            while not session.should_stop():
                which = next(batches)
                feed = {numeric: train.numeric[which], late: train.late[which]}
                session.run(train_op, feed)
        if hvd.rank() == 0:
            with v1.Session() as session:
                v1.train.Saver().restore(session, tf.train.latest_checkpoint(folder))
                feed = {numeric: held_out.numeric, late: held_out.late}
                value, odds, steps = session.run([loss, logits, step], feed)
            share = np.mean(held_out.late[odds > np.quantile(odds, 0.9)])
            print(f"{steps} steps on {hvd.size()} rank(s), held-out loss {value:.4f}")
            print(f"late: {share:.1%} of the tenth most at risk, {held_out.late.mean():.1%} of all")


if __name__ == "__main__":
    main()
