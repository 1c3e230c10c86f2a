# SPDX-License-Identifier: Apache-2.0
"""hvdrun's last line names the rank that ended a job, its host and how it ended."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from cases import in_full
from mpi import Job, Result

PROGRAM = Path(__file__).with_name("rank_end_program.py")
HOST = re.escape(os.uname().nodename)


def run(ranks: int, *arguments: str, env: dict[str, str] | None = None) -> Result:
    return run_command(ranks, [sys.executable, str(PROGRAM), *arguments], env)


def run_command(ranks: int, command: list[str], env: dict[str, str] | None = None) -> Result:
    parts = [f"--unset=OMPI_MCA_{part}_sm_backing_directory" for part in ("btl", "osc")]
    launcher = ["env", *parts, sys.executable, "-m", "hvd_tf.launch", "-np", str(ranks)]
    with Job(command, ranks, env or {}, launcher=launcher) as job:
        return job.wait(120)


def last_line(result: Result) -> str:
    assert not result.timed_out and not result.leftovers, result.text
    return result.text.rstrip().splitlines()[-1]


@pytest.mark.parametrize(
    ("how", "words", "status"),
    [
        ("exit-3", "ended with status 3", 3),
        ("exit-0", "ended with status 0 while others went on", None),
        ("killed", r"was ended by signal 9 \(SIGKILL\), as the kernel does .*", 137),
        ("terminated", r"was ended by signal 15 \(SIGTERM\)", 143),
        ("segfault", r"was ended by signal 11 \(SIGSEGV\)", 139),
        ("aborted", r"was ended by signal 6 \(SIGABRT\)", 134),
    ],
)
def test_a_rank_of_any_program(how: str, words: str, status: int | None) -> None:
    result = run(3, "plain", how)
    line = last_line(result)
    assert re.fullmatch(rf"hvdrun: rank 1 \(host {HOST}, pid \d+\) {words}", line), result.text
    assert result.returncode not in (0, None)
    assert status in (None, result.returncode), result.text


# A rank that leaves or is killed: test_exceptions.py and test_kill.py.
@pytest.mark.parametrize(
    "how", ["exit-3", *(pytest.param(how, marks=in_full) for how in ("exit-0", "killed"))]
)
def test_a_rank_of_a_training(how: str) -> None:
    result = run(2, "hvd", how)
    line = last_line(result)
    assert re.match(rf"hvdrun: rank 1 \(host {HOST}, pid \d+\) (was )?ended (with|by) ", line), (
        result.text
    )
    assert result.returncode != 0


def test_a_training_that_one_rank_leaves_with_a_status() -> None:
    result = run(2, "hvd", "sys.exit-3")
    line = last_line(result)
    words = "left first: its program ended with status 3 while others went on"
    assert re.fullmatch(rf"hvdrun: rank 1 \(host {HOST}, pid \d+\) {words}", line), result.text
    assert result.returncode == 3, result.text


def test_a_rank_that_is_frozen_after_its_last_step() -> None:
    result = run(2, "hvd", "frozen", env={"HVD_STALL_SHUTDOWN_S": "3"})
    line = last_line(result)
    words = (
        rf"hvdrun: rank 1 \(host {HOST}, pid \d+\) is frozen: stopped by a signal for 3 s "
        r"\(HVD_STALL_SHUTDOWN_S\) while all others had ended; the job was ended"
    )
    assert re.fullmatch(words, line), result.text
    assert result.returncode != 0


# What it runs takes itself for the rank.
RAISES = f"{sys.executable} -c 'import hvd_tf; hvd_tf.size; 1 / 0'"


def test_a_rank_that_makes_nothing_of_an_exception_goes_on() -> None:
    result = run_command(2, ["bash", "-c", f"{RAISES}; sleep 8; echo goes on"])
    assert result.text.count("ZeroDivisionError") == 2
    assert result.text.count("goes on\n") == 2 and "hvdrun: " not in result.text, result.text
    assert result.returncode == 0 and not result.leftovers


def test_a_rank_that_ends_by_the_exception_of_what_it_runs() -> None:
    result = run_command(
        2,
        ["bash", "-c", f"[ ${{OMPI_COMM_WORLD_RANK-$PMI_RANK}} = 0 ] || {{ {RAISES}; exit $?; }}"],
    )
    line = last_line(result)
    words = rf"hvdrun: rank 1 \(host {HOST}, pid \d+\) ended by the uncaught exception above"
    assert re.fullmatch(words, line), result.text
    assert result.text.count("ZeroDivisionError") == 2 and result.returncode == 1


# The other rank has ended when this one comes to init.
WAITS = """
import os, time
path = os.environ['HVD_JOB_DIR'] + '/rank-1.process'
while not os.path.exists(path) or 'ended' not in open(path).read():
    time.sleep(0.1)
import hvd_tf
hvd_tf.init()
"""


@pytest.mark.parametrize(
    ("way", "words", "tracebacks"),
    [
        (RAISES, "ended by the uncaught exception above", 2),
        # hvd_tf knows of no exception before the first use of one of its names.
        (
            f"{sys.executable} -c 'import hvd_tf; 1 / 0'",
            "ended with status 0 while others went on",
            1,
        ),
    ],
)
def test_a_rank_that_ends_well_without_init(way: str, words: str, tracebacks: int) -> None:
    is_first = "[ ${OMPI_COMM_WORLD_RANK-$PMI_RANK} = 0 ]"
    script = f'if {is_first}; then {sys.executable} -c "$0"; else {way}; fi; true'
    result = run_command(2, ["bash", "-c", script, WAITS])
    line = last_line(result)
    assert re.fullmatch(rf"hvdrun: rank 1 \(host {HOST}, pid \d+\) {words}", line), result.text
    assert result.text.count("ZeroDivisionError") == tracebacks and result.returncode == 1


# Its program is over, and the shell goes on. With a run of it again, in the second case.
WRAPPED = f"{sys.executable} {PROGRAM} hvd "


@pytest.mark.parametrize(
    "script",
    [
        f"{WRAPPED} killed; sleep 1000",
        pytest.param(f"while ! {WRAPPED} segfault; do true; done", marks=in_full),
    ],
)
def test_a_killed_program_whose_script_goes_on(script: str) -> None:
    result = run_command(2, ["bash", "-c", script])
    line = last_line(result)
    words = (
        "was killed by a signal, or left by os._exit, while its script went on; the job was ended"
    )
    assert re.fullmatch(rf"hvdrun: rank 1 \(host {HOST}, pid \d+\) {words}", line), result.text
    assert result.returncode == 1, result.text


def test_programs_that_leave_without_a_word_and_scripts_that_go_on() -> None:
    script = f"{WRAPPED} all-exit-0; sleep 8; echo goes on"
    result = run_command(2, ["bash", "-c", script])
    assert result.text.count("goes on\n") == 2, result.text  # nobody has ended them
    words = "was killed by a signal, or left by os._exit, while its script went on and ended with"
    assert f") {words} status 0" in last_line(result), result.text  # MPI minds
