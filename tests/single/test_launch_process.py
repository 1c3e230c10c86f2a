# SPDX-License-Identifier: Apache-2.0
"""hvdrun: output, exit codes, signals, and what stays behind (nothing)."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import INTEL_MPI, MPICH, facts, fake_mpirun, left_of, run, start, stop_left

from hvd_tf._internal.launcher.process import KILL_AFTER_S

# Ranks as mpirun starts them, in process groups of their own, and one that goes further.
TWO_CHILDREN = """
deaf = [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)]
if os.fork() == 0: os.setpgid(0, 0); time.sleep(1000)
if os.fork() == 0: os.setsid(); time.sleep(1000)
"""
HEAR = """
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append("USR1"))
signal.signal(signal.SIGUSR2, lambda *_: seen.append("USR2"))
def stop(number, frame):
    note(seen=[*seen, number]); sys.exit(1)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, stop)
"""
# Whatever asks the job to end gives it all the time that it needs.
PATIENT = "from hvd_tf._internal.launcher import process; process.KILL_AFTER_S = 1000\n"
READY = "print('ready', flush=True)\nwhile True: time.sleep(0.05)"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if (tmp_path / "tmp").exists():
        stop_left(tmp_path)


def started(job: Path, **options: object) -> subprocess.Popen[bytes]:
    process = start(job, ["-np", "1", "true"], stderr=subprocess.STDOUT, **options)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


def end(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Status and the rest of the output."""
    out, _ = process.communicate(timeout=60)
    return process.returncode, out.decode()


def wait_until_taken(process: subprocess.Popen[bytes], number: int) -> None:
    """Until a signal that was sent to the process is no longer pending: the next is another one."""
    deadline = time.monotonic() + 60
    status = Path(f"/proc/{process.pid}/status")
    while (mask := re.search(r"ShdPnd:\s*(\w+)", status.read_text())) is not None:
        if not int(mask[1], 16) & 1 << number - 1:
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- Output -------------------------------------------------------------------


def test_lines_are_headed_by_their_rank(job: Path) -> None:
    lines = [
        *["[1,0]<stdout>: a", "[1,1]<stdout>:  two spaces", "[1,12]<stdout>: ", "no tag"],
        *["[1,1]<stdout>: [1,0]<stdout>: quoted", "[0]<stdout>: not a tag"],
    ]
    fake_mpirun(job, f"print({chr(10).join(lines)!r}); print('[1,3]<stderr>: e', file=sys.stderr)")
    result = run(job, ["-np", "2", "true"])
    assert result.stdout.splitlines() == [
        *["[0] a", "[1]  two spaces", "[12] ", "no tag"],
        *["[1] [1,0]<stdout>: quoted", "[0]<stdout>: not a tag"],
    ]
    assert result.stderr == "[3] e\n"


def test_a_last_line_without_line_feed_stands_alone(job: Path) -> None:
    fake_mpirun(job, "print('[1,0]<stdout>: end[1,1]<stdout>: next\\n[1,1]<stdout>: end', end='')")
    assert run(job, ["-np", "2", "true"]).stdout == "[0] end\n[1] next\n[1] end\n"


def test_much_output_arrives_whole(job: Path) -> None:
    body = """
for i in range(20000):
    sys.stdout.write(f"[1,{i % 3}]<stdout>: {i}:" + "x" * (i % 700) + "\\n")
sys.stdout.write("[1,0]<stdout>: " + "y" * 3_000_000)
"""
    fake_mpirun(job, body)
    lines = run(job, ["-np", "3", "true"]).stdout.splitlines()
    wanted = [f"[{i % 3}] {i}:" + "x" * (i % 700) for i in range(20000)]
    assert lines == [*wanted, "[0] " + "y" * 3_000_000]


def test_lines_come_when_they_are_written_and_halves_wait(job: Path) -> None:
    body = """
out = lambda text: os.write(1, text)
out(b"[1,0]<std"); time.sleep(0.3); out(b"out>: a"); time.sleep(0.3); out(b"b\\n")
time.sleep(60)
"""
    fake_mpirun(job, body)
    process = start(job, ["-np", "1", "true"])
    assert process.stdout is not None and process.stdout.readline() == b"[0] ab\n"
    process.terminate()
    assert end(process)[0] == 143


