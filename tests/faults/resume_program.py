# SPDX-License-Identifier: Apache-2.0
"""Trains to global step 100, with checkpoints on rank 0. test_resume.py kills and restarts it.

    resume_program.py KIND MODEL_DIR [KIND MODEL_DIR ...] [--start N] [--die-at N] [--stop-first]

Every step of a rank has the same batch. So a run that was interrupted must end with exactly the
weights of one that was not. Rank 0 prints them.
"""

import argparse
import os
import signal

import numpy as np
import tensorflow as tf

import hvd_tf as hvd

v1 = tf.compat.v1
LAST = 100
SAVE_STEPS = 20


class DieAt(v1.train.SessionRunHook):
    """Kills this process after the given global step."""

    def __init__(self, step):
        self.step = step

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(v1.train.get_global_step())

    def after_run(self, run_context, run_values):
        if run_values.results >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class PrintWeights(v1.train.SessionRunHook):
    """The weights at the end, bit for bit. They are sorted, so that runs compare as text."""

    def end(self, session):
        for variable in sorted(v1.global_variables(), key=lambda v: v.name):
            print(variable.name, session.run(variable).tobytes().hex(), flush=True)


def model(x, y):
    """Least squares with weights that begin differently on each rank."""
    start = np.linspace(-1, 1, 3) + hvd.rank()
    weights = v1.get_variable("weights", initializer=start)
    loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
    optimizer = hvd.DistributedOptimizer(v1.train.AdamOptimizer(0.05))
    return loss, optimizer.minimize(loss, global_step=v1.train.get_or_create_global_step())


def batch():
    generator = np.random.default_rng(hvd.rank())
    return generator.standard_normal((8, 3)), generator.standard_normal(8)


def with_estimator(model_dir, hooks):
    def model_fn(features, labels, mode):
        loss, update = model(features, labels)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=update)

    config = tf.estimator.RunConfig(save_checkpoints_steps=SAVE_STEPS if model_dir else None)
    estimator = tf.estimator.Estimator(model_fn, model_dir, config=config)
    estimator.train(
        lambda: tf.data.Dataset.from_tensors(batch()).repeat(), hooks=hooks, max_steps=LAST
    )


def with_session(model_dir, hooks, own_loop):
    _, update = model(*map(tf.constant, batch()))
    step = v1.train.get_global_step()
    with v1.train.MonitoredTrainingSession(
        checkpoint_dir=model_dir, hooks=hooks, save_checkpoint_steps=SAVE_STEPS
    ) as session:
        if own_loop:
            while session.run(step) < LAST:
                session.run(update)
        while not own_loop and not session.should_stop():
            session.run(update)


def hooks_of(kind, args):
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    if kind == "last_step":
        hooks.append(v1.train.StopAtStepHook(last_step=LAST))
    if kind == "num_steps":
        stop = v1.train.StopAtStepHook(num_steps=LAST - args.start)
        hooks.insert(0 if args.stop_first else 1, stop)
    if args.die_at and hvd.rank() == hvd.size() - 1:
        hooks.append(DieAt(args.die_at))
    if hvd.rank() == 0:
        hooks.append(PrintWeights())
    return hooks


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trainings", nargs="+", metavar="KIND MODEL_DIR")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--stop-first", action="store_true")
    args = parser.parse_args()
    hvd.init()
    for kind, model_dir in zip(args.trainings[::2], args.trainings[1::2]):
        model_dir = model_dir if hvd.rank() == 0 else None
        if kind == "estimator":
            hvd.estimator.provide_tf_estimator()
            with_estimator(model_dir, hooks_of(kind, args))
        else:
            with tf.Graph().as_default():
                with_session(model_dir, hooks_of(kind, args), kind == "own_loop")
        print("trained", flush=True)


if __name__ == "__main__":
    main()
