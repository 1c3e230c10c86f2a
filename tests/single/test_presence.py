# SPDX-License-Identifier: Apache-2.0
"""How the launcher sees that a rank's process has gone which mpirun has not started itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mpi import ROOT

from hvd_tf._internal.launcher import last_words
from hvd_tf._internal.launcher.killed import LIMIT_S, Killed
from hvd_tf._internal.launcher.rank_notices import Notice, RankNotices, RankState

# Arguments: hvd_tf's directory, and what the rank does once it is present.
RANK = """
import os, subprocess, sys, types
package = types.ModuleType("hvd_tf")
package.__path__ = [sys.argv[1]]
sys.modules["hvd_tf"] = package
from hvd_tf._internal import presence
presence.begin(1)
exec(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def rank(directory: Path, does: str = "") -> Iterator[subprocess.Popen[str]]:
    """A rank that has done this, and that ends when the `with` is left."""
    command = [sys.executable, "-c", RANK, str(ROOT / "hvd_tf"), does]
    env = {**os.environ, "HVD_JOB_DIR": str(directory), "HVD_NOTICE": "word"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=env, text=True, **pipes) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


def state_of(directory: Path) -> RankState:
    return RankNotices(directory).states().get(1, RankState())


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    with rank(tmp_path) as process:
        state = state_of(tmp_path)
        assert state.present and state.present.pid == process.pid and not state.gone
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # nobody has collected it
        state = state_of(tmp_path)
        assert state.gone and state.gone.pid == process.pid and not state.present
    assert state_of(tmp_path).gone


@pytest.mark.parametrize(
    "child",
    ["os.fork() or (sys.stdin.read(), os._exit(0))", "subprocess.Popen('cat', close_fds=False)"],
)
def test_a_child_does_not_stand_for_a_killed_rank(tmp_path: Path, child: str) -> None:
    with rank(tmp_path, child) as process:
        process.kill()
        process.wait()
        assert state_of(tmp_path).gone


@pytest.mark.parametrize("does", ["presence.end()", "presence.begin(1); presence.end()"])
def test_a_rank_that_has_left(tmp_path: Path, does: str) -> None:
    with rank(tmp_path, does) as process:
        process.kill()
        process.wait()
    assert state_of(tmp_path) == RankState() and list(tmp_path.iterdir()) == []


def test_a_rank_that_begins_again(tmp_path: Path) -> None:
    with rank(tmp_path, "presence.begin(1)"):
        assert state_of(tmp_path).present


def test_a_forked_child_takes_nothing_away(tmp_path: Path) -> None:
    with rank(tmp_path, "os.fork() or (presence.end(), os._exit(0)); os.wait()"):
        assert state_of(tmp_path).present


def test_a_rank_that_becomes_another_program(tmp_path: Path) -> None:
    becomes = "print('ready', flush=True); os.execvp('cat', ['cat'])"
    with rank(tmp_path, becomes) as process:
        deadline_s = time.monotonic() + 60
        while Path(f"/proc/{process.pid}/comm").read_text() != "cat\n":
            assert time.monotonic() < deadline_s
        state = state_of(tmp_path)
        assert state.present and not state.gone


def test_without_a_launcher_there_is_no_file(tmp_path: Path) -> None:
    with rank(tmp_path, "presence.end(); os.environ.pop('HVD_NOTICE'); presence.begin(1)"):
        assert list(tmp_path.iterdir()) == []


def present(number: int, at_ns: int) -> RankState:
    return RankState(present=Notice("present", number, "a", 10 + number, at_ns))


def gone(number: int, at_ns: int) -> RankState:
    return RankState(gone=Notice("present", number, "a", 10 + number, at_ns))


def ended(number: int) -> RankState:
    return RankState(process=Notice("ended", number, "a", number, 9), gone=gone(number, 1).gone)


# Seconds and what is seen then. The last look is to end the job, or not.
@pytest.mark.parametrize(
    ("looks", "ends"),
    [
        ([(0, [present(0, 1), gone(1, 1)]), (LIMIT_S, [present(0, 1), gone(1, 1)])], True),
        ([(0, [present(0, 1), gone(1, 1)]), (LIMIT_S / 2, [present(0, 1), gone(1, 1)])], False),
        # Its script has run it again: the other one still misses the first.
        ([(0, [present(0, 1), gone(1, 1)]), (LIMIT_S, [present(0, 1), present(1, 2)])], True),
        # All have ended in that way, or have left, and the scripts go on.
        ([(0, [present(0, 1), gone(1, 1)]), (LIMIT_S, [gone(0, 1), gone(1, 1)])], False),
        ([(0, [present(0, 1), gone(1, 1)]), (LIMIT_S, [RankState(), gone(1, 1)])], False),
        # Its script has ended too, which mpirun sees.
        ([(0, [present(0, 1), gone(1, 1)]), (LIMIT_S, [present(0, 1), ended(1)])], False),
        # All have begun again, one later than the other.
        (
            [(0, [gone(0, 1), gone(1, 1)]), (LIMIT_S, [present(0, 9), gone(1, 1)])]
            + [(2 * LIMIT_S, [present(0, 9), gone(1, 1)])],
            False,
        ),
        # After that it is killed again, and again.
        (
            [(0, [gone(0, 1), gone(1, 1)]), (5, [present(0, 9), present(1, 9)])]
            + [(6, [present(0, 9), gone(1, 9)]), (9, [present(0, 9), gone(1, 10**10)])]
            + [(6 + LIMIT_S, [present(0, 9), present(1, 10**11)])],
            True,
        ),
        (
            [(0, [present(0, 1), gone(1, 1)]), (1, [gone(0, 1), gone(1, 1)])]
            + [(LIMIT_S + 1, [present(0, 10**10), gone(1, 1)])],
            False,
        ),
    ],
)
def test_when_a_job_is_ended(
    tmp_path: Path, looks: list[tuple[float, list[RankState]]], ends: bool
) -> None:
    killed = Killed(RankNotices(tmp_path))
    goes_on = True
    for at_s, states in looks:
        assert goes_on
        goes_on = killed._look(dict(enumerate(states)), at_s, 2 + int(at_s * 1e9))
    assert goes_on != ends
    words = "rank 1 (host a, pid 11) was killed by a signal, or left by os._exit, while its script "
    assert killed.words.startswith(words) == ends


def test_the_end_of_a_script_whose_program_was_killed() -> None:
    end = Notice("ended", 1, "a", 7, 20)
    state = RankState(process=end, gone=Notice("present", 1, "a", 8, 10))
    words = last_words.of_end(end, {1: state})
    assert words.startswith("rank 1 (host a, pid 8) was killed by a signal, or left by os._exit, ")
    assert words.endswith(" while its script went on and ended with status 0")
    state.gone = Notice("present", 1, "a", 7, 10)  # there is no script
    assert last_words.of_end(end, {1: state}).endswith(") ended with status 0 while others went on")
