# SPDX-License-Identifier: Apache-2.0
"""`run_config`: a RunConfig in which each rank has its own GPU, threads and seed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from hvd_tf.compat import v1
from hvd_tf.compat.estimator import RefusesTrainAndEvaluate, tf_estimator
from hvd_tf.estimator.directory import model_dir as rank_model_dir
from hvd_tf.runtime import local_rank, local_size, rank, size

_TF_CONFIG = "TF_CONFIG"
_STRATEGIES = ("train_distribute", "eval_distribute", "experimental_distribute")
# What only rank 0 does: RunConfig's arguments, None elsewhere.
_OF_RANK_0 = (
    "save_summary_steps",
    "save_checkpoints_steps",
    "save_checkpoints_secs",
    "log_step_count_steps",
)


def run_config(
    model_dir: Optional[str] = None,
    tf_random_seed: Optional[int] = None,
    session_config: Optional[v1.ConfigProto] = None,
    **arguments: Any,
) -> Any:
    """A `tf.estimator.RunConfig` for this rank.

    Checkpoints, summaries and step counts are written by rank 0 alone: elsewhere
    save_checkpoints_steps, save_checkpoints_secs, save_summary_steps and log_step_count_steps are
    None, whatever was asked for. A TF_CONFIG in the environment does not count for this config,
    which rank 0 says on stderr: it describes a cluster of parameter servers. The variable itself
    stays as it is.

    Args:
      model_dir: as in `model_dir`: the place itself on rank 0, a private one elsewhere.
      tf_random_seed: the graph's seed; rank 0 has exactly this one, as one process would, and
        every other rank one that is made of it and the rank. So dropout and a `shuffle` differ by
        rank and are the same in the next run. Initial values differ too, until
        BroadcastGlobalVariablesHook gives all ranks those of rank 0. Shard before you shuffle:
        ranks shuffle differently with and without a seed. None: random seeds.
      session_config: what it leaves open is filled in, in a copy of it:
        gpu_options.visible_device_list with the GPU of local_rank (modulo the number of GPUs that
        the rank sees, so that a CUDA_VISIBLE_DEVICES of one GPU a rank is right as well);
        intra_op_parallelism_threads and inter_op_parallelism_threads with the cores of this
        process divided among the ranks of its host, or with all of them where the launcher has
        bound the rank to cores of its own. Eager code gets these numbers of threads too, where
        neither it nor the program has settled them yet, since sessions share its threads.
      **arguments: any others of RunConfig.

    Returns:
      A RunConfig. With more than one rank, tf.estimator.train_and_evaluate refuses it.

    Raises:
      ValueError: a tf.distribute strategy is given or active; RunConfig refuses an argument; or
        before `init`.
      ImportError: there is no tf.estimator; see `tf_estimator`.
    """
    _refuse_strategies(arguments)
    if rank() != 0:
        arguments.update(dict.fromkeys(_OF_RANK_0))
    with _without_tf_config():
        config = tf_estimator.RunConfig(
            model_dir=None if model_dir is None else rank_model_dir(model_dir),
            tf_random_seed=None if tf_random_seed is None else rank_seed(tf_random_seed, rank()),
            session_config=_session_config(session_config),
            **arguments,
        )
    if size() > 1:
        config._distribute_coordinator_mode = RefusesTrainAndEvaluate()
    return config


def rank_seed(seed: int, rank: int) -> int:
    """A seed for each rank: `seed` itself on rank 0, elsewhere 31 bits made of both numbers."""
    if rank == 0:
        return seed
    mixed = np.random.SeedSequence([abs(seed), int(seed < 0), rank]).generate_state(1)[0]
    return int(mixed) & 0x7FFFFFFF


def _refuse_strategies(arguments: dict[str, Any]) -> None:
    for name in _STRATEGIES:
        if arguments.get(name) is not None:
            raise ValueError(
                f"{name}: hvd_tf distributes the training, so an Estimator cannot use a "
                f"tf.distribute strategy as well: leave {name} out. Received: {arguments[name]!r}"
            )
    if tf.distribute.has_strategy():
        raise ValueError(
            "run_config was called in the scope of a tf.distribute strategy, "
            f"{type(tf.distribute.get_strategy()).__name__}: hvd_tf distributes the training, so "
            "leave the strategy out"
        )


@contextmanager
def _without_tf_config() -> Iterator[None]:
    text = os.environ.pop(_TF_CONFIG, None)
    try:
        if text and rank() == 0:
            print(
                f"hvd_tf: TF_CONFIG ({_cluster(text)}) is ignored by run_config: the ranks of this "
                f"job train together, {size()} of them, without parameter servers",
                file=sys.stderr,
            )
        yield
    finally:
        if text is not None:
            os.environ[_TF_CONFIG] = text


def _cluster(text: str) -> str:
    """The jobs of a TF_CONFIG and their sizes; no addresses."""
    try:
        jobs = {job: len(tasks) for job, tasks in json.loads(text).get("cluster", {}).items()}
    except (ValueError, AttributeError, TypeError):
        return "not understood"
    return ", ".join(f"{count} {job}" for job, count in jobs.items()) or "no cluster"


def _session_config(given: Optional[v1.ConfigProto]) -> v1.ConfigProto:
    config = v1.ConfigProto()
    if given is None:
        config.allow_soft_placement = True  # what Estimator gives to who gives nothing
        config.graph_options.rewrite_options.meta_optimizer_iterations = 1
    else:
        config.CopyFrom(given)
    threads = threads_per_rank(_launcher_cores(), os.sched_getaffinity(0), local_size())
    config.intra_op_parallelism_threads = config.intra_op_parallelism_threads or threads
    config.inter_op_parallelism_threads = config.inter_op_parallelism_threads or threads
    _settle_eager_threads(config)
    gpus = len(tf.config.list_physical_devices("GPU"))
    if gpus and not config.gpu_options.visible_device_list:
        config.gpu_options.visible_device_list = str(local_rank() % gpus)
    return config


def _settle_eager_threads(config: v1.ConfigProto) -> None:
    """Sessions use the pool of intra-op threads of whatever ran first in the process.

    Often that is eager code, of `hvd_tf.data` for example.
    """
    threading = tf.config.threading
    try:
        if threading.get_intra_op_parallelism_threads() == 0:
            threading.set_intra_op_parallelism_threads(config.intra_op_parallelism_threads)
        if threading.get_inter_op_parallelism_threads() == 0:
            threading.set_inter_op_parallelism_threads(config.inter_op_parallelism_threads)
    except RuntimeError:
        pass  # it has run, with the threads that it has


def threads_per_rank(launcher_cores: set[int], own_cores: set[int], ranks: int) -> int:
    """How many threads a rank may use: all of its cores where it was bound to them, else a share.

    A rank that may use every core that its launcher may use has not been bound.
    """
    if own_cores < launcher_cores:
        return max(1, len(own_cores))
    return max(1, len(own_cores) // ranks)


def _launcher_cores() -> set[int]:
    try:
        return os.sched_getaffinity(os.getppid())
    except OSError:  # it may have ended
        return os.sched_getaffinity(0)
