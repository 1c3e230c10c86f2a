# SPDX-License-Identifier: Apache-2.0
"""hvdrun takes horovodrun's options: each sets a variable, or says why not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from launching import INTEL_MPI, MPICH, OPEN_MPI, facts, fake_mpirun, run

NOTE = "note(arguments=sys.argv, env=dict(os.environ))"


def started(
    directory: Path, *options: str, version: str = OPEN_MPI, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    fake_mpirun(directory, NOTE, version)
    result = run(directory, ["-np", "2", *options, "echo"], env)
    assert result.returncode == 0, result.stderr
    return result


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        (["--fusion-threshold-mb", "32"], "HVD_FUSION_BYTES", str(32 << 20)),
        (["--fusion-threshold-mb=0"], "HVD_FUSION_BYTES", "0"),
        (["--cache-capacity", "7"], "HVD_CACHE_ENTRIES", "7"),
        (["--autotune"], "HVD_AUTOTUNE", "1"),
        (["--no-autotune"], "HVD_AUTOTUNE", "0"),
        (["--autotune-log-file", "a b.csv"], "HVD_AUTOTUNE_LOG", "a b.csv"),
        (["--autotune-warmup-samples", "2"], "HVD_AUTOTUNE_WARMUP_SAMPLES", "2"),
        (["--autotune-steps-per-sample", "3"], "HVD_AUTOTUNE_STEPS_PER_SAMPLE", "3"),
        (["--autotune-bayes-opt-max-samples", "4"], "HVD_AUTOTUNE_SAMPLES", "4"),
        (["--timeline-filename", "a b.json"], "HVD_TIMELINE", "a b.json"),
        (["--timeline-mark-cycles"], "HVD_TIMELINE_MARK_CYCLES", "1"),
        (["--no-timeline-mark-cycles"], "HVD_TIMELINE_MARK_CYCLES", "0"),
        (["--no-stall-check"], "HVD_STALL_WARNING_S", "0"),
        (["--no-stall-check"], "HVD_STALL_SHUTDOWN_S", "0"),
        (
            ["--no-stall-check", "--stall-check-warning-time-seconds", "5"],
            "HVD_STALL_WARNING_S",
            "0",
        ),
        (["--stall-check-warning-time-seconds", "0"], "HVD_STALL_WARNING_S", "0.0"),
        (["--network-interface", "b,a", "--network-interface=c"], "NCCL_SOCKET_IFNAME", "b,a,c"),
        (["--stall-check-warning-time-seconds", "5"], "HVD_STALL_WARNING_S", "5.0"),
        (["--stall-check-shutdown-time-seconds", "6"], "HVD_STALL_SHUTDOWN_S", "6.0"),
        (["--hierarchical-allreduce"], "HVD_HIERARCHICAL_ALLREDUCE", "1"),
        (["--no-hierarchical-allreduce"], "HVD_HIERARCHICAL_ALLREDUCE", "0"),
        (["--tcp"], "NCCL_IB_DISABLE", "1"),
        (["--log-level", "DEBUG"], "HVD_LOG_LEVEL", "debug"),
        (["--log-level", "debug", "-x", "HVD_LOG_LEVEL=3"], "HVD_LOG_LEVEL", "3"),
    ],
)
def test_an_option_sets_a_variable(
    tmp_path: Path, options: list[str], name: str, value: str
) -> None:
    assert started(tmp_path, *options, env={name: "before"}).stderr == ""
    assert facts(tmp_path)["env"][name] == value


def test_what_has_nothing_to_do_says_so(tmp_path: Path) -> None:
    result = started(tmp_path, "--cycle-time-ms", "2", "--no-hierarchical-allgather", "--mpi")
    assert result.stderr.splitlines() == [
        "hvdrun: --cycle-time-ms has nothing to do here: a tensor travels as soon as all ranks "
        "have it",
        "hvdrun: --hierarchical-allgather has nothing to do here: ranks always reduce within their "
        "host first, then between hosts",
        "hvdrun: --mpi has nothing to do here: it is always MPI that starts the ranks",
    ]


def test_what_has_two_names_is_told_by_both(tmp_path: Path) -> None:
    result = started(tmp_path, "--max-np", "3")
    assert result.stderr.splitlines() == [
        "hvdrun: --max-num-proc or --max-np has nothing to do here: the number of ranks stays the "
        "same while a job runs"
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gloo"], "--gloo is not offered: leave it out: ranks of one host use shared memory"),
        (["--host-discovery-script", "x.sh"], "name the hosts with -H, and use --restarts"),
        (["--fusion-threshold-mb", "x"], "'x' is not a whole number from 0 upwards"),
        (["--log-level", "loud"], "'loud' is none of trace, debug, info, warning, error, fatal"),
        (["--stall-check-warning-time-seconds", "-1"], "'-1' is not a number from 0 upwards"),
    ],
)
def test_what_is_refused(tmp_path: Path, options: list[str], words: str) -> None:
    fake_mpirun(tmp_path, NOTE)
    result = run(tmp_path, ["-np", "2", *options, "echo"])
    assert result.returncode == 2 and words in result.stderr, result.stderr


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (OPEN_MPI, "--prtemca prte_if_include eth0,eth1 --mca btl_tcp_if_include eth0,eth1"),
        (
            OPEN_MPI.replace("5.0.11", "4.1.5"),
            "--mca oob_tcp_if_include eth0,eth1 --mca btl_tcp_if_include eth0,eth1",
        ),
        (MPICH, "-iface eth0"),
        (INTEL_MPI, "-iface eth0"),
    ],
)
def test_network_interfaces(tmp_path: Path, version: str, expected: str) -> None:
    options = ["--network-interface", "eth0", "--network-interfaces", "eth0, eth1"]
    options += ["--binding-args", "--bind-to core"]
    started(tmp_path, *options, version=version)
    arguments = " ".join(facts(tmp_path)["arguments"])
    assert f" {expected} " in arguments and " --bind-to core " in arguments


@pytest.mark.parametrize("version", [OPEN_MPI, MPICH])
@pytest.mark.parametrize("binding", ["-bind-to core", "--bind-to core"])
def test_a_binding_replaces_the_default(tmp_path: Path, version: str, binding: str) -> None:
    started(tmp_path, f"--binding-args={binding}", version=version)
    arguments = facts(tmp_path)["arguments"]
    assert f" {binding} " in " ".join(arguments)
    assert sum("bind-to" in word for word in arguments) == 1  # real ones refuse two


@pytest.mark.parametrize(
    ("more", "left_out"),
    [
        ("--map-by slot:PE=2", {"--map-by slot:OVERSUBSCRIBE", "--bind-to none"}),
        ("--map-by=slot:pe=2", {"--map-by slot:OVERSUBSCRIBE", "--bind-to none"}),
        ("--rankfile ranks", {"--map-by slot:OVERSUBSCRIBE", "--bind-to none"}),
        ("-N 1", {"--map-by slot:OVERSUBSCRIBE"}),
        ("--report-bindings", set()),
    ],
)
def test_a_placement_replaces_what_does_not_go_with_it(
    tmp_path: Path, more: str, left_out: set[str]
) -> None:
    fake_mpirun(tmp_path, NOTE)
    options = ["-np", "2", "-H", "a:1,b:1", "--dry-run", f"--binding-args={more}", "echo"]
    result = run(tmp_path, options)
    assert result.returncode == 0 and f" {more} " in result.stdout, result.stderr
    ours = {"--map-by slot:OVERSUBSCRIBE", "--bind-to none"}
    assert {words for words in ours if words not in result.stdout} == left_out


def test_no_more_ranks_than_slots_if_the_user_says_so(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, NOTE)
    result = run(tmp_path, ["-np", "2", "--dry-run", "--mpi-args=--nooversubscribe", "echo"])
    assert result.stdout.count("oversubscribe") == 1  # real ones fail at both


@pytest.mark.parametrize("place", [[], ["-H", "localhost:2,node1:2"]])
def test_what_is_for_ssh_has_nothing_to_do_on_one_machine(tmp_path: Path, place: list[str]) -> None:
    result = started(tmp_path, *place, "-p", "22")
    words = "-p and -i have nothing to do here: all ranks run on this machine"
    assert result.stderr == f"hvdrun: {words}\n"


def test_reset_limit_is_restarts(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, "sys.exit(3)")
    result = run(tmp_path, ["-np", "1", "--reset-limit", "2", "echo"])
    assert result.returncode == 3 and "(restart 2 of 2)" in result.stderr
    result = run(tmp_path, ["-np", "1", "--restarts", "1", "--reset-limit", "2", "echo"])
    assert result.returncode == 3 and "(restart 1 of 1)" in result.stderr


# --- Configuration files -------------------------------------------------------

CONFIG = """
params:
  fusion_threshold_mb: 16
  cycle_time_ms: 10
  cache_capacity:
