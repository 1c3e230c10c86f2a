# SPDX-License-Identifier: Apache-2.0
"""`model_dir`: the model's directory on rank 0, and private temporary ones on other ranks."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from typing import Optional, Union

from hvd_tf._internal.failure_report import DIRECTORY_VARIABLE
from hvd_tf._internal.runtime import rank

# The directories that this process has made, by the path asked for.
_private: dict[str, str] = {}


def model_dir(path: Union[str, os.PathLike[str]]) -> str:
    """The directory where this rank's Estimator keeps its files.

    On other ranks than 0 it is a new empty directory of mode 0700, the same one for the same path.
    It is removed when the process ends, and under `hvdrun` also when the process is killed. So
    ranks never write to one place. No rank takes an old checkpoint of its own for the model's. Rank
    0 restores, and BroadcastGlobalVariablesHook gives the others its values. Pass that hook to
    `Estimator.predict` too, or the others predict with newly initialised weights.

    Args:
      path: the model's directory. It may be remote (`gs://...`). Only rank 0 needs to reach it.

    Returns:
      `path` itself on rank 0.

    Raises:
      ValueError: before `init`, or for an empty path.
    """
    text = os.fspath(path)
    if not text:
        raise ValueError("model_dir: the path is empty; name the directory of the model")
    if rank() == 0:
        return text
    key = text if "://" in text else os.path.abspath(text)
    if not os.path.isdir(_private.get(key, "")):
        if not _private:
            atexit.register(_remove_all, os.getpid())
        _private[key] = tempfile.mkdtemp(prefix="hvd_tf-model-", dir=_parent())
    return _private[key]


def _parent() -> Optional[str]:
    """The job's directory, which the launcher removes at the end. Else the default place."""
    job = os.environ.get(DIRECTORY_VARIABLE, "")
    return job if os.path.isdir(job) else None  # it exists on the launcher's host only


def _remove_all(maker: int) -> None:
    if os.getpid() != maker:  # a forked child: the files belong to its parent
        return
    for path in _private.values():
        shutil.rmtree(path, ignore_errors=True)
