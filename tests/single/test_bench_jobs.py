# SPDX-License-Identifier: Apache-2.0
"""hvd-bench: how it starts and ends the ranks, with an mpirun that a test has written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from launching import wait_until_gone
from mpi import PACKAGE

from hvd_tf.bench import jobs
from hvd_tf.bench.errors import BenchError

WORKER = PACKAGE / "bench" / "worker"


def test_a_job_that_fails_says_what_it_said(tmp_path: Path) -> None:
    launch = other_launch(tmp_path, "print('no such module'); raise SystemExit(3)")
    with pytest.raises(BenchError, match="(?s)m ended with status 3 in its start.*no such module"):
        start(launch)


def test_a_job_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_END_S", 0.2)
    body = f"""
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
open({str(tmp_path / "pid")!r}, "w").write(f"{{child.pid}}\\n")
time.sleep(600)"""
    launch, pid = other_launch(tmp_path, body), tmp_path / "pid"
    words = r"m took more than 0.5 s for its start: .* --limit"
    with jobs.Job(launch, {"ranks": 2}, limit_s=0.5) as job:
        deadline_s = time.monotonic() + 60
        while not (pid.exists() and pid.read_text().endswith("\n")):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        with pytest.raises(BenchError, match=words):
            job.wait_until_ready()
    wait_until_gone([int(pid.read_text())])  # the kernel ends what is killed in its own time


def test_a_killed_bench_leaves_nothing_behind(tmp_path: Path) -> None:
    """Not even ranks that it had stopped."""
    body = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    launch = other_launch(tmp_path, body)
    program = f"""
import time
from hvd_tf.bench import jobs
job = jobs.Job(jobs.{launch!r}, {{"ranks": 2}}, limit_s=60)
print(job._process.pid, job._directory, flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, directory = process.stdout.readline().split()
        process.kill()
    wait_until_gone([int(pid)])
    deadline_s = time.monotonic() + 60
    while Path(directory).exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_job_ends_after_a_signal_within_a_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own lock of the process stays held then, so nobody can wait for its end."""
    monkeypatch.setattr(jobs, "_END_S", 0.2)
    job = jobs.Job(other_launch(tmp_path, "import time; time.sleep(600)"), {"ranks": 2}, limit_s=60)
    lock = getattr(job._process, "_waitpid_lock")  # noqa: B009 - not in the stubs
    lock.acquire()
    end = threading.Thread(target=job.__exit__, args=(None, None, None), daemon=True)
    end.start()
    end.join(60)
    assert not end.is_alive()
    lock.release()
    assert job._process.wait(60) == -signal.SIGTERM


def test_mpirun_of_no_known_family(tmp_path: Path) -> None:
    mpirun = program(tmp_path / "mpirun")
    with pytest.raises(
        BenchError, match="neither Open MPI nor MPICH nor Intel MPI: name another one"
    ):
        start(jobs.Launch("m", sys.executable, str(mpirun)))


def test_other_python_gets_neither_our_modules_nor_our_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    note = f"import json; json.dump(dict(os.environ), open({str(tmp_path / 'env')!r}, 'w'))"
    launch = other_launch(tmp_path, f"import os\n{note}\nraise SystemExit(1)")
    with pytest.raises(BenchError):
        start(launch)
    env = json.loads((tmp_path / "env").read_text())
    assert "PYTHONPATH" not in env
    assert env["PATH"].split(os.pathsep)[0] == str(Path(launch.python).parent)
    assert env["OMPI_MCA_osc"] == os.environ.get("OMPI_MCA_osc", "^ucx")
    assert jobs.search_path(launch) is None
    assert jobs.search_path(jobs.Launch("hvd_tf", sys.executable)) == str(PACKAGE.parent)


def start(launch: jobs.Launch) -> None:
    with jobs.Job(launch, {"ranks": 2}, limit_s=60) as job:
        job.wait_until_ready()


def other_launch(directory: Path, body: str) -> jobs.Launch:
    """With an mpirun that does this."""
    mpirun = directory / "mpirun"
    version = "if sys.argv[1:] == ['--version']: sys.exit(print('mpirun (Open MPI) 5.0.1'))"
    mpirun.write_text(f"#!{sys.executable}\nimport sys\n{version}\n{body}\n")
    mpirun.chmod(0o755)
    return jobs.Launch("m", str(program(directory / "python")), str(mpirun))


def test_yardsticks_without_mpi4py(tmp_path: Path) -> None:
    plan = {"module": None, "ranks": 1, "seconds": 0.001, "sizes_bytes": [4, 4096]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "turns").write_text("2")
    program = f"""
import sys
sys.modules["mpi4py"] = None
sys.path.insert(0, {str(WORKER)!r})
import rank_main
rank_main.main({str(tmp_path)!r})"""
    outer = {name: value for name, value in os.environ.items() if not name.endswith("_RANK")}
    subprocess.run([sys.executable, "-c", program], env=outer, timeout=60, check=True)
    facts, first, last = (json.loads((tmp_path / f"{n}.json").read_text()) for n in range(3))
    assert facts["mpi4py"].startswith("no MPI_Allreduce: ")
    assert list(first) == ["memcpy 4"] and list(last) == ["memcpy 4096"]


def program(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_what_it_has_started(number: signal.Signals) -> None:
    """By an exception, so that its jobs end with it."""
    program = """
import time
from hvd_tf.bench import __main__ as bench
def measure(options, say):
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("ended", flush=True)
bench.session.measure = measure
raise SystemExit(bench.main([]))
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (128 + number, "ended\n")