autotune:
  enabled: true
  log_file: tune.csv
stall_check:
  enabled: false
  shutdown_time_seconds: 240
logging:
  level: INFO
  with_timestamp: true
controller: MPI
"""


def test_a_configuration_file(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    result = started(tmp_path, "--config-file", str(path), "--fusion-threshold-mb", "1")
    env = facts(tmp_path)["env"]
    names = ("FUSION_BYTES", "AUTOTUNE", "AUTOTUNE_LOG", "STALL_WARNING_S", "STALL_SHUTDOWN_S")
    values = [env[f"HVD_{name}"] for name in names]
    # The command line goes before the file.
    # Without a check, nothing is ended by it either.
    assert values == [str(1 << 20), "1", "tune.csv", "0", "0"]
    assert env["HVD_LOG_LEVEL"] == "info"
    for name in ("cycle-time-ms", "log-with-timestamp", "mpi"):
        assert f"--{name} has nothing to do here" in result.stderr


def test_the_command_line_chooses_the_controller(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "config.yaml"
    path.write_text("controller: gloo\nparams:\n  fusion_threshold_mb: 2.0\n")
    result = started(tmp_path, "--config-file", str(path), "--mpi")
    assert "--mpi has nothing to do here" in result.stderr
    assert facts(tmp_path)["env"]["HVD_FUSION_BYTES"] == str(2 << 20)


def test_a_command_line_may_turn_off_what_the_file_asks_for(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "config.yaml"
    path.write_text("autotune:\n  enabled: true\nparams:\n  cache_capacity: 9\n")
    started(tmp_path, "--config-file", str(path), "--no-autotune", "--cache-capacity", "0")
    env = facts(tmp_path)["env"]
    assert (env["HVD_AUTOTUNE"], env["HVD_CACHE_ENTRIES"]) == ("0", "0")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("controller: gloo\n", "--gloo is not offered: leave it out"),
        ("controller: smoke\n", "controller: 'smoke' is neither mpi nor gloo"),
        ("params:\n  fusion: 1\n", "params.fusion is no option: check its spelling"),
        ("params:\n  cache_capacity: x\n", "cache_capacity: 'x' is not a whole number"),
        ("params:\n  cache_capacity: ²\n", "cache_capacity: '²' is not a whole number"),
        ("autotune:\n  enabled: 3\n", "autotune.enabled: 3 is not true or false"),
        ("- 1\n", "write sections, such as 'params:'"),
        ("a: [\n", "is no YAML"),
        (None, "No such file or directory: name a YAML file"),
    ],
)
def test_a_wrong_configuration_file(tmp_path: Path, content: str | None, words: str) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    fake_mpirun(tmp_path, NOTE)
    result = run(tmp_path, ["-np", "1", "--config-file", str(path), "echo"])
    assert result.returncode == 2 and words in result.stderr, result.stderr
