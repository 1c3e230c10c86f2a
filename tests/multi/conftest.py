# SPDX-License-Identifier: Apache-2.0
"""What every test in this folder starts with: a rank on which hvd_tf is initialised.

The outer process reads this file too, so TensorFlow is imported by the fixtures only.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import fake_gpu
import pytest
from flags import Flags
from rank_results import LABEL_VARIABLE

# Before a file of tests begins to use TensorFlow. What starts the ranks may have that variable too.
if LABEL_VARIABLE in os.environ and fake_gpu.GPU_VARIABLE in os.environ:
    fake_gpu.prepare()


@pytest.fixture(scope="session", autouse=True)
def hvd() -> Iterator[ModuleType]:
    """hvd_tf, initialised. Its end waits for nobody: ranks may fail tests on their own."""
    import hvd_tf

    hvd_tf.init()
    yield hvd_tf
    hvd_tf.shutdown()


@pytest.fixture(scope="module", autouse=True)
def layers_numbered_anew() -> None:
    """A file before may have made different numbers of layers on each rank: Keras counts them."""
    if "tensorflow" not in sys.modules or sys.modules.keys().isdisjoint(("keras", "tf_keras")):
        return
    import tensorflow as tf

    if hasattr(tf.keras.backend, "reset_uids"):  # of Keras 2
        tf.keras.backend.reset_uids()
    else:
        tf.keras.backend.clear_session(free_memory=False)


class _AutoGraphWarnings(logging.Handler):
    """That AutoGraph, which rewrites what a tf.function calls, cannot read a function of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "AutoGraph could not transform" in text and "hvd_tf." in text:
            self.found.append(text)


@pytest.fixture(scope="session")
def autograph_warnings() -> list[str]:
    handler = _AutoGraphWarnings()
    logging.getLogger("tensorflow").addHandler(handler)
    return handler.found


@pytest.fixture(autouse=True)
def autograph_reads_all(autograph_warnings: list[str]) -> Iterator[None]:
    """It warns once of each function, so any test may be the first."""
    autograph_warnings.clear()
    yield
    assert autograph_warnings == []


# Once for each module, so that a file may have an `hvd` of its own.
@pytest.fixture(scope="module")
def rank(hvd: ModuleType) -> int:
    return hvd.rank()


@pytest.fixture(scope="module")
def size(hvd: ModuleType) -> int:
    return hvd.size()


@pytest.fixture
def flags(request: pytest.FixtureRequest) -> Flags:
    """What ranks tell one another beside the library."""
    return Flags(f"{request.path.stem}-{request.node.name}")


@pytest.fixture
def world() -> Iterator[object]:
    """For tests with an init of their own: MPI's world, and a shutdown at the end."""
    from mpi4py import MPI

    import hvd_tf

    # One test after the other on all ranks, over MPI itself.
    MPI.COMM_WORLD.Barrier()
    yield MPI.COMM_WORLD
    hvd_tf.shutdown()


@pytest.fixture(scope="module")
def others(hvd: ModuleType, size: int) -> Iterator[object]:
    """The process set of all ranks but 0."""
    process_set = hvd.ProcessSet(range(1, size))
    hvd.shutdown()
    hvd.init(process_sets=[process_set])
    yield process_set
    hvd.shutdown()
    hvd.init()


@pytest.fixture
def folder(hvd: ModuleType, tmp_path: Path) -> Path:
    """A directory that all ranks share, made by rank 0."""
    return Path(hvd.broadcast_object(str(tmp_path), 0, name="folder"))


@pytest.fixture
def active_average(hvd: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Averages are those of the ranks that have not joined: HVD_JOIN_AVERAGE=active."""
    hvd.allgather_object(None)
    hvd.shutdown()
    monkeypatch.setenv("HVD_JOIN_AVERAGE", "active")
    hvd.init()
    yield
    hvd.allgather_object(None)
    hvd.shutdown()
    monkeypatch.delenv("HVD_JOIN_AVERAGE")
    hvd.init()
