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

from hvd_tf._internal.compat import v1
from hvd_tf._internal.compat.estimator import RefusesTrainAndEvaluate, tf_estimator
from hvd_tf._internal.gpu import growth_is_open, own_gpu, pin_gpu
from hvd_tf._internal.runtime import local_size, rank, size
from hvd_tf.estimator.directory import model_dir as rank_model_dir

_TF_CONFIG = "TF_CONFIG"
_STRATEGIES = ("train_distribute", "eval_distribute", "experimental_distribute")
# RunConfig's arguments for what rank 0 alone does. They are None on the other ranks.
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

    Rank 0 alone writes checkpoints, summaries and step counts. On other ranks
    save_checkpoints_steps, save_checkpoints_secs, save_summary_steps and log_step_count_steps are
    None, whatever is given. So pass `saving_listeners` and CheckpointInputPipelineHook on rank 0
    only: elsewhere they raise an error. This config ignores a TF_CONFIG in the environment, because
    that describes a cluster of parameter servers. Rank 0 says so on stderr. The variable itself
    stays as it is.

    Args:
      model_dir: on rank 0 the place itself, on other ranks a private one; see `model_dir`.
      tf_random_seed: the graph's seed. Rank 0 has this one, as one process would. Every other rank
        has one that is made of it and the rank. So dropout and a `shuffle` differ by rank, and are
        the same in the next run. Initial values differ too, until BroadcastGlobalVariablesHook
        gives all ranks those of rank 0. Shard before you shuffle: ranks shuffle differently, with
        and without a seed. None: random seeds.
      session_config: a copy of it is used, with what it leaves open filled in.
        gpu_options.visible_device_list gets the GPU that `pin_gpu` chooses. Eager code is
        restricted to it as well. If eager code has run already, it keeps its GPUs, and a line on
        stderr says so. A list that is given is kept, and then eager code is left alone.
        gpu_options.allow_growth is set, unless a per_process_gpu_memory_fraction, virtual_devices
        or a list is given. A False there is the same as nothing: TF_FORCE_GPU_ALLOW_GROWTH=false
        in the environment turns growth off.
        intra_op_parallelism_threads and inter_op_parallelism_threads get the cores of this process,
        divided among the ranks of its host. If the launcher has bound the rank to cores of its own,
        they get all of these. Eager code gets the same numbers of threads, unless they are settled
        already, because sessions share its threads.
      **arguments: any others of RunConfig.

    Returns:
      A RunConfig. With more than one rank, tf.estimator.train_and_evaluate refuses it.

    Raises:
      ValueError: a tf.distribute strategy is given or active, RunConfig refuses an argument, or it
        is called before `init`.
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
    """The jobs of a TF_CONFIG and their sizes, without addresses."""
    try:
        jobs = {job: len(tasks) for job, tasks in json.loads(text).get("cluster", {}).items()}
    except (ValueError, AttributeError, TypeError):
        return "not understood"
    return ", ".join(f"{count} {job}" for job, count in jobs.items()) or "no cluster"


def _session_config(given: Optional[v1.ConfigProto]) -> v1.ConfigProto:
    config = v1.ConfigProto()
    if given is None:
        config.allow_soft_placement = True  # Estimator's default when no config is given
        config.graph_options.rewrite_options.meta_optimizer_iterations = 1
    else:
        config.CopyFrom(given)
    threads = threads_per_rank(_launcher_cores(), os.sched_getaffinity(0), local_size())
    config.intra_op_parallelism_threads = config.intra_op_parallelism_threads or threads
    config.inter_op_parallelism_threads = config.inter_op_parallelism_threads or threads
    _settle_eager_threads(config)
    _settle_gpu(config.gpu_options)
    return config


def _settle_gpu(options: v1.GPUOptions) -> None:
    """The same GPU for sessions and for eager code: TensorFlow numbers GPUs once in a process."""
    gpu = own_gpu()
    if gpu is None or options.visible_device_list:
        return
    try:
        pin_gpu()
    except RuntimeError as error:  # a session on the first of eager code's GPUs works all the same
        print(f"hvd_tf: run_config cannot restrict eager code to its GPU: {error}", file=sys.stderr)
    options.visible_device_list = str(tf.config.list_physical_devices("GPU").index(gpu))
    memory = options.per_process_gpu_memory_fraction or options.experimental.virtual_devices
    if not memory and growth_is_open(gpu):
        options.allow_growth = True


def _settle_eager_threads(config: v1.ConfigProto) -> None:
    """Sessions use the pool of intra-op threads of the first code that ran in the process.

    Often that is eager code, for example of `hvd_tf.data`.
    """
    threading = tf.config.threading
    try:
        if threading.get_intra_op_parallelism_threads() == 0:
            threading.set_intra_op_parallelism_threads(config.intra_op_parallelism_threads)
        if threading.get_inter_op_parallelism_threads() == 0:
            threading.set_inter_op_parallelism_threads(config.inter_op_parallelism_threads)
    except RuntimeError:
        pass  # eager code has run already, with its own threads


def threads_per_rank(launcher_cores: set[int], own_cores: set[int], ranks: int) -> int:
    """How many threads a rank may use: all of its cores if it was bound to them, else a share.

    A rank that may use every core that its launcher may use has not been bound.
    """
    if own_cores < launcher_cores:
        return max(1, len(own_cores))
    return max(1, len(own_cores) // ranks)


def _launcher_cores() -> set[int]:
    try:
        return os.sched_getaffinity(os.getppid())
    except OSError:  # the launcher may have ended
        return os.sched_getaffinity(0)
