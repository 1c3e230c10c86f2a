# SPDX-License-Identifier: Apache-2.0
"""Ties the tests together: which files run here, and which run as ranks (`multirank.py`).

The outer process, the one that was started by hand, imports neither MPI nor TensorFlow.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from costs import Costs
from mpi import PACKAGE
from multirank import RankFile, RankTest, run_protocol
from rank_main import rank_of
from rank_results import LABEL_VARIABLE, RankReporter

IS_RANK = LABEL_VARIABLE in os.environ


def tensorflow_version() -> str:
    """The version in the environment that the tests run in. Empty: there is none."""
    for name in ("tensorflow-cpu", "tensorflow", "tf-nightly", "tensorflow-rocm"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def pytest_configure(config: pytest.Config) -> None:
    if IS_RANK:
        config.pluginmanager.register(RankReporter(rank_of(os.environ)), "rank-reporter")
        # What imports of TensorFlow make stays. To look through it takes a fifth of their time.
        gc.disable()
        return
    config.pluginmanager.register(Costs(), "costs")
    # A shell's background job and nohup ignore them, and so would every program that a test starts.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """On a rank: the files have been imported."""
    if IS_RANK:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs find the hvd_tf that is tested: `python -c` and `-m` look where they start first."""
    here = Path("hvd_tf")
    if IS_RANK or not here.is_dir() or here.samefile(PACKAGE):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        yield


def pytest_report_header(config: pytest.Config) -> str:
    role = f"rank {rank_of(os.environ)}" if IS_RANK else "outer process"
    return f"hvd_tf: {role}, TensorFlow {tensorflow_version() or 'none'}"


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> RankFile | None:
    if not IS_RANK and module_path.parent.name == "multi":
        return RankFile.from_parent(parent, path=module_path)
    return None


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not isinstance(item, RankTest):
        return None
    run_protocol(item, nextitem)
    return True
