# SPDX-License-Identifier: Apache-2.0
"""hvdrun where a host cannot be reached or is lost: what it says at last, and its status."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import INTEL_MPI, LIMIT_BEGINS, MPICH, OPEN_MPI, fake_mpirun, left_of, run, stop_left
from mpi import PACKAGE

HOSTS = ["-np", "3", "-H", "localhost:1,node2:2"]
# The words of Open MPI 5. The status is that of ssh, or of what ssh runs.
NO_DAEMON = """
A daemon failed to report back after being spawned. This could
be due to several factors.

  Local host:    node1
  Remote host:   node2
  Daemon exit status: {status}

This may also be caused by a firewall on the remote host.
"""
LOST = """
{of} has lost communication with a remote daemon.

  HNP daemon   : [prterun-node1-7@0,0] on node node1
  Remote daemon: [prterun-node1-7@0,1] on node node2

This is usually due to a failure of the TCP network.
"""
NO_PROXY = "[mpiexec@node1] ui_cmd_cb (pmiserv_pmci.c:51): Launch proxy failed.\n"
# Of Intel MPI. The status is as wait() has it.
NO_BOOTSTRAP = """
[mpiexec@node1] Error: Unable to run bstrap_proxy on node2 (pid 7, exit code {status})
[mpiexec@node1] Error setting up the bootstrap proxies
[mpiexec@node1] Possible reasons:
[mpiexec@node1] 1. Host is unavailable. Please check that all hosts are available.
"""
REACH = "see that 'ssh node2 true' works without anything typed (passphrases: ssh-agent)"
SAME_PATHS = "Python, hvd_tf, MPI and the program have to be at the same paths as here"
IS_LOST = "the connection to node2 was lost, or MPI's daemon there has been killed"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if (tmp_path / "tmp").exists():
        stop_left(tmp_path)


def says(text: str, status: int) -> str:
    """An mpirun that writes this, in two halves, and ends."""
    write = "sys.stderr.write({!r}); sys.stderr.flush(); time.sleep(0.1)\n"
    half = len(text) // 2
    return write.format(text[:half]) + write.format(text[half:]) + f"sys.exit({status})"


@pytest.mark.parametrize(
    ("text", "version", "status", "code", "words"),
    [
        (NO_DAEMON.format(status=255), OPEN_MPI, 255, 255, f"connection was lost: {REACH}"),
        (NO_DAEMON.format(status=127), OPEN_MPI, 127, 127, f"be started on node2: {SAME_PATHS}"),
        # Where the ssh or the daemon is killed it says that all is well.
        (NO_DAEMON.format(status=0), OPEN_MPI, 0, 1, IS_LOST),
        (LOST.format(of="PRTE"), OPEN_MPI, 0, 1, IS_LOST),
        (LOST.format(of="ORTE"), "mpirun (Open MPI) 4.1.4", 1, 1, IS_LOST),
        (NO_PROXY, MPICH, 255, 255, f"a host was not reached: {REACH}"),
        (NO_BOOTSTRAP.format(status=65280), INTEL_MPI, 255, 255, f"connection was lost: {REACH}"),
        (NO_BOOTSTRAP.format(status=32512), INTEL_MPI, 255, 255, f"on node2: {SAME_PATHS}"),
    ],
)
def test_the_host_and_the_remedy_are_named(
    job: Path, text: str, version: str, status: int, code: int, words: str
) -> None:
    fake_mpirun(job, says(text, status), version)
    result = run(job, [*HOSTS, "true"])
    assert result.returncode == code
    *before, last = result.stderr.splitlines()
    assert "\n".join(before) == text.rstrip("\n")
    assert last.startswith("hvdrun: ") and last.endswith(words)
    assert left_of(job) == []


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (1, "the connection to node2 was lost while its ranks ran: that host or the network is "),
        (0, "ssh to node2 failed, or its connection was lost: "),
    ],
)
def test_a_host_that_is_lost_behind_the_start(job: Path, rank: int, words: str) -> None:
    notice = {"what": "running", "rank": rank, "host": "a", "pid": 7, "time_ns": 5}
    line = f"[1,{rank}]<stderr>: \x1e%s {json.dumps(notice)}\n"
    write = f"sys.stderr.write({line!r} % os.environ['HVD_NOTICE'])\n"
    fake_mpirun(job, write + says(NO_DAEMON.format(status=255), 255))
    result = run(job, [*HOSTS, "true"])
    assert result.returncode == 255
    assert result.stderr.splitlines()[-1].startswith(f"hvdrun: {words}")


def test_the_remedy_has_the_options_of_ssh(job: Path) -> None:
    (job / "key").touch()
    fake_mpirun(job, says(NO_DAEMON.format(status=255), 255))
    result = run(job, [*HOSTS, "-p", "2222", "-i", str(job / "key"), "true"])
    assert f"'ssh -p 2222 -i {job}/key node2 true' works" in result.stderr.splitlines()[-1]


def test_a_lost_host_counts_as_a_failure(job: Path) -> None:
    again = 'if os.environ["HVD_RESTART"] == "1": sys.exit(0)\n'
    fake_mpirun(job, again + says(NO_DAEMON.format(status=0), 0))
    result = run(job, [*HOSTS, "--restarts", "1", "true"])
    assert result.returncode == 0
    assert "the job ended with status 1; starting it again" in result.stderr.splitlines()[-1]


def test_a_rank_may_write_such_words(job: Path) -> None:
    tagged = "".join(f"[1,0]<stderr>: {line}\n" for line in LOST.format(of="PRTE").splitlines())
    fake_mpirun(job, says(tagged, 0))
    result = run(job, [*HOSTS, "true"])
    assert result.returncode == 0 and "hvdrun" not in result.stderr


def test_on_one_machine_nothing_is_lost(job: Path) -> None:
    fake_mpirun(job, says(LOST.format(of="PRTE"), 0))
    result = run(job, ["-np", "1", "true"])
    assert result.returncode == 0 and "hvdrun" not in result.stderr


def test_the_traceback_of_a_rank_says_more(job: Path) -> None:
    report = {"time_ns": 5, "rank": 1, "host": "a", "pid": 7, "traceback": "E\n"}
    place = 'os.environ["HVD_JOB_DIR"] + "/failure-7"'
    write = f"open({place}, 'w').write({json.dumps(report)!r})\n"
    fake_mpirun(job, write + says(LOST.format(of="PRTE"), 1))
    assert run(job, [*HOSTS, "true"]).stderr.splitlines()[-3:] == [
        *["hvdrun: rank 1 (host a, pid 7) failed first:", "E"],
        "hvdrun: rank 1 (host a, pid 7) ended by the uncaught exception above",
    ]


@pytest.mark.parametrize("later", ["", LOST.format(of="PRTE")])
def test_a_host_without_hvd_tf_is_named(job: Path, later: str) -> None:
    """Whatever mpirun says of that host later on."""
    place = PACKAGE / "_internal" / "launcher"
    text = f"[1,2]<stderr>: python: can't open file '{place}/rank_main.py': [Errno 2] No such\n"
    fake_mpirun(job, says(text + later, 2))
    result = run(job, [*HOSTS, "true"])
    words = f"hvdrun: hvd_tf is not in {place} on node2: {SAME_PATHS}"
    assert (result.returncode, result.stderr.splitlines()[-1]) == (2, words)


def test_the_host_without_the_program_is_named() -> None:
    main = [str(PACKAGE / "_internal" / "launcher" / "rank_main.py"), "=no-such-program"]
    result = subprocess.run(["python3", *main], capture_output=True, text=True, check=False)
    here = subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout
    words = f"hvdrun: cannot run 'no-such-program' on {here.strip()}: No such file or directory\n"
    assert (result.returncode, result.stderr) == (127, words)


# --- The start's limit -----------------------------------------------------------

SLEEP = "time.sleep(1000)"
A_RANK = """
subprocess.Popen(["sleep", "1000"], env={**os.environ, "OMPI_COMM_WORLD_RANK": "0"})
note()
"""


@pytest.mark.parametrize(
    ("hosts", "body", "words"),
    [
        ("localhost:1,node2:2", SLEEP, f"mpirun has started none, as when a host {{}}: {REACH}"),
        ("localhost:1,node2:1,node3:1", SLEEP, f"{REACH}, and so for the other hosts"),
        ("localhost:1,node2:2", A_RANK + SLEEP, "see what they wait for, or give more time"),
        # Nothing is known here of another host's ranks.
        ("node2:3", SLEEP, "see what they wait for, or give more time"),
        ("localhost:3", SLEEP, "see what they wait for, or give more time"),
    ],
)
def test_a_host_that_does_not_answer(job: Path, hosts: str, body: str, words: str) -> None:
    fake_mpirun(job, body)
    # A rank that there is to be is there by then.
    condition = f"os.path.exists({str(job / 'facts')!r})" if body != SLEEP else "True"
    options = ["-np", "3", "-H", hosts, "--start-timeout", "0.5"]
    result = run(job, [*options, "true"], change=LIMIT_BEGINS.format(condition=condition))
    last = result.stderr.splitlines()[-1]
    assert result.returncode == 124 and last.startswith("hvdrun: ranks 0, 1, 2 of 3 have not ")
    assert last.endswith(words.format("does not answer"))
    assert left_of(job) == []