def test_bytes_of_no_encoding_pass(job: Path) -> None:
    fake_mpirun(job, 'os.write(1, b"[1,0]<stdout>: \\xff\\x00\\n")')
    with start(job, ["-np", "1", "true"]) as process:
        assert process.communicate(timeout=30)[0] == b"[0] \xff\x00\n"


def test_a_log_that_nobody_reads_does_not_end_the_job(job: Path) -> None:
    body = """
for i in range(3000): print("[1,0]<stdout>: " + "x" * 100, flush=True)
note(arrived=True); sys.exit(4)
"""
    fake_mpirun(job, body)
    process = start(job, ["-np", "1", "true"])
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    with process:
        assert process.wait(timeout=30) == 4
    assert facts(job) == {"arrived": True}


# --- Input --------------------------------------------------------------------

# As mpirun has it, whose pipe to rank 0 may never end.
RANKS_WITH_OPEN_PIPES = """
read, write = os.pipe()
env = lambda rank: {**os.environ, "PMIX_RANK": str(rank)}
for rank in (0, 1): subprocess.run(command, stdin=read, env=env(rank))
print("mpirun:", sys.stdin.read(), flush=True)
"""
SHOW_INPUT = ["sh", "-c", 'echo "$PMIX_RANK: $(cat)"']


@pytest.mark.parametrize("kind", ["pipe", "file", "null", "socket", "closed"])
def test_rank_0_reads_the_launchers_input_to_its_end(job: Path, kind: str) -> None:
    fake_mpirun(job, RANKS_WITH_OPEN_PIPES)
    (job / "input").write_text("a\nb\n")
    mine, other = socket.socketpair()
    with mine, other, (job / "input").open() as file:
        source = {"pipe": subprocess.PIPE, "file": file, "null": subprocess.DEVNULL}.get(
            kind, other
        )
        close = (lambda: os.close(0)) if kind == "closed" else None
        process = start(job, ["-np", "2", *SHOW_INPUT], stdin=source, preexec_fn=close)
        out, errors = process.communicate(b"a\nb\n" if kind == "pipe" else None, timeout=30)
    text = "a\nb" if kind in ("pipe", "file") else ""
    assert (process.returncode, errors) == (0, b"")
    assert out.decode() == f"0: {text}\n1: \nmpirun: \n"


def test_rank_0_goes_on_where_a_file_has_been_read_to(job: Path) -> None:
    fake_mpirun(job, RANKS_WITH_OPEN_PIPES)
    (job / "input").write_text("a\nb\nc\n")
    with (job / "input").open("rb", buffering=0) as file:
        assert file.readline() == b"a\n"
        process = start(job, ["-np", "2", *SHOW_INPUT], stdin=file)
        out, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, b"")
    assert out.decode() == "0: b\nc\n1: \nmpirun: \n"


def test_a_rank_ignores_no_signal_because_python_does(job: Path) -> None:
    """Else `yes | head -1` of a shell that runs as a rank may never end."""
    of_python = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    fake_mpirun(job, RANKS_WITH_OPEN_PIPES)
    process = start(job, ["-np", "2", "grep", "SigIgn", "/proc/self/status"])
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, b"")
    # The shell that started the tests may have had them ignore others.
    ignored = [int(line.split()[1], 16) for line in out.decode().splitlines()[:2]]
    assert [mask & of_python for mask in ignored] == [0, 0]


# --- Exit codes and the last words ----------------------------------------------


SILENT = "hvdrun: mpirun ended with status {} and said nothing: --dry-run shows its options\n"


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("pass", 0, ""),
        ("sys.exit(3)", 3, SILENT.format(3)),
        ("sys.exit(137)", 137, SILENT.format(137)),
        ("print('why', file=sys.stderr); sys.exit(3)", 3, "why\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "hvdrun: signal 9 has ended mpirun\n"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "hvdrun: signal 11 has ended mpirun\n"),
    ],
)
def test_exit_code_is_mpiruns(job: Path, body: str, code: int, words: str) -> None:
    fake_mpirun(job, body)
    result = run(job, ["-np", "1", "true"])
    assert (result.returncode, result.stderr) == (code, words)
    assert left_of(job) == []


@pytest.mark.parametrize(
    ("status", "words", "code"),
    [
        (9, "Killed (signal 9)", 137),
        (9, "", 9),
        (15, "Terminated (signal 15)", 143),
        (1, "Hangup (signal 1)", 129),
        (3, "Killed (signal 9)", 3),
    ],
)
def test_exit_code_after_a_signal_under_mpich(
    job: Path, status: int, words: str, code: int
) -> None:
    words = f"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: {words}"
    fake_mpirun(job, f"print({words!r}); sys.exit({status})", MPICH)
    result = run(job, ["-np", "1", "true"])
    assert (result.returncode, result.stdout) == (code, words + "\n")


