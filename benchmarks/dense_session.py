# SPDX-License-Identifier: Apache-2.0
"""Times training steps of a dense model in a v1 session: one rank of a job, or a process alone.

    python dense_session.py                          # plain TensorFlow
    hvdrun -np 2 python dense_session.py hvd_tf      # each rank with its own batch
    mpirun -n 2 python dense_session.py horovod.tensorflow

The model is 784-2048-2048-10, 5.8 million parameters (23 MB of gradients), SGD, batch 256 a rank,
one thread a rank. Prints the median and the quartiles of a step in milliseconds.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The session's own configuration does not set the pool that computes matrix products.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
WIDTHS = (784, 2048, 2048, 10)


def loss_of(features: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    hidden = features
    for i, (inputs, outputs) in enumerate(zip(WIDTHS, WIDTHS[1:])):
        kernel = v1.get_variable(f"kernel{i}", [inputs, outputs])
        bias = v1.get_variable(f"bias{i}", [outputs], initializer=v1.zeros_initializer())
        hidden = tf.matmul(hidden, kernel) + bias
        if i < len(WIDTHS) - 2:
            hidden = tf.nn.relu(hidden)
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=hidden)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", nargs="?", help="hvd_tf or horovod.tensorflow; none: neither")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=256, help="examples of a rank")
    parser.add_argument("--unwrapped", action="store_true", help="init, but a plain optimizer")
    arguments = parser.parse_args()
    module = importlib.import_module(arguments.module) if arguments.module else None
    if module:
        module.init()
    rank = module.rank() if module else 0
    generator = np.random.default_rng(rank)
    features = generator.standard_normal((arguments.batch, WIDTHS[0]), np.float32)
    labels = generator.integers(0, WIDTHS[-1], arguments.batch)
    with tf.Graph().as_default():
        loss = loss_of(tf.constant(features), tf.constant(labels))
        optimizer = v1.train.GradientDescentOptimizer(0.01)
        hooks = []
        if module and not arguments.unwrapped:
            optimizer = module.DistributedOptimizer(optimizer)
            hooks = [module.BroadcastGlobalVariablesHook(0)]
        train = optimizer.minimize(loss, v1.train.get_or_create_global_step())
        config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
        times_ms = []
        with v1.train.MonitoredTrainingSession(hooks=hooks, config=config) as session:
            for step in range(arguments.steps + 10):
                begin = time.perf_counter()
                session.run(train)
                if step >= 10:
                    times_ms.append(1e3 * (time.perf_counter() - begin))
    low, median, high = statistics.quantiles(times_ms, n=4)
    if rank == 0:
        print(f"{arguments.module or 'plain'}: {median:.1f} ms [{low:.1f} - {high:.1f}] a step")


if __name__ == "__main__":
    main()
