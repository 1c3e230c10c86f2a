# SPDX-License-Identifier: Apache-2.0
"""hvdrun: an mpirun that does not end with its job, and what a job leaves behind."""

from __future__ import annotations

import json
import mmap
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import MPICH, OPEN_MPI, fake_mpirun, left_of, run, start, stop_left

from hvd_tf._internal.launcher.ends import LIMIT_S


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if (tmp_path / "tmp").exists():
        stop_left(tmp_path)


def make_old(path: Path) -> None:
    """It has its age before it has its name: the launcher of another test may look at any time."""
    draft = path.with_name(f"draft-{path.name}")
    draft.touch()
    os.utime(draft, (time.time() - 100, time.time() - 100))
    draft.rename(path)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs /dev/shm")
@pytest.mark.parametrize("status", [0, 1])
def test_segments_that_mpich_leaves_are_removed(job: Path, status: int) -> None:
    name = f"/dev/shm/mpich_shm_test-{os.getpid()}"
    used, old, left = (Path(f"{name}-{kind}") for kind in ("used", "old", "left"))
    make_old(old)
    body = f"time.sleep(0.1); open({str(left)!r}, 'w'); sys.exit({status})"
    fake_mpirun(job, body, MPICH)
    try:
        with used.open("w"):
            os.utime(used, (time.time() + 100, time.time() + 100))  # made while the job runs
            assert run(job, ["-np", "1", "true"]).returncode == status
            assert not left.exists() and old.exists() and used.exists()
    finally:
        for path in (used, old, left):
            path.unlink(missing_ok=True)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs /dev/shm")
def test_segments_that_another_container_uses_stay() -> None:
    """Containers may share /dev/shm, and see nothing of each other's processes."""
    elsewhere = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*elsewhere, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make a namespace")
    code = """
import sys
from hvd_tf._internal.launcher import mpich_segments
mpich_segments.remove_left(float(sys.argv[1]))
"""
    command = [*elsewhere, sys.executable, "-c", code, str(time.time() - 1)]
    path = Path(f"/dev/shm/mpich_shm_test-{os.getpid()}-elsewhere")
    try:
        with path.open("wb+") as file:
            file.truncate(4096)
            mapped = mmap.mmap(file.fileno(), 4096)
        # Its file is closed, as MPICH's are: only the memory is still in use.
        for used in (True, False):
            subprocess.run(command, check=True)
            assert path.exists() == used
            mapped.close()
    finally:
        path.unlink(missing_ok=True)


# An mpirun that hears has all the time that it needs.
PATIENT = "from hvd_tf._internal.launcher import process; process.KILL_AFTER_S = 1000\n"
# An mpirun that ends by itself has all the time that it needs.
ENDLESS = "import math\nfrom hvd_tf._internal.launcher import ends; ends.LIMIT_S = math.inf\n"
# Ends at once what has failed by a look at it. Each look begins with a byte more in a file.
QUICK = """
import os
from hvd_tf._internal.launcher import ends
ends.LIMIT_S, ends._LOOK_EVERY_S = 0.0, 0.01
def check(*args, check=ends.Over.check, has_failed, **more):
    def counted():
        with open(os.environ["FAKE_MARK"] + "/looks", "a") as file: file.write(".")
        return has_failed()
    return check(*args, has_failed=counted, **more)
ends.Over.check = check
"""
# The first of these looks may have begun before. The second is over when the third begins.
LOOKED_AT = """
looks = lambda: os.path.exists(me + "/looks") and os.path.getsize(me + "/looks")
before = looks()
while looks() < before + 3: time.sleep(0.01)
"""
# A rank that runs for so long, the mpirun itself for ever.
CHILD = "subprocess.Popen(['sleep', '{seconds}'])\nwhile True: time.sleep(1)"
# What the MPI of a rank writes when it ends the job, and code of an mpirun that passes it on.
ABORT = "[node1:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,"
ABORTED = f"print('[1,0]<stderr>: ' + {ABORT!r}, file=sys.stderr, flush=True)\n"