@pytest.mark.parametrize(("status", "number", "code"), [(255, 9, 137), (255, None, 255), (3, 9, 3)])
def test_exit_code_after_a_signal_under_intel_mpi(
    job: Path, status: int, number: int | None, code: int
) -> None:
    """Ranks that end because of the first one come behind it."""
    lines = [f"=   KILLED BY SIGNAL: {one} (Killed)" for one in (number, 15) if number]
    fake_mpirun(job, f"print({chr(10).join(lines)!r}); sys.exit({status})", INTEL_MPI)
    assert run(job, ["-np", "1", "true"]).returncode == code


def test_status_survives_a_parent_that_ignores_its_children(job: Path) -> None:
    fake_mpirun(job, "sys.exit(3)")
    ignore = {"preexec_fn": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)}
    assert end(start(job, ["-np", "1", "true"], **ignore))[0] == 3


def test_the_first_traceback_comes_last(job: Path) -> None:
    report = {"time_ns": 5, "rank": 1, "host": "a", "pid": 7, "traceback": "Traceback\nE: \ud800\n"}
    reports = {
        "failure-7": json.dumps(report),
        "failure-8": json.dumps({**report, "time_ns": 6, "rank": 0, "pid": 8}),
        "failure-9": json.dumps({**report, "rank": 2, "pid": 9}),
        "failure-6": json.dumps({**report, "time_ns": 1, "blames_peer": True, "rank": 3}),
        "failure-10": '{"time_ns": 1',
        "failure-11": '{"time_ns": 1}',
        "failure-12": "7",
        "failure-13": json.dumps({**report, "time_ns": "1"}),
    }
    body = f"""
for name, text in {reports!r}.items():
    open(os.path.join(os.environ["HVD_JOB_DIR"], name), "w").write(text)
print("its own words", file=sys.stderr); sys.exit(1)
"""
    fake_mpirun(job, body)
    result = run(job, ["-np", "1", "true"])
    expected = (
        "its own words\nhvdrun: rank 1 (host a, pid 7) failed first:\nTraceback\nE: \\ud800\n"
        "hvdrun: rank 1 (host a, pid 7) ended by the uncaught exception above\n"
    )
    assert (result.returncode, result.stderr) == (1, expected)
    assert left_of(job) == []


def test_an_mpirun_that_crashes_over_a_failure_is_not_the_failure(job: Path) -> None:
    report = {"time_ns": 5, "rank": 1, "host": "a", "pid": 7, "traceback": "E\n"}
    write = (
        f"""open(os.environ["HVD_JOB_DIR"] + "/failure-7", "w").write({json.dumps(report)!r})\n"""
    )
    fake_mpirun(job, write + "os.kill(os.getpid(), signal.SIGSEGV)")
    result = run(job, ["-np", "1", "true"])
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        *["hvdrun: rank 1 (host a, pid 7) failed first:", "E"],
        "hvdrun: rank 1 (host a, pid 7) ended by the uncaught exception above",
    ]


# --- Signals ------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_mpirun_gets_the_signal_once(job: Path, number: int) -> None:
    fake_mpirun(job, HEAR + READY)
    process = started(job, change=PATIENT)
    process.send_signal(number)
    status, output = end(process)
    assert status == 128 + number
    assert output == f"hvdrun: stopped by {signal.Signals(number).name}\n"
    assert facts(job)["seen"] == [number]
    assert left_of(job) == []


def test_ctrl_c_of_a_terminal_reaches_mpirun_once(job: Path) -> None:
    fake_mpirun(job, HEAR + READY)
    process = started(job, change=PATIENT, start_new_session=True)
    os.killpg(process.pid, signal.SIGINT)
    assert end(process)[0] == 130
    assert facts(job)["seen"] == [signal.SIGINT]


def test_what_does_not_listen_is_killed(job: Path) -> None:
    fake_mpirun(job, TWO_CHILDREN + READY)
    process = started(job)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    status, _ = end(process)
    # Not before it has had its time.
    assert status == 130 and time.monotonic() - begin >= KILL_AFTER_S
    assert left_of(job) == []


