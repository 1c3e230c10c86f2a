# SPDX-License-Identifier: Apache-2.0
"""Gives TensorFlow a GPU that is made up (`card/`), and hvd_tf CUDA's driver for it.

TensorFlow's builds for CPUs have no kernels for GPUs, so a program can do little on it but copy
tensors there and back, and call hvd_tf's operations.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

# Set for ranks that are to have it.
GPU_VARIABLE = "HVD_TEST_GPU"

SOURCES = Path(__file__).parent / "card"
CACHE = Path(__file__).parent.parent / "build" / "card"


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
        f"-I{tf.sysconfig.get_include()}",
        f"-L{tf.sysconfig.get_lib()}",
    ]
    sources = sorted(SOURCES.iterdir())
    texts = [*flags, *(path.read_text() for path in sources)]
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


def load() -> None:
    """From here on there is a GPU:0. Before TensorFlow runs anything, and before hvd.init()."""
    from tensorflow.python.framework import load_library

    load_library.load_pluggable_device_library(str(library()))
    os.environ["HVD_GPU_LANE"] = "1"
