# SPDX-License-Identifier: Apache-2.0
"""The options that horovodrun has and hvdrun takes too: what each becomes here.

Most set a variable of hvd_tf. Some have nothing to do here, which a line says when they are used.
Some ask for what is not offered, and are refused. `--config-file` names a YAML file with the same
options; the command line goes before it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from hvd_tf._internal import config_file
from hvd_tf._internal.launcher.argument_types import number, path, whole
from hvd_tf._internal.launcher.errors import LaunchError

_NO_CYCLE = "a tensor travels as soon as all ranks have it"
_BY_HOST = "ranks always reduce within their host first, then between hosts"
_NO_GLOO = "ranks of one host use shared memory, and hosts MPI"
_WHOLE = whole()
_ONE_SIZE = "the number of ranks stays the same while a job runs"


class Found(NamedTuple):
    """What the options ask for."""

    variables: dict[str, str]
    """For every rank."""
    notices: tuple[str, ...]
    """What is to be said about options that have nothing to do here."""
    restarts: Optional[int]
    network_interfaces: tuple[str, ...]


@dataclass(frozen=True)
class _Rule:
    flags: tuple[str, ...]
    key: str = ""
    """In a configuration file: section.name."""
    kind: Callable[[str], Any] = str
    """Checks and converts a value. bool: the option has none, but a form with --no-."""
    variable: str = ""
    """It sets this one."""
    text: Callable[[Any], Optional[str]] = str
    """The variable's value; None leaves it alone."""
    no_effect: str = ""
    """It has nothing to do, for this reason."""
    refused: str = ""
    """It asks for what there is not; this is the remedy."""

    @property
    def name(self) -> str:
        return self.flags[0].lstrip("-").replace("-", "_")


def _level(text: str) -> str:
    levels = ("trace", "debug", "info", "warning", "error", "fatal")
    if text.lower() not in levels:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(levels)}")
    return text.lower()


def _switch(on: bool) -> str:
    return str(int(on))


_RULES = (
    # What the library does.
    _Rule(
        ("--fusion-threshold-mb",),
        "params.fusion_threshold_mb",
        _WHOLE,
        "HVD_FUSION_BYTES",
        lambda megabytes: str(megabytes << 20),
    ),
    _Rule(("--cache-capacity",), "params.cache_capacity", _WHOLE, "HVD_CACHE_ENTRIES"),
    _Rule(("--autotune",), "autotune.enabled", bool, "HVD_AUTOTUNE", _switch),
    _Rule(("--autotune-log-file",), "autotune.log_file", variable="HVD_AUTOTUNE_LOG"),
    _Rule(
        ("--autotune-warmup-samples",),
        "autotune.warmup_samples",
        _WHOLE,
        "HVD_AUTOTUNE_WARMUP_SAMPLES",
    ),
    _Rule(
        ("--autotune-steps-per-sample",),
        "autotune.steps_per_sample",
        _WHOLE,
        "HVD_AUTOTUNE_STEPS_PER_SAMPLE",
    ),
    _Rule(
        ("--autotune-bayes-opt-max-samples",),
        "autotune.bayes_opt_max_samples",
        _WHOLE,
        "HVD_AUTOTUNE_SAMPLES",
    ),
    _Rule(("--timeline-filename",), "timeline.filename", variable="HVD_TIMELINE"),
    _Rule(
        ("--timeline-mark-cycles",),
        "timeline.mark_cycles",
        bool,
        "HVD_TIMELINE_MARK_CYCLES",
        _switch,
    ),
    _Rule(
        ("--stall-check",),
        "stall_check.enabled",
        bool,
        "HVD_STALL_WARNING_S",
        lambda on: None if on else "0",
    ),
    _Rule(
        ("--stall-check-warning-time-seconds",),
        "stall_check.warning_time_seconds",
        number,
        "HVD_STALL_WARNING_S",
    ),
    _Rule(
        ("--stall-check-shutdown-time-seconds",),
        "stall_check.shutdown_time_seconds",
        number,
        "HVD_STALL_SHUTDOWN_S",
    ),
    _Rule(("--log-level",), "logging.level", _level, "HVD_LOG_LEVEL"),
    _Rule(
        ("--hierarchical-allreduce",),
        "params.hierarchical_allreduce",
        bool,
        "HVD_HIERARCHICAL_ALLREDUCE",
        _switch,
    ),
    # Of NCCL's networks. MPI chooses its own.
    _Rule(("--tcp",), "", bool, "NCCL_IB_DISABLE", lambda on: "1" if on else None),
    # What has nothing to do here.
    _Rule(("--cycle-time-ms",), "params.cycle_time_ms", number, no_effect=_NO_CYCLE),
    _Rule(
        ("--hierarchical-allgather",),
        "params.hierarchical_allgather",
        bool,
        no_effect=_BY_HOST,
    ),
    _Rule(("--torus-allreduce",), "params.torus_allreduce", bool, no_effect=_BY_HOST),
    _Rule(
        ("--autotune-gaussian-process-noise",),
        "autotune.gaussian_process_noise",
        number,
        no_effect="the search is a different one",
    ),
    _Rule(
        ("--disable-cache",),
        kind=bool,
        no_effect="there are no checks before a start whose results would be kept",
    ),
    _Rule(("--mpi",), kind=bool, no_effect="it is always MPI that starts the ranks"),
    _Rule(
        ("--mpi-threads-disable",),
        "library_options.mpi_threads_disable",
        bool,
        no_effect="MPI is called by one thread",
    ),
    _Rule(
        ("--num-nccl-streams",),
        "library_options.num_nccl_streams",
        _WHOLE,
        no_effect="hvd_tf gives NCCL one stream",
    ),
    _Rule(
        ("--thread-affinity",),
        "library_options.thread_affinity",
        no_effect="threads run where MPI's binding lets them",
    ),
    _Rule(
        ("--gloo-timeout-seconds",),
        "library_options.gloo_timeout_seconds",
        number,
        no_effect=_NO_GLOO,
    ),
    _Rule(
        ("--log-with-timestamp",),
        "logging.with_timestamp",
        bool,
        no_effect="--timestamp shows the time",
    ),
    _Rule(("--log-without-timestamp",), kind=bool, no_effect="--timestamp shows the time"),
    _Rule(
        ("--log-hide-timestamp",),
        "logging.hide_timestamp",
        bool,
        no_effect="--timestamp shows the time",
    ),
    _Rule(("--min-num-proc", "--min-np"), kind=_WHOLE, no_effect=_ONE_SIZE),
    _Rule(("--max-num-proc", "--max-np"), kind=_WHOLE, no_effect=_ONE_SIZE),
    _Rule(("--elastic-timeout",), kind=number, no_effect=_ONE_SIZE),
    # What there is not.
    _Rule(("--gloo",), kind=bool, refused="leave it out: " + _NO_GLOO),
    _Rule(("--jsrun",), kind=bool, refused="leave it out: mpirun starts the ranks"),
    _Rule(
        ("--host-discovery-script",),
        refused=f"{_ONE_SIZE}: name the hosts with -H, and use --restarts",
    ),
    _Rule(("--slots-per-host",), refused="write the slots behind each host: -H host:4"),
    _Rule(("--blacklist-cooldown-range",), refused=f"{_ONE_SIZE}: use --restarts"),
)


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the options to hvdrun's own."""
    taken = ", ".join(rule.flags[0] for rule in _RULES if rule.variable)
    text = f"Also taken: {taken}, and others that have nothing to do here."
    group = parser.add_argument_group("options of horovodrun", text)
    for rule in _RULES:
        if rule.kind is bool:
            action = argparse.BooleanOptionalAction
            group.add_argument(*rule.flags, dest=rule.name, action=action, help=argparse.SUPPRESS)
        else:
            group.add_argument(
                *rule.flags, dest=rule.name, type=rule.kind, metavar="VALUE", help=argparse.SUPPRESS
            )
    text = "a YAML file with options"
    group.add_argument("--config-file", type=path, metavar="FILE", help=text)
    text = "network interfaces for MPI, such as eth0,eth1"
    names = ("--network-interfaces", "--network-interface")
    group.add_argument(*names, action="append", default=[], metavar="NAMES", help=text)
    text = "how often a failed job is started again, as --restarts"
    group.add_argument("--reset-limit", type=_WHOLE, metavar="N", help=text)


