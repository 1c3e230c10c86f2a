# SPDX-License-Identifier: Apache-2.0
"""Distributed training for TensorFlow: `import hvd_tf as hvd` in place of horovod.tensorflow.

The public names are those of hvd_tf/_internal/api.py. They load on first use, so that `hvdrun`,
which is a part of this package, starts without TensorFlow.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from hvd_tf._internal.build_stamp import check_build, is_launcher
from hvd_tf._internal.version import __version__ as __version__

if TYPE_CHECKING:
    from hvd_tf._internal.api import *  # noqa: F403
    from hvd_tf._internal.run import run as run
    from hvd_tf.as_horovod import install_as_horovod as install_as_horovod
    from hvd_tf.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization

# hvdrun tells of a build that does not fit itself: it is what one asks about it.
if not is_launcher():
    check_build()

_MODULES = ("compression", "data", "elastic", "estimator", "exceptions", "functions", "ops")
# One needs Keras, which is imported for it only, and the others no TensorFlow.
_OF_MODULES = {
    "SyncBatchNormalization": "hvd_tf.sync_batch_norm",
    "install_as_horovod": "hvd_tf.as_horovod",
    "run": "hvd_tf._internal.run",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"hvd_tf.{name}")
    if name in _OF_MODULES:
        return getattr(importlib.import_module(_OF_MODULES[name]), name)
    if name == "__all__":  # import *
        return [*importlib.import_module("hvd_tf._internal.api").__all__, *_OF_MODULES]
    # Modules and what Python itself asks for are found in other ways, or not at all.
    if name.startswith("_") or importlib.util.find_spec(f"hvd_tf.{name}") is not None:
        raise AttributeError(f"module 'hvd_tf' has no attribute {name!r}")
    api = importlib.import_module("hvd_tf._internal.api")
    globals().update({public: getattr(api, public) for public in api.__all__})
    try:
        return globals()[name]
    except KeyError:
        raise AttributeError(f"module 'hvd_tf' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    api = importlib.import_module("hvd_tf._internal.api")
    return sorted({*globals(), *_MODULES, *_OF_MODULES, *api.__all__})
