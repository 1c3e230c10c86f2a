# SPDX-License-Identifier: Apache-2.0
"""The GPU of a rank of tests/multi: one that is made up (`fakes/`), or the machine's own.

TensorFlow's builds for CPUs have no kernels for GPUs, so a program can do little on the one that is
made up but copy tensors there and back, and call hvd_tf's operations.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

# Set for ranks that are to have one: to "made-up", or, by who starts the tests, to "real".
GPU_VARIABLE = "HVD_TEST_GPU"
IS_REAL = os.environ.get(GPU_VARIABLE) == "real"
# Set to "1" by who starts the tests on a GPU of the machine: its ranks use NCCL though they share
# it. NCCL takes ranks of one GPU for a mistake, unless they say that they are on several hosts.
NCCL_VARIABLE = "HVD_TEST_NCCL"
# What the ranks of every job have of these, where the machine's own GPU was asked for.
OF_REAL = {
    name: os.environ[name]
    for name in (GPU_VARIABLE, NCCL_VARIABLE)
    if IS_REAL and name in os.environ
}

SOURCES = Path(__file__).parent / "fakes"
ENGINE = Path(__file__).parent.parent / "tf_ops"
CACHE = Path(__file__).parent.parent / "build" / "fakes"


def library() -> Path:
    """Its library, built for this TensorFlow. All ranks may call it at a time."""
    import tensorflow as tf

    flags = [
        "-std=c++17",
        "-O1",
        "-g1",
        "-fPIC",
        "-shared",
        # By this name hvd_tf finds it, once TensorFlow has loaded it.
        "-Wl,-soname,libcuda.so.1",
        f"-I{ENGINE}",
        f"-I{tf.sysconfig.get_include()}",
        f"-L{tf.sysconfig.get_lib()}",
    ]
    sources = sorted(SOURCES.iterdir())
    used = ("copy_table", "copy_tile", "row_sums", "tile_table")
    kernels = [ENGINE / "transport" / "device" / f"{name}.h" for name in used]
    texts = [*flags, *(path.read_text() for path in [*sources, *kernels])]
    stamp = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    built = CACHE / stamp / "libcuda.so.1"
    built.parent.mkdir(parents=True, exist_ok=True)
    with open(built.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            with tempfile.TemporaryDirectory(dir=built.parent) as folder:
                fresh = Path(folder) / built.name
                files = [str(path) for path in sources if path.suffix == ".cc"]
                compiler = os.environ.get("CXX", "c++")
                link = "-l:libtensorflow_framework.so.2"
                subprocess.run([compiler, *flags, *files, link, "-o", fresh], check=True)
                fresh.rename(built)
    return built


def prepare() -> None:
    """From here on there is a GPU:0. Before TensorFlow runs anything, and before hvd.init()."""
    if IS_REAL:
        # Ranks share it.
        os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        if os.environ.get(NCCL_VARIABLE) == "1":
            os.environ["HVD_NCCL"] = "2"
            os.environ["NCCL_HOSTID"] = "rank " + os.environ["OMPI_COMM_WORLD_RANK"]
            os.environ["NCCL_SOCKET_IFNAME"] = "lo"
        import tensorflow as tf

        # Ranks compute parts of what one process computes, and both are compared.
        tf.config.experimental.enable_tensor_float_32_execution(False)
    else:
        from tensorflow.python.framework import load_library

        load_library.load_pluggable_device_library(str(library()))
