# SPDX-License-Identifier: Apache-2.0
"""How a program of these examples starts: its arguments, its library and its threads."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType
from typing import Optional

import tensorflow as tf

v1 = tf.compat.v1


def positive(text: str) -> int:
    """An argument that is a number of 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def not_negative(text: str) -> int:
    """An argument that is a number of 0 or more."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return number


def library(plain: bool) -> ModuleType:
    """hvd_tf, or what stands in for it."""
    if plain:
        import alone as hvd
    else:
        import hvd_tf as hvd
    return hvd


def limit_threads(threads: int) -> None:
    """So many for TensorFlow's pools in this process; before TensorFlow does anything."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def step_of(model_dir: Path) -> int:
    """The global step of the last checkpoint in this process's folder; 0: there is none."""
    latest = tf.train.latest_checkpoint(str(model_dir))
    return int(tf.train.load_variable(latest, "global_step")) if latest else 0


def run_config(
    hvd: ModuleType, model_dir: Path, threads: int, seed: int, interval: Optional[int]
) -> tf.estimator.RunConfig:
    """Threads per rank; a checkpoint every `interval` steps, or every five minutes."""
    saving = {"save_checkpoints_steps": interval} if interval else {"save_checkpoints_secs": 300}
    return hvd.estimator.run_config(  # hvd: files on rank 0 only, other seeds elsewhere
        model_dir=str(model_dir),
        tf_random_seed=seed,
        save_summary_steps=None,
        log_step_count_steps=None,
        session_config=v1.ConfigProto(
            intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads
        ),
        **saving,
    )