def read(found: argparse.Namespace) -> Found:
    """What the options of a command line ask for, and those of its configuration file.

    Raises:
      LaunchError: one asks for what is not offered, or the file cannot be read.
    """
    values = {rule.name: getattr(found, rule.name) for rule in _RULES}
    if found.config_file is not None:
        controllers = {"mpi", "gloo"}  # of which the command line may have the other one
        if any(values[name] is not None for name in controllers):
            controllers.clear()
        for name, value in _of_file(str(found.config_file)).items():
            if values[name] is None and (name in controllers or name not in ("mpi", "gloo")):
                values[name] = value
    variables: dict[str, str] = {}
    notices = []
    for rule in _RULES:
        value = values[rule.name]
        if value is None:
            continue
        if rule.refused:
            raise LaunchError(f"{rule.flags[0]} is not offered: {rule.refused}")
        if rule.no_effect:
            notices.append(f"{' or '.join(rule.flags)} has nothing to do here: {rule.no_effect}")
        elif (text := rule.text(value)) is not None and variables.get(rule.variable) != "0":
            variables[rule.variable] = text
    if variables.get("HVD_STALL_WARNING_S") == "0":
        variables["HVD_STALL_SHUTDOWN_S"] = "0"  # horovodrun's check is both
    names = ",".join(found.network_interfaces).split(",")
    interfaces = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    if interfaces:
        variables["NCCL_SOCKET_IFNAME"] = ",".join(interfaces)
    return Found(variables, tuple(notices), found.reset_limit, interfaces)


def _of_file(path: str) -> dict[str, Any]:
    """The values of the file, checked, by the options' names."""
    rules = {rule.key: rule for rule in _RULES if rule.key}
    values: dict[str, Any] = {}
    for key, value in _flat(config_file.read(path)).items():
        rule = rules.get(key)
        if key == "controller":
            if str(value).lower() not in ("mpi", "gloo"):
                raise LaunchError(f"--config-file {path}: {key}: {value!r} is neither mpi nor gloo")
            values[str(value).lower()] = True  # as the option of that name
            continue
        if rule is None:
            raise LaunchError(f"--config-file {path}: {key} is no option: check its spelling")
        if rule.kind is bool:
            if not isinstance(value, bool):
                raise LaunchError(f"--config-file {path}: {key}: {value!r} is not true or false")
            values[rule.name] = value
            continue
        try:
            is_whole = isinstance(value, float) and value.is_integer()
            values[rule.name] = rule.kind(str(int(value) if is_whole else value))
        except argparse.ArgumentTypeError as error:
            raise LaunchError(f"--config-file {path}: {key}: {error}") from None
    return values


def _flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """{"section": {"name": value}} as {"section.name": value}. Without a value it is left out."""
    flat = {}
    for section, values in content.items():
        if not isinstance(values, Mapping):
            values = {"": values}
        for name, value in values.items():
            if value is not None:
                flat[f"{section}.{name}" if name else str(section)] = value
    return flat
