# SPDX-License-Identifier: Apache-2.0
"""Which environment variables the ranks get: by name; values are never shown."""

from __future__ import annotations

import os
import pwd
import re
import tempfile
from collections.abc import Iterable, Mapping

from hvd_tf._internal import commits, failure_report, job_starts
from hvd_tf._internal.launcher import marked
from hvd_tf._internal.launcher.errors import LaunchError

RESTART_VARIABLE = "HVD_RESTART"
# Where a job that is started again finds its commits.
COMMITS_VARIABLE = commits.DIRECTORY_VARIABLE
CHOSEN_VARIABLE = commits.CHOSEN_VARIABLE
JOB_VARIABLE = job_starts.JOB_VARIABLE
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Ranks that differ in what their MPI or its networks are set to do not find each other.
_FORWARDED = re.compile(
    r"(HVD|HOROVOD|TF|XLA|NCCL|OMP|CUDA|I_MPI|MPIR_CVAR|FI|UCX)_[A-Za-z0-9_]+"
    r"|PYTHON[A-Za-z0-9_]*|PATH|LD_LIBRARY_PATH"
)
# They say something about directories of this host.
_NEVER_FORWARDED = {
    failure_report.DIRECTORY_VARIABLE,
    marked.outer_variable(failure_report.DIRECTORY_VARIABLE),
}
# It says something about the GPUs of this host.
_FORWARDED_IF_ASKED = {"CUDA_VISIBLE_DEVICES"}


def parse(texts: Iterable[str]) -> dict[str, str | None]:
    """The variables of `-x NAME` (None: its value is the launcher's own) and `-x NAME=VALUE`."""
    found: dict[str, str | None] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not _NAME.fullmatch(name):
            raise LaunchError(
                f"-x {name}: this is no variable's name: write -x NAME, or -x NAME=VALUE"
            )
        found[name] = value if equals else None
    return found


def merged(environ: Mapping[str, str], asked: Mapping[str, str | None]) -> dict[str, str]:
    """The launcher's environment with what was asked for.

    Raises:
      LaunchError: a variable without a value is not in the environment.
    """
    env = dict(environ)
    for name, value in asked.items():
        if value is not None:
            env[name] = value
        elif name not in env:
            raise LaunchError(
                f"-x {name}: it is not set here: export it first, or write -x {name}=VALUE"
            )
    return env


def with_home(env: dict[str, str]) -> dict[str, str]:
    """The same with HOME, which Open MPI cannot do without. Services may be started without one."""
    if "HOME" not in env:
        try:
            env["HOME"] = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:  # a container's user may have no name
            env["HOME"] = tempfile.gettempdir()
    return env


def forwarded(env: Mapping[str, str], asked: Iterable[str]) -> tuple[str, ...]:
    """Names of the variables that ranks on other hosts get, in alphabetical order."""
    names = {name for name in env if _FORWARDED.fullmatch(name)} - _FORWARDED_IF_ASKED
    return tuple(sorted(names.union(asked) - _NEVER_FORWARDED))
