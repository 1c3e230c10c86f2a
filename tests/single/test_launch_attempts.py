# SPDX-License-Identifier: Apache-2.0
"""hvdrun --restarts, --start-timeout, --timestamp and --output-filename."""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import (
    LIMIT_BEGINS,
    MPICH,
    OPEN_MPI,
    facts,
    fake_mpirun,
    left_of,
    run,
    start,
    stop_left,
)

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4} "
# Fails until its directory has as many files as it is started with.
FAIL_TWICE = """
attempts = os.path.join(me, "attempts"); os.makedirs(attempts, exist_ok=True)
number = os.environ["HVD_RESTART"]
open(os.path.join(attempts, number), "w").write(os.environ["HVD_JOB_DIR"])
print(f"[1,0]<stdout>: attempt {number}", flush=True)
sys.exit(0 if number == "2" else 7)
"""
STARTED = """
for rank in ({ranks}):
    notice = {{"what": "started", "rank": rank, "host": "a", "pid": 7, "time_ns": 5}}
    with open(os.path.join(os.environ["HVD_JOB_DIR"], f"rank-{{rank}}.started"), "w") as file:
        json.dump(notice, file)
"""
SLEEP = "print('ready', flush=True); time.sleep(1000)"
KNOWN = LIMIT_BEGINS.format(condition="len(self._notices.states()) == {ranks}")
LATE = 124


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if (tmp_path / "tmp").exists():
        stop_left(tmp_path)


# --- Restarts -----------------------------------------------------------------


@pytest.mark.parametrize(("restarts", "code", "attempts"), [(0, 7, 1), (1, 7, 2), (2, 0, 3)])
def test_a_failed_job_is_started_again(job: Path, restarts: int, code: int, attempts: int) -> None:
    fake_mpirun(job, FAIL_TWICE)
    result = run(job, ["-np", "1", "--restarts", str(restarts), "true"])
    assert result.returncode == code
    assert result.stdout.splitlines() == [f"[0] attempt {i}" for i in range(attempts)]
    said = "hvdrun: the job ended with status 7; starting it again (restart {} of {})"
    assert result.stderr.splitlines() == [said.format(i, restarts) for i in range(1, attempts)]
    places = {path.read_text() for path in (job / "attempts").iterdir()}
    assert len(places) == attempts  # nothing of one start is in the way of the next
    assert left_of(job) == []


GONE = (
    "hvdrun: the directory in which hvdrun was started has been removed, and no rank can start in "
    "it: go to one that is there (cd), even if there is a new one of that name\n"
)


def test_a_job_whose_directory_is_gone_is_not_started_again(job: Path) -> None:
    fake_mpirun(job, "import shutil; shutil.rmtree(os.getcwd()); print(); sys.exit(5)")
    (job / "here").mkdir()
    arguments = ["-np", "1", "--restarts", "3", "true"]
    with start(job, arguments, cwd=job / "here") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 5, said
    assert said.decode() == GONE.replace(
        ": the directory", ": the job ended with status 5, and is not started again: the directory"
    )
    assert left_of(job) == []


def test_a_directory_that_is_gone_at_the_start(job: Path) -> None:
    fake_mpirun(job, "note()")
    (job / "here").mkdir()
    change = f"import os; os.rmdir({str(job / 'here')!r})\n"
    with start(job, ["-np", "1", "true"], cwd=job / "here", change=change) as process:
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said.decode()) == (2, GONE)
    assert not (job / "facts").exists() and left_of(job) == []


def test_what_a_failed_start_has_left_is_gone_before_the_next(job: Path) -> None:
    body = """
mark = b"HVD_JOB_DIR=/"
def others():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try: text = open(f"/proc/{pid}/environ", "rb").read()
        except OSError: continue
        if mark in text and me.encode() in text and int(pid) != os.getpid(): yield pid
if os.environ["HVD_RESTART"] == "1": note(others=list(others())); sys.exit(0)
if os.fork() == 0: os.setsid(); time.sleep(1000)
sys.exit(1)
"""
    fake_mpirun(job, body)
    assert run(job, ["-np", "1", "--restarts", "1", "true"]).returncode == 0
    assert facts(job)["others"] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_the_user_stops_is_not_started_again(job: Path, number: int) -> None:
    fake_mpirun(job, SLEEP)
    process = start(job, ["-np", "1", "--restarts", "3", "true"])
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert errors.decode().endswith(f"hvdrun: stopped by {signal.Signals(number).name}\n")
    assert b"again" not in errors


