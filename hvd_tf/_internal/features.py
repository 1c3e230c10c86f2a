# SPDX-License-Identifier: Apache-2.0
"""What this build can do. All of it may be asked before init."""

from __future__ import annotations

from hvd_tf._internal import native

_lib = native.lib


def mpi_built() -> bool:
    """Whether the MPI transport was built."""
    return bool(_lib.hvd_mpi_built())


def mpi_enabled() -> bool:
    """Whether hvd talks over MPI."""
    return mpi_built()


def nccl_built() -> int:
    """0: no build contains NCCL. It is found when a job runs; `hvdrun --check-build` shows it."""
    return 0


def cuda_built() -> bool:
    """Whether kernels for GPUs were compiled in. The GPU lane works without them too."""
    return bool(_lib.hvd_cuda_built())


def has_gpu_lane() -> bool:
    """Whether operations have kernels for GPUs: a driver, and not HVD_GPU_LANE=0, at `init`."""
    return int(_lib.hvd_has_gpu_lane()) == 1


def gloo_built() -> bool:
    """False: hvd_tf has no Gloo transport."""
    return False


def gloo_enabled() -> bool:
    """False: hvd_tf has no Gloo transport."""
    return False


def ddl_built() -> bool:
    """False: hvd_tf has no DDL transport."""
    return False


def ccl_built() -> bool:
    """False: hvd_tf has no oneCCL transport."""
    return False


def rocm_built() -> bool:
    """False: hvd_tf has no ROCm lane."""
    return False
