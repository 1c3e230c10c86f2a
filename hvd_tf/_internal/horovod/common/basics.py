# SPDX-License-Identifier: Apache-2.0
"""`horovod.common.basics`."""

from __future__ import annotations

from typing import Any

from hvd_tf._internal import runtime, tracing
from hvd_tf.process_sets import ids_and_ranks


class HorovodBasics:
    """The runtime's functions as methods, as `horovod.tensorflow.mpi_ops._basics` has them."""

    Average = runtime.Average
    Sum = runtime.Sum
    Adasum = runtime.Adasum
    Min = runtime.Min
    Max = runtime.Max
    Product = runtime.Product

    init = staticmethod(runtime.init)
    shutdown = staticmethod(runtime.shutdown)
    is_initialized = staticmethod(runtime.is_initialized)
    rank = staticmethod(runtime.rank)
    size = staticmethod(runtime.size)
    local_rank = staticmethod(runtime.local_rank)
    local_size = staticmethod(runtime.local_size)
    cross_rank = staticmethod(runtime.cross_rank)
    cross_size = staticmethod(runtime.cross_size)
    is_homogeneous = staticmethod(runtime.is_homogeneous)
    mpi_threads_supported = staticmethod(runtime.mpi_threads_supported)
    mpi_enabled = staticmethod(runtime.mpi_enabled)
    mpi_built = staticmethod(runtime.mpi_built)
    gloo_enabled = staticmethod(runtime.gloo_enabled)
    gloo_built = staticmethod(runtime.gloo_built)
    nccl_built = staticmethod(runtime.nccl_built)
    ddl_built = staticmethod(runtime.ddl_built)
    ccl_built = staticmethod(runtime.ccl_built)
    cuda_built = staticmethod(runtime.cuda_built)
    rocm_built = staticmethod(runtime.rocm_built)
    start_timeline = staticmethod(tracing.start_timeline)
    stop_timeline = staticmethod(tracing.stop_timeline)
    _get_process_set_ids_and_ranks = staticmethod(ids_and_ranks)

    def __init__(self, pkg_path: Any = None, *args: Any) -> None:
        """The arguments find Horovod's library. They are not needed."""