def test_an_error_of_the_user_is_not_tried_again(job: Path) -> None:
    fake_mpirun(job, "note()")
    result = run(job, ["-np", "1", "--restarts", "3", "no-such-program"])
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("options", [[], ["--restarts", "1"]])
def test_where_no_temporary_file_can_be_written(job: Path, options: list[str]) -> None:
    fake_mpirun(job, "note()")
    nothing = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))}
    process = start(job, ["-np", "1", *options, "true"], **nothing)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2 and errors.count(b"\n") == 1, errors
    assert errors.startswith(b"hvdrun: cannot write temporary files (")
    assert b"set TMPDIR to a directory" in errors
    assert not (job / "facts").exists()


@pytest.mark.parametrize("version", [OPEN_MPI, MPICH])
def test_descriptors_do_not_add_up(job: Path, version: str) -> None:
    count = f"""
import os
from hvd_tf._internal.launcher.attempt import Attempt
def run_and_count(self, run=Attempt.run):
    outcome = run(self)
    with open({str(job / "counts")!r}, "a") as file:
        print(len(os.listdir("/proc/self/fd")), file=file)
    return outcome
Attempt.run = run_and_count
"""
    fake_mpirun(job, "sys.exit(1)", version)
    run(job, ["-np", "2", "--restarts", "3", "true"], change=count)
    counts = (job / "counts").read_text().split()
    assert len(counts) == 4 and len(set(counts)) == 1


# --- The start's limit -----------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "known", "words"),
    [
        (
            "0, 2",
            2,
            "rank 1 of 3 has not called hvd.init() 0.5 s after the start (--start-timeout)",
        ),
        ("1,", 1, "ranks 0, 2 of 3 have not called hvd.init() 0.5 s after"),
        ("", 0, "ranks 0, 1, 2 of 3 have not called hvd.init() 0.5 s after"),
    ],
)
def test_ranks_that_do_not_start_are_named(job: Path, ranks: str, known: int, words: str) -> None:
    fake_mpirun(job, STARTED.format(ranks=ranks) + SLEEP)
    options = ["-np", "3", "--start-timeout", "0.5"]
    result = run(job, [*options, "true"], change=KNOWN.format(ranks=known))
    assert result.returncode == LATE and words in result.stderr
    assert left_of(job) == []


def test_a_late_start_counts_as_a_failure(job: Path) -> None:
    fake_mpirun(job, SLEEP)
    result = run(job, ["-np", "1", "--start-timeout", "0.5", "--restarts", "1", "true"])
    late, again, late_again = result.stderr.splitlines()
    assert result.returncode == LATE
    assert f"the job ended with status {LATE}; starting it again (restart 1 of 1)" in again
    assert "has not called hvd.init() 0.5 s after" in late and late_again == late


def test_a_job_whose_ranks_have_all_started_goes_on(job: Path) -> None:
    fake_mpirun(job, STARTED.format(ranks="0, 1") + "time.sleep(1.5); sys.exit(3)")
    options = ["-np", "2", "--start-timeout", "0.5"]
    assert run(job, [*options, "true"], change=KNOWN.format(ranks=2)).returncode == 3


def test_notices_of_ranks_elsewhere_are_read_and_not_shown(job: Path) -> None:
    body = """
def mark(rank):
    notice = {"what": "started", "rank": rank, "host": "a", "pid": 7, "time_ns": 5}
    return "\\x1e" + os.environ["HVD_NOTICE"] + " " + json.dumps(notice) + "\\n"
sys.stderr.write("[1,0]<stderr>: before\\n[1,0]<stderr>: " + mark(0))
sys.stderr.write("[1,1]<stderr>: half" + mark(1) + "[1,1]<stderr>: after\\n"); sys.stderr.flush()
time.sleep(1.5)
"""
    fake_mpirun(job, body)
    options = ["-np", "2", "-H", "node1:2", "--start-timeout", "0.5"]
    result = run(job, [*options, "true"], change=KNOWN.format(ranks=2))
    assert (result.returncode, result.stderr) == (0, "[0] before\n[1] half\n[1] after\n")