@pytest.mark.parametrize("listens", [False, True])
def test_an_mpirun_that_waits_for_nothing_is_ended(job: Path, listens: bool) -> None:
    listen = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(14))\n"
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    # The rank has ended after that time, and its mpirun does not even collect it.
    fake_mpirun(job, (listen if listens else deaf) + CHILD.format(seconds=2))
    begin = time.monotonic()
    result = run(job, ["-np", "1", "true"], change=PATIENT if listens else "")
    assert time.monotonic() - begin > 2 + LIMIT_S
    assert result.returncode == (14 if listens else 1)
    assert result.stderr == "hvdrun: mpirun did not end when the job was over, and was ended\n"
    assert left_of(job) == []


def test_an_mpirun_that_never_was_seen_with_a_rank_is_ended(job: Path) -> None:
    # All ranks had ended before the first look.
    fake_mpirun(job, "subprocess.run(['true'])\nwhile True: time.sleep(1)")
    result = run(job, ["-np", "1", "true"])
    assert result.returncode == 1
    assert result.stderr == "hvdrun: mpirun did not end when the job was over, and was ended\n"


def test_what_holds_the_output_after_its_rank_is_ended_and_the_status_stays(job: Path) -> None:
    body = """
read, write = os.pipe()
rank = (
    "import subprocess as s; free = dict.fromkeys(('stdin', 'stdout', 'stderr'), s.DEVNULL);"
    "s.Popen(['sleep', '1000'], start_new_session=True);"
    "s.Popen(['sleep', '1000'], start_new_session=True, **free)"
)
subprocess.run([sys.executable, "-c", rank], stdout=write)
os.close(write)
os.read(read, 1)  # as mpirun waits for the end of a rank's output
"""
    fake_mpirun(job, body)
    result = run(job, ["-np", "1", "true"])
    assert result.returncode == 0
    assert re.fullmatch(
        r"hvdrun: ended sleep \(pid \d+\), left behind by a rank: .*\n", result.stderr
    )
    # What holds nothing may go on, as after every job that has not failed.
    assert len(left_of(job)) == 1


def test_output_that_comes_after_the_ranks_have_gone_arrives_whole(job: Path) -> None:
    body = """
subprocess.run(["sleep", "1.5"])
for i in range(8):
    print(f"[1,0]<stdout>: {i}", flush=True); time.sleep(1)
"""
    fake_mpirun(job, body)
    result = run(job, ["-np", "1", "true"])
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "".join(f"[0] {i}\n" for i in range(8))


def test_a_reader_may_take_its_time_after_the_ranks_have_gone(job: Path) -> None:
    body = """
subprocess.run(["sleep", "1.5"])
for i in range(3000): print("[1,0]<stdout>: " + "x" * 99)
"""
    fake_mpirun(job, body)
    process = start(job, ["-np", "1", "true"])
    time.sleep(10)  # longer than mpirun has where it is only waited for
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, b"") and len(out) == 3000 * 104


def test_an_mpirun_that_does_not_end_after_an_abort_is_ended(job: Path) -> None:
    fake_mpirun(job, ABORTED + CHILD.format(seconds=1000))
    begin = time.monotonic()
    result = run(job, ["-np", "1", "true"])
    assert time.monotonic() - begin > LIMIT_S
    assert result.returncode == 1
    assert result.stderr.startswith(f"[0] {ABORT}\nhvdrun: mpirun did not end when the job was")
    assert left_of(job) == []


def test_an_mpirun_that_waits_for_a_host_when_a_rank_has_failed_is_ended(job: Path) -> None:
    # As where the network to the other host is down: its ssh does not end either.
    report = {"time_ns": 5, "rank": 0, "host": "a", "pid": 7, "traceback": "E\n"}
    place = 'os.environ["HVD_JOB_DIR"] + "/failure-7"'
    body = f"open({place}, 'w').write({json.dumps(report)!r})\n"
    fake_mpirun(job, body + CHILD.format(seconds=1000))
    begin = time.monotonic()
    result = run(job, ["-np", "1", "true"])
    assert time.monotonic() - begin > LIMIT_S
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        *["hvdrun: rank 0 (host a, pid 7) failed first:", "E"],
        "hvdrun: rank 0 (host a, pid 7) ended by the uncaught exception above",
    ]
    assert left_of(job) == []


