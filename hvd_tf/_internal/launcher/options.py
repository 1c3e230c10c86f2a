# SPDX-License-Identifier: Apache-2.0
"""hvdrun's command line."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Optional

from hvd_tf._internal.launcher import argument_types, horovod_options, hosts, variables
from hvd_tf._internal.launcher.errors import LaunchError
from hvd_tf._internal.launcher.hosts import Host
from hvd_tf._internal.version import __version__

EXAMPLE = "hvdrun -np 2 python train.py"
_RANK_COUNT = argument_types.whole("number of ranks", 1)
_RESTARTS = argument_types.whole("number of restarts")
_PORT = argument_types.whole("port", 1, 65535)


@dataclass(frozen=True)
class Options:
    """What was asked for, checked as far as that goes without starting anything."""

    ranks: int
    command: tuple[str, ...]
    hosts: tuple[Host, ...]
    """With as many slots as ranks; empty: all on this machine."""
    variables: dict[str, Optional[str]]
    """Those of -x, before those of other options; None: the value is the launcher's own."""
    ssh_arguments: tuple[str, ...]
    mpi_arguments: tuple[str, ...]
    shares_cores: bool
    """Each rank is bound to a share of its host's cores."""
    network_interfaces: tuple[str, ...]
    notices: tuple[str, ...]
    """What is to be said about options that have nothing to do."""
    output: Optional[Path]
    timestamp: bool
    start_limit_s: Optional[float]
    restarts: int
    check_build: bool
    as_json: bool
    dry_run: bool
    verbose: bool


def parse(arguments: Sequence[str]) -> Options:
    """The options of a command line, which is without the program's name.

    Raises:
      LaunchError: something is wrong with it.
      SystemExit: it asked for help or the version, and has got it.
    """
    parser = _parser()
    found = parser.parse_args(arguments)
    if found.command[:1] == ["--"]:
        del found.command[0]
    if found.json and not found.check_build:
        parser.error("--json goes with --check-build only")
    if not found.check_build:
        if found.num_proc is None:
            parser.error("-np is missing, the number of ranks")
        if not found.command:
            parser.error("there is no command for the ranks to run")
    horovods = horovod_options.read(found)
    used = () if found.check_build else _hosts(found)
    ssh_arguments = _ssh_arguments(found)
    no_ssh = ("-p and -i have nothing to do here: all ranks run on this machine",)
    mpi_arguments = _mpi_arguments("--mpi-args", found.mpi_args) + _mpi_arguments(
        "--binding-args", found.binding_args
    )
    if found.share_cores and any(re.match("-+bind-to(=|$)", word) for word in mpi_arguments):
        parser.error("--share-cores and a --bind-to of mpirun bind both: leave one of them out")
    return Options(
        ranks=found.num_proc or 0,
        command=tuple(found.command),
        hosts=used,
        variables={**horovods.variables, **variables.parse(found.env)},
        ssh_arguments=ssh_arguments,
        mpi_arguments=mpi_arguments,
        shares_cores=found.share_cores,
        network_interfaces=horovods.network_interfaces,
        notices=horovods.notices + (no_ssh if ssh_arguments and not used else ()),
        output=found.output_filename,
        timestamp=found.timestamp,
        start_limit_s=found.start_timeout,
        restarts=found.restarts or horovods.restarts or 0,
        check_build=found.check_build,
        as_json=found.json,
        dry_run=found.dry_run,
        verbose=found.verbose,
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(f"{message}; {EXAMPLE!r} is an example, and --help shows all options")


class _Version(argparse.Action):
    def __call__(self, *_: object) -> NoReturn:
        print(f"hvdrun {__version__ or '(not built)'}")
        raise SystemExit(0)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="hvdrun",
        usage="hvdrun -np N [option ...] command [argument ...]",
        description="Runs a command as N ranks, on this machine or on the hosts of -H.",
        epilog=f"Example: {EXAMPLE}",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-np", "--num-proc", type=_RANK_COUNT, metavar="N", help="the number of ranks")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="where they run")
    text = "the same, 'host slots=4' a line"
    names = ("-hostfile", "--hostfile")
    place.add_argument(*names, type=argument_types.path, metavar="FILE", help=text)
    add("-p", "--ssh-port", type=_PORT, metavar="PORT", help="of ssh on the hosts")
    add("-i", "--ssh-identity-file", type=argument_types.path, metavar="FILE", help="ssh's key")
    _add_rank_options(parser)
    horovod_options.add_to(parser)
    add("--check-build", "-cb", action="store_true", help="say what hvd_tf was built for, and exit")
    add("--json", action="store_true", help="with --check-build: as JSON")
    add("--dry-run", action="store_true", help="print mpirun's command line and start nothing")
    add("-v", "--version", action=_Version, nargs=0, help="show the version and exit")
    add("--verbose", action="store_true", help="show what is run, and where")
    # Everything behind the first word that is no option. Its own dashes are not ours.
    add("command", nargs=argparse.REMAINDER, help="what every rank runs")
    return parser


def _add_rank_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "a variable for every rank, also elsewhere: this one's, or with =VALUE another value"
    add("-x", "--env", action="append", default=[], metavar="NAME", help=text)
    text = "further options of mpirun, as in --mpi-args='--report-bindings'"
    add("--mpi-args", default="", metavar="OPTIONS", help=text)
    add("--binding-args", default="", metavar="OPTIONS", help="the same, of its binding")
    text = "bind each rank to an equal share of its host's cores, where no other job runs"
    add("--share-cores", action="store_true", help=text)
    text = "write what each rank writes to DIR/rank.N/stdout and stderr too"
    add("--output-filename", type=argument_types.path, metavar="DIR", help=text)
    text = "put the time before every line"
    names = ("--timestamp", "-prefix-timestamp", "--prefix-output-with-timestamp")
    add(*names, action="store_true", help=text)
    text = "end the job when a rank has not called hvd.init() by then"
    add("--start-timeout", type=argument_types.seconds, metavar="SECONDS", help=text)
    text = "start a failed job again up to N times; ranks see which start it is in HVD_RESTART"
    add("--restarts", type=_RESTARTS, default=0, metavar="N", help=text)


def _hosts(found: argparse.Namespace) -> tuple[Host, ...]:
    if found.hosts is not None:
        named = hosts.parse(found.hosts)
    elif found.hostfile is not None:
        named = hosts.read(found.hostfile)
    else:
        named = []
    used = hosts.taken(named, found.num_proc) if named else []
    return () if all(host.is_local for host in used) else tuple(used)


def _ssh_arguments(found: argparse.Namespace) -> tuple[str, ...]:
    arguments = [] if found.ssh_port is None else ["-p", str(found.ssh_port)]
    if found.ssh_identity_file is not None:
        path = found.ssh_identity_file.absolute()
        if not path.is_file():
            raise LaunchError(f"-i {path}: there is no such file: give ssh's private key")
        # mpirun cuts what it hands to ssh at spaces.
        if not re.fullmatch(r"[A-Za-z0-9/._@%+=~,-]+", str(path)):
            raise LaunchError(
                f"-i {path}: mpirun cannot hand this path to ssh: use one of letters, digits and "
                "-._/, or name the key in ~/.ssh/config"
            )
        arguments += ["-i", str(path)]
    return tuple(arguments)


def _mpi_arguments(option: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise LaunchError(f"{option} {text!r}: {error}: close what was opened") from None
