# SPDX-License-Identifier: Apache-2.0
"""Exceptions that elastic training goes by. Imports no TensorFlow."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective failed, and all ranks can go on from their last commit.

    A program may raise it within a function of `elastic.run` to have that happen.
    """


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818, Horovod's name
    """Hosts came or went, or a program asks for a new start of the runtime. No state is lost."""

    def __init__(self, skip_sync: bool = False) -> None:
        """skip_sync: the ranks' states are equal already."""
        super().__init__()
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """The installed build does not fit the installed framework. hvd_tf raises ImportError."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        """name: the framework's. version: what the build is for."""
        super().__init__(
            f"this build is for {name} {version}, but {name} {installed_version} is installed: "
            "install hvd_tf again"
        )
        self.name = name
        self.version = version
        self.installed_version = installed_version