def test_a_second_ctrl_c_is_not_patient(job: Path) -> None:
    fake_mpirun(job, TWO_CHILDREN + READY)
    process = started(job, change=PATIENT)
    process.send_signal(signal.SIGINT)
    wait_until_taken(process, signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert end(process)[0] == 130
    assert left_of(job) == []


def test_what_a_failed_mpirun_leaves_is_killed(job: Path) -> None:
    fake_mpirun(job, TWO_CHILDREN + "sys.exit(3)")
    assert run(job, ["-np", "1", "true"]).returncode == 3
    assert left_of(job) == []


def test_user_signals_are_passed_on(job: Path) -> None:
    fake_mpirun(job, HEAR + READY)
    process = started(job, change=PATIENT)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        process.send_signal(number)
        time.sleep(0.3)
    assert end(process)[0] == 143
    assert facts(job)["seen"] == ["USR1", "USR2", signal.SIGTERM]


def test_an_ignored_signal_stays_ignored(job: Path) -> None:
    fake_mpirun(job, HEAR + READY)
    ignore = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}  # nohup
    process = started(job, change=PATIENT, **ignore)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 143
    assert facts(job)["seen"] == [signal.SIGTERM]


def test_ranks_have_the_launchers_signal_mask(job: Path) -> None:
    blocked = '[line for line in open("/proc/self/status") if line.startswith("SigBlk")]'
    fake_mpirun(job, f"note(blocked={blocked})")
    run(job, ["-np", "1", "true"])
    with open("/proc/self/status") as file:
        assert facts(job)["blocked"] == [line for line in file if line.startswith("SigBlk")]


def test_ctrl_c_while_nobody_reads_the_output(job: Path) -> None:
    body = "print('ready', flush=True)\nwhile True: print('x' * 1000)"
    fake_mpirun(job, body)
    process = started(job)
    time.sleep(1)  # the pipe is full now
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert left_of(job) == []
    process.communicate()


# Its ranks have no time once it is told, or once one of them has ended.
HASTY = """
env = lambda rank: {**os.environ, "PMIX_RANK": str(rank)}
ranks = [subprocess.Popen(command, env=env(rank), start_new_session=True) for rank in (0, 1)]
def stop(number=0, frame=None):
    for rank in ranks: os.killpg(rank.pid, signal.SIGKILL)
    note(told=number); sys.exit(1)
signal.signal(signal.SIGTERM, stop)
while all(rank.poll() is None for rank in ranks): time.sleep(0.01)
stop()
"""
# Rank 0 needs a while for it, or is stopped then, or does not listen. Rank 1 does not either way.
# Both write to one pipe, and where Python buffers nothing, print's line end comes by itself.
SAVES = """
import os, pathlib, signal, sys, time
path, how = sys.argv[1:]
def save(number, frame): time.sleep(1); pathlib.Path(path).write_text("saved"); sys.exit()
if os.environ["PMIX_RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN if how == "deaf" else save)
os.write(1, b"ready\\n")
if os.environ["PMIX_RANK"] == "0" and how == "stopped": os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(100)
"""


def start_hasty(job: Path, how: str, change: str) -> subprocess.Popen[bytes]:
    fake_mpirun(job, HASTY)
    program = [sys.executable, "-c", SAVES, str(job / "saved"), how]
    if how == "in a script":
        program = ["sh", "-c", '"$@"; true', "sh", *program]
    process = start(job, ["-np", "2", *program], stderr=subprocess.STDOUT, change=change)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
    return process


@pytest.mark.parametrize("how", ["", "in a script", "stopped"])
def test_ranks_have_time_to_end_before_mpirun_is_told(job: Path, how: str) -> None:
    process = start_hasty(job, how, PATIENT)
    process.send_signal(signal.SIGTERM)
    assert end(process) == (143, "hvdrun: stopped by SIGTERM\n")
    assert (job / "saved").read_text() == "saved"
    assert facts(job)["told"] == signal.SIGTERM
    assert left_of(job) == []


def test_a_rank_that_has_had_its_time_is_ended(job: Path) -> None:
    process = start_hasty(job, "deaf", PATIENT.replace("1000", "0.5"))
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 143
    assert left_of(job) == []


def test_a_second_ctrl_c_ends_a_rank_at_once(job: Path) -> None:
    process = start_hasty(job, "deaf", PATIENT)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        wait_until_taken(process, signal.SIGINT)
    assert end(process)[0] == 130
    assert left_of(job) == []
