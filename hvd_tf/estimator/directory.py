# SPDX-License-Identifier: Apache-2.0
"""`model_dir`: the model's directory on rank 0, a private one that is cleaned up elsewhere."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from typing import Optional, Union

from hvd_tf.failure_report import DIRECTORY_VARIABLE
from hvd_tf.runtime import rank

# What this process has made, by the name asked for.
_private: dict[str, str] = {}


def model_dir(path: Union[str, os.PathLike[str]]) -> str:
    """Where this rank's Estimator keeps its files.

    Elsewhere than on rank 0 it is a new empty directory of mode 0700, the same one for the same
    path, which is removed when the process ends; under `hvdrun` also when the process is killed.
    So ranks never write to one place, and a rank never takes an old checkpoint of its own for the
    model's: rank 0 restores, and BroadcastGlobalVariablesHook gives the others what it has.

    Args:
      path: the model's directory, also a remote one (`gs://...`); only rank 0 needs to reach it.

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
    """The job's directory, which the launcher removes at the end; else the usual place."""
    job = os.environ.get(DIRECTORY_VARIABLE, "")
    return job if os.path.isdir(job) else None  # it is on the launcher's host only


def _remove_all(maker: int) -> None:
    if os.getpid() != maker:  # in a child that was forked; the files are its parent's
        return
    for path in _private.values():
        shutil.rmtree(path, ignore_errors=True)
