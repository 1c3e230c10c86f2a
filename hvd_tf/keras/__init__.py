# SPDX-License-Identifier: Apache-2.0
"""`import hvd_tf.keras as hvd` in place of horovod.tensorflow.keras and horovod.keras.

For Keras 2 (in TensorFlow 2.15 and before, and tf_keras) and Keras 3 with TensorFlow.
"""

from __future__ import annotations

from hvd_tf._internal.gpu import pin_gpu
from hvd_tf._internal.runtime import (
    Adasum,
    Average,
    ProcessSet,
    Sum,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
)
from hvd_tf._internal.tracing import start_timeline, stop_timeline
from hvd_tf.compression import Compression
from hvd_tf.keras import callbacks, elastic
from hvd_tf.keras.functions import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    load_model,
    reducescatter,
)
from hvd_tf.keras.optimizers import DistributedOptimizer, PartialDistributedOptimizer

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "pin_gpu",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
