# SPDX-License-Identifier: Apache-2.0
"""What Open MPI says of a failed job is folded away where hvdrun says it better."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launching import fake_mpirun, run

from hvd_tf._internal.launcher.mpi_words import MpiWords
from hvd_tf._internal.launcher.output import Output, of_rank

EDGE = "-" * 74 + "\n"
NOTICED = (
    f"{EDGE}prterun noticed that process rank 1 with PID 24573 on node vm exited on\n"
    f"signal 9 (Killed).\n{EDGE}"
)
DETECTED = (
    f"{EDGE}mpirun detected that one or more processes exited with non-zero status,\n"
    f"thus causing the job to be terminated. The first process to do so was:\n\n"
    f"   Process name: [x]\n   Exit code:    3\n{EDGE}"
)
OTHER = f"{EDGE}There are not enough slots available in the system\n{EDGE}"
KEY = (1, None)


def folded(text: str, step: int) -> tuple[str, list[str]]:
    """What is shown of a text that comes in pieces of so many lines, and what is folded."""
    words, lines = MpiWords(), text.encode().splitlines(True)
    pieces = [b"".join(lines[i : i + step]) for i in range(0, len(lines), step)]
    shown = b"".join(words.fold(KEY, piece) for piece in pieces) + b"".join(
        text for _, text in words.rest(1)
    )
    return shown.decode(), [block.decode() for block in words.folded]


@pytest.mark.parametrize("step", [1, 2, 100])
@pytest.mark.parametrize(
    ("text", "shown", "blocks"),
    [
        ("a\n" + NOTICED + "b\n", "a\nb\n", [NOTICED]),
        (NOTICED + DETECTED, "", [NOTICED, DETECTED]),
        (NOTICED + "\0\n\n", "\n", [NOTICED]),
        (OTHER, OTHER, []),
        (OTHER + NOTICED, OTHER, [NOTICED]),
        (EDGE + NOTICED, EDGE, [NOTICED]),
        (EDGE, EDGE, []),
        (NOTICED[: -len(EDGE)], NOTICED[: -len(EDGE)], []),
        ("-" * 30 + "\nx\n", "-" * 30 + "\nx\n", []),
    ],
)
def test_blocks(step: int, text: str, shown: str, blocks: list[str]) -> None:
    assert folded(text, step) == (shown, blocks)


def test_each_rank_has_blocks_of_its_own() -> None:
    words = MpiWords()
    assert words.fold((1, 0), EDGE.encode()) == b""
    assert words.fold((1, 1), b"MPI_ABORT was invoked on rank 1\n") != b""
    assert words.fold((1, 0), b"MPI_ABORT was invoked on rank 0\n") == b""
    assert words.rest(1) != []


def failing(status: int) -> str:
    return f"sys.stderr.write({NOTICED!r}); sys.stderr.flush(); sys.exit({status})"


def test_hvdrun_says_it(tmp_path: Path) -> None:
    body = "codes = run_ranks(1); " + failing(3)
    fake_mpirun(tmp_path, body)
    result = run(tmp_path, ["-np", "1", "sh", "-c", "exit 3"])
    assert "prterun noticed" not in result.stderr
    assert "hvdrun: rank 0" in result.stderr and "ended with status 3" in result.stderr


def test_verbose_shows_all(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, "codes = run_ranks(1); " + failing(3))
    assert NOTICED in run(tmp_path, ["-np", "1", "--verbose", "sh", "-c", "exit 3"]).stderr


def test_it_is_shown_where_hvdrun_has_nothing_to_say(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, failing(3))  # no rank has told of its end
    assert run(tmp_path, ["-np", "1", "true"]).stderr == NOTICED


def test_what_was_held_back_is_shown_as_its_ranks(capfd: pytest.CaptureFixture[str]) -> None:
    source, sink = os.pipe()
    os.write(sink, EDGE.encode())
    os.close(sink)
    output = Output(False, None, None, MpiWords())
    output.add(source, 1, of_rank(1), own=True)
    output.start()
    output.finish(lambda: b"")
    while not output.finished(timeout_s=0.05):
        pass
    output.close()
    assert capfd.readouterr().out == "[1] " + EDGE