def test_the_limit_does_not_outlast_a_stop(job: Path) -> None:
    fake_mpirun(job, SLEEP)
    process = start(job, ["-np", "1", "--start-timeout", "1000", "true"])
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    process.communicate()


@pytest.mark.parametrize("option", ["--start-timeout=0", "--start-timeout=soon", "--restarts=-1"])
def test_numbers_that_are_none(job: Path, option: str) -> None:
    fake_mpirun(job, "note()")
    result = run(job, ["-np", "1", option, "true"])
    assert result.returncode == 2 and repr(option.partition("=")[2]) in result.stderr


# --- Output -------------------------------------------------------------------

WRITE = r"""
sys.stdout.write("[1,0]<stdout>: a\n[1,11]<stdout>: b\n[1,11]<stdout>: \nits own\n")
sys.stderr.write("[1,1]<stderr>: c")
"""


def test_every_line_has_its_time(job: Path) -> None:
    fake_mpirun(job, WRITE)
    begin = time.time()
    result = run(job, ["-np", "12", "--timestamp", "true"], {"TZ": "UTC"})
    lines = result.stdout.splitlines() + result.stderr.splitlines()
    assert all(re.match(STAMP, line) for line in lines), lines
    texts = [re.sub(STAMP, "", line) for line in lines]
    assert texts == ["[0] a", "[11] b", "[11] ", "its own", "[1] c"]
    day = time.strftime("%Y-%m-%dT", time.gmtime(begin)), time.strftime("%Y-%m-%dT", time.gmtime())
    assert lines[0].startswith(day)


@pytest.mark.parametrize("version", ["mpirun (Open MPI) 5.0.11", MPICH])
def test_each_rank_has_files(job: Path, version: str) -> None:
    of_mpich = """
for stream, rank, text in (("out", 0, "a\\n"), ("out", 11, "b\\n\\n"), ("err", 1, "c")):
    pattern = sys.argv[sys.argv.index(f"-{stream}file-pattern") + 1]
    open(pattern.replace("%r", str(rank)), "w").write(text)
"""
    fake_mpirun(job, of_mpich if version == MPICH else WRITE, version)
    place = job / "logs" / "here"
    (place / "rank.00").mkdir(parents=True)
    (place / "rank.00" / "stdout").write_text("of an earlier job\n")
    result = run(job, ["-np", "12", "--output-filename", str(place), "true"])
    assert result.returncode == 0 and "[0] a\n" in result.stdout
    assert len(list(place.iterdir())) == 12
    assert (place / "rank.00" / "stdout").read_text() == "a\n"
    assert (place / "rank.11" / "stdout").read_text() == "b\n\n"
    assert (place / "rank.01" / "stderr").read_text() == "c\n"
    assert (place / "rank.01" / "stdout").read_text() == ""


def test_files_go_on_over_restarts(job: Path) -> None:
    fake_mpirun(job, FAIL_TWICE)
    options = ["--restarts", "2", "--output-filename", str(job / "logs")]
    run(job, ["-np", "1", *options, "true"])
    text = (job / "logs" / "rank.0" / "stdout").read_text()
    assert text == "attempt 0\nattempt 1\nattempt 2\n"


def test_files_that_cannot_be_written(job: Path) -> None:
    fake_mpirun(job, "note()")
    (job / "file").touch()
    result = run(job, ["-np", "1", "--output-filename", str(job / "file"), "true"])
    assert result.returncode == 2 and f"--output-filename {job / 'file'}" in result.stderr
    assert not (job / "facts").exists() and left_of(job) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_does_not_end_the_job(job: Path) -> None:
    fake_mpirun(job, WRITE + "sys.stdout.flush(); time.sleep(0.5); print('[1,0]<stdout>: more')")
    place = job / "logs" / "rank.00"
    place.mkdir(parents=True)
    (place / "stdout").symlink_to("/dev/full")
    result = run(job, ["-np", "12", "--output-filename", str(job / "logs"), "true"])
    assert result.returncode == 0 and "[0] more\n" in result.stdout
    said = "hvdrun: stdout of rank 0 is kept no further: No space left on device\n"
    assert result.stderr.count(said) == 1
    assert (job / "logs" / "rank.11" / "stdout").read_text() == "b\n\n"