def test_what_mpirun_itself_says_meanwhile_gives_it_no_more_time(job: Path) -> None:
    # It waits for a host, and counts the messages that it holds back. A line comes in two pieces.
    body = """
subprocess.Popen(["sleep", "1000"])
for i in range(15):
    for piece in (f"{i} more processes", " have sent help message\\n"):
        os.write(2, piece.encode())
        time.sleep(0.5)
"""
    fake_mpirun(job, ABORTED + body)
    result = run(job, ["-np", "1", "true"])
    assert result.returncode == 1 and "14 more processes" not in result.stderr
    last = "hvdrun: mpirun did not end when the job was over, and was ended"
    assert result.stderr.splitlines()[-1] == last
    assert left_of(job) == []


def told_end(**facts: object) -> str:
    """Code of an mpirun, one of whose ranks tells how it has ended."""
    end = {"what": "ended", "rank": 1, "host": "a", "pid": 7, "time_ns": 5, "told": False, **facts}
    place = f'os.environ["HVD_JOB_DIR"] + "/rank-{end["rank"]}.process"'
    return f"open({place}, 'w').write({json.dumps(end)!r})\n"


def test_mpichs_mpirun_may_not_see_that_a_rank_has_failed(job: Path) -> None:
    # It waits for that rank to come into MPI_Init, where others are.
    fake_mpirun(job, told_end(status=3) + CHILD.format(seconds=1000), MPICH)
    begin = time.monotonic()
    result = run(job, ["-np", "2", "true"])
    assert time.monotonic() - begin > LIMIT_S
    assert result.returncode == 3
    assert result.stderr.splitlines() == [
        "hvdrun: mpirun did not end when the job was over, and was ended",
        "hvdrun: rank 1 (host a, pid 7) ended with status 3",
    ]
    assert left_of(job) == []


@pytest.mark.parametrize(("status", "code"), [(3, 3), (-6, 134)])
def test_mpichs_mpirun_may_return_the_status_of_what_it_has_ended(
    job: Path, status: int, code: int
) -> None:
    words = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Terminated (signal 15)"
    fake_mpirun(job, told_end(status=status) + f"print({words!r}); sys.exit(15)", MPICH)
    assert run(job, ["-np", "2", "true"], change=ENDLESS).returncode == code


def test_mpichs_mpirun_may_return_0_when_it_has_killed_a_rank(job: Path) -> None:
    fake_mpirun(job, told_end(status=0) + told_end(rank=0, what="running"), MPICH)
    result = run(job, ["-np", "2", "true"])
    assert result.returncode == 1
    words = "hvdrun: rank 1 (host a, pid 7) ended with status 0 while others went on\n"
    assert result.stderr == words


def test_mpichs_mpirun_may_return_0_when_a_rank_has_failed(job: Path) -> None:
    fake_mpirun(job, told_end(status=3), MPICH)
    result = run(job, ["-np", "2", "true"], change=ENDLESS)
    assert result.returncode == 3
    assert result.stderr == "hvdrun: rank 1 (host a, pid 7) ended with status 3\n"


@pytest.mark.parametrize("version", [OPEN_MPI, MPICH])
def test_ranks_that_all_end_well(job: Path, version: str) -> None:
    fake_mpirun(job, told_end(rank=0, status=0) + told_end(status=0), version)
    result = run(job, ["-np", "2", "true"])
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("facts", [{"status": 0}, {"status": 3, "told": True}])
def test_mpichs_status_stays_where_no_rank_has_failed(job: Path, facts: dict[str, object]) -> None:
    fake_mpirun(job, told_end(**facts) + LOOKED_AT + "sys.exit(9)", MPICH)
    assert run(job, ["-np", "2", "true"], change=QUICK).returncode == 9


def test_a_program_that_a_rank_has_started_may_fail(job: Path) -> None:
    report = {"time_ns": 5, "rank": 0, "host": "a", "pid": 7, "traceback": "E\n", "ends_job": False}
    place = 'os.environ["HVD_JOB_DIR"] + "/failure-7"'
    body = f"open({place}, 'w').write({json.dumps(report)!r})\n"
    fake_mpirun(job, body + "sys.exit(subprocess.run(['sleep', '9']).returncode)")
    result = run(job, ["-np", "1", "true"])
    assert (result.returncode, result.stderr) == (0, "")


def test_an_mpirun_that_has_something_to_wait_for_goes_on(job: Path) -> None:
    fake_mpirun(job, "sys.exit(subprocess.run(['sleep', '9']).returncode)")
    assert run(job, ["-np", "1", "true"]).returncode == 0
