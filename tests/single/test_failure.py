# SPDX-License-Identifier: Apache-2.0
"""What an uncaught exception does on one rank, in a real interpreter with an invented library."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mpi import ROOT

from hvd_tf._internal import launched
from hvd_tf._internal.launcher import rank_main

# `hvd` says what the library answers and what happens in it.
_PROGRAM = f"""
import os, sys, threading, time, types
start = time.monotonic()
package = types.ModuleType("hvd_tf")
package.__path__ = [{str(ROOT / "hvd_tf")!r}]
sys.modules["hvd_tf"] = package
class Library:
    size, rank, peer, failed, text, stuck, launched = 2, 1, -1, 0, b"", False, 0
    def say(self, text):
        os.write(2, f"<{{text}}>\\n".encode())
    def hvd_size(self):
        return self.size
    def hvd_launched_size(self):
        return self.launched
    def hvd_rank(self):
        return self.rank
    def hvd_announce_failure(self, line):
        self.say(f"announced {{line.decode()}}")
    def hvd_first_peer_end(self, failed, text, capacity):
        failed._obj.value = self.failed
        text.value = self.text[:capacity - 1]
        return self.peer
    def hvd_cause_of(self, name, rank, tensor):
        return 0
    def hvd_abort(self, code):
        self.say(f"aborted {{code}} after {{time.monotonic() - start:.1f}} s")
        if self.stuck: time.sleep(1000)
        os._exit(code)
hvd = Library()
native = sys.modules["hvd_tf._internal.native"] = types.ModuleType("native")
native.lib = hvd
native.PEER_LEFT, native.PEER_GIVEN_UP = 0, 2  # of a PeerEndKind, which `failed` is
from hvd_tf._internal import failure
stuck_s, failure._STUCK_EXTRA_S = failure._STUCK_EXTRA_S, 1000  # a slow machine is not stuck
class OpError(Exception):  # as TensorFlow makes it, of the kind and rank of a cause
    node_def = op = None
    error_code = 2
    def __init__(self, text, kind, rank=0):
        super().__init__(text)
        self.experimental_payloads = {{b"hvd_tf/cause": b"%d %d 0 " % (kind, rank)}}
def boom():
    raise ValueError("boom\\nsecond line")
"""
GRACE = "0.3"
SHORT = "<announced ValueError: boom>\n"
TRACEBACK_END = "ValueError: boom\nsecond line\n"
GRAPH_ERROR = (
    "Graph execution error:\n\nDetected at node R defined at (most recent call last):\n"
    '  File "a.py", line 1\n\ncannot read a.csv\nat all\n\t [[{{node R}}]]\n\nOriginal stack trace'
)
NODE_ERROR = (
    "Graph execution error:\n\nDetected at node 'R' defined at (most recent call last):\n"
    "    File \"a.py\", line 1\nNode: 'R'\ncannot read a.csv\n\t [[{{node R}}]]\n"
)
STUCK = "failure._STUCK_EXTRA_S = stuck_s\n"
# Its main thread has a clock that only its own waiting moves, however long all else takes.
CLOCK = """
now_s = 0.0
def sleep(seconds):
    global now_s
    if threading.current_thread() is not threading.main_thread(): return time.sleep(seconds)
    now_s += seconds
    if seconds > 0.1: hvd.say(f"waits {seconds:.2f} s")
clock = {"monotonic": lambda: now_s, "sleep": sleep}
failure.time = types.SimpleNamespace(**{**vars(time), **clock})
"""
PEER = "hvd.peer, hvd.failed, hvd.text = 0, 1, b\"KeyError: 'x'\"\n"


def run(tmp_path: Path, body: str, **env: str) -> tuple[int, str, float]:
    """Exit code, stderr, seconds."""
    script = tmp_path / "script.py"
    script.write_text(_PROGRAM + body)
    launcher = ("OMPI_", "PMIX_", "PMI_", "HVD_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(launcher)}
    begin = time.monotonic()
    result = subprocess.run(
        [sys.executable, str(script)],
        env={**clean, "HVD_ABORT_GRACE_S": GRACE, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return result.returncode, result.stderr, time.monotonic() - begin


def reports(tmp_path: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in (tmp_path / "job").iterdir()]


def test_the_job_ends_after_the_grace_and_the_traceback_is_last(tmp_path: Path) -> None:
    status, err, _ = run(tmp_path, "failure.install(); boom()")
    assert status == 1
    first, announced, rest = err.partition(SHORT)
    assert (first, announced) == ("", SHORT)
    printed, heading, again = rest.partition(f"rank 1 (host {os.uname().nodename}, pid ")
    assert printed.startswith("Traceback") and printed.endswith(TRACEBACK_END)
    assert heading and again.partition("\n")[2].startswith(printed + "<aborted 1 after ")
    assert float(err.rpartition("after ")[2].split()[0]) >= 0.3


def test_the_launcher_gets_the_traceback_instead(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    before = time.time_ns()
    status, err, _ = run(tmp_path, "failure.install(); boom()", HVD_JOB_DIR=str(tmp_path / "job"))
    assert (status, err.count("Traceback"), err.count("failed first")) == (1, 1, 0)
    (report,) = reports(tmp_path)
    assert report["rank"] == 1 and report["host"] == os.uname().nodename
    assert report["ends_job"] is True
    assert before < report["time_ns"] < time.time_ns()  # type: ignore[operator]
    assert report["traceback"] in err
    (file,) = (tmp_path / "job").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_launcher_that_is_gone_gets_nothing(tmp_path: Path) -> None:
    status, err, _ = run(tmp_path, "failure.install(); boom()", HVD_JOB_DIR=str(tmp_path / "gone"))
    assert (status, err.count("failed first")) == (1, 1)


@pytest.mark.parametrize(
    "error",
    [
        # What it says does not matter.
        "raise OpError(\"allreduce: rank 0 (host a) failed: KeyError: 'x'\", 3)",
        'raise OpError("something else", 3)',
        'try: raise OpError("", 1)\nexcept OpError: raise TypeError("another")',
    ],
)
def test_a_consequence_is_one_line(tmp_path: Path, error: str) -> None:
    (tmp_path / "job").mkdir()
    body = PEER + "failure.install()\n" + error
    status, err, _ = run(tmp_path, body, HVD_JOB_DIR=str(tmp_path / "job"))
    line = "hvd_tf: rank 1 ends because rank 0 failed: KeyError: 'x'\n"
    assert status == 1 and err.startswith(line + "<aborted 1 after ")
    assert float(err.rpartition("after ")[2].split()[0]) >= 1.3  # a second for the first to abort
    assert reports(tmp_path) == []


def test_a_peer_may_say_a_little_later_that_it_failed(tmp_path: Path) -> None:
    body = """
def answer(failed, text, capacity, ask=hvd.hvd_first_peer_end):
    if now_s >= 0.3: hvd.peer, hvd.failed, hvd.text = 0, 1, b"KeyError: 'x'"
    return ask(failed, text, capacity)
hvd.hvd_first_peer_end = answer
failure.install(); raise OpError("no", 1)
"""
    status, err, _ = run(tmp_path, CLOCK + body)
    assert status == 1 and err.startswith("hvd_tf: rank 1 ends because rank 0 failed: KeyError")


def test_a_peer_that_never_says_so(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    body = 'failure.install(); raise OpError("no", 1)'
    status, err, _ = run(tmp_path, body, HVD_JOB_DIR=str(tmp_path / "job"))
    assert status == 1 and "<announced OpError: no" in err and "Traceback" in err
    assert [report["blames_peer"] for report in reports(tmp_path)] == [True]


@pytest.mark.parametrize(
    ("error", "extra"),
    [
        ('OpError("x: rank 0 (a) failed: it is silent", 5)', False),
        ('OpError("rank 2 dropped out", 6, 2)', True),
    ],
)
def test_a_peer_that_others_have_given_up(tmp_path: Path, error: str, extra: bool) -> None:
    (tmp_path / "job").mkdir()
    body = 'hvd.peer, hvd.failed, hvd.text = 0, 2, b"it is silent"\n'
    body += CLOCK + f"failure.install(); raise {error}"
    status, err, _ = run(tmp_path, body, HVD_JOB_DIR=str(tmp_path / "job"))
    assert status == 1 and "Traceback" in err and "ends because" not in err
    # The grace and what rank 1 leaves to rank 0: nobody else is waited for.
    assert err.count("<waits ") == 1 and "<waits 0.35 s>" in err
    (report,) = reports(tmp_path)
    assert report["blames_peer"] is True
    # Whoever was the first to tell, the reason is among the words.
    last = str(report["traceback"]).splitlines()[-1]
    assert last.endswith("failed: it is silent") and last in err
    assert last.startswith("hvd_tf: rank 0 failed: ") == extra


def test_the_same_error_on_two_ranks_is_no_consequence(tmp_path: Path) -> None:
    status, err, _ = run(tmp_path, PEER + "failure.install(); {}['x']")
    assert status == 1 and "<announced KeyError: 'x'>" in err and "Traceback" in err


@pytest.mark.parametrize("words", ["boom", "rank 0 (a) failed: no"])
def test_an_error_of_its_own_is_shown_though_a_peer_was_first(tmp_path: Path, words: str) -> None:
    status, err, _ = run(tmp_path, PEER + f"failure.install(); raise ValueError({words!r})")
    assert status == 1 and f"<announced ValueError: {words}>" in err and "Traceback" in err
    assert "failed first" not in err and "ends because" not in err


def test_a_peer_that_left_is_not_one_that_failed(tmp_path: Path) -> None:
    body = 'hvd.peer, hvd.text = 0, b"boom"\nfailure.install(); boom()'
    _, err, _ = run(tmp_path, body)
    assert SHORT in err and "failed first" in err


def test_the_users_hook_is_called(tmp_path: Path) -> None:
    body = 'sys.excepthook = lambda kind, value, trace: hvd.say(f"mine: {value.args}")\n'
    _, err, _ = run(tmp_path, body + "failure.install(); boom()")
    assert err.splitlines()[:2] == [SHORT.strip(), "<mine: ('boom\\nsecond line',)>"]
    _, err, _ = run(tmp_path, body + PEER + "failure.install(); raise OpError('', 3)")
    assert err.startswith("<mine: ") and "ends because rank 0 failed" in err


def test_a_hook_that_was_set_later_may_call_ours(tmp_path: Path) -> None:
    body = """
failure.install()
ours = sys.excepthook
def hook(*error): hvd.say("mine"); ours(*error)
sys.excepthook = hook
"""
    status, err, _ = run(tmp_path, body + "boom()")
    assert status == 1 and err.startswith("<mine>\n" + SHORT)
    status, err, _ = run(tmp_path, body + "failure.uninstall(); boom()")
    assert err.startswith("<mine>\nTraceback") and "<announced" not in err


@pytest.mark.parametrize("what", ["1 / 0", "sys.exit(7)", "time.sleep(1000)"])
def test_a_bad_hook_does_not_stop_it(tmp_path: Path, what: str) -> None:
    body = f"def hook(*_): {what}\nsys.excepthook = hook\nfailure.install(); boom()"
    is_stuck = "sleep" in what
    status, err, _ = run(tmp_path, (STUCK if is_stuck else "") + body)
    assert status == 1 and err.startswith(SHORT)
    assert "failed first:\nTraceback" in err and TRACEBACK_END in err
    if "/" in what:
        assert "Error in sys.excepthook" in err and "ZeroDivisionError" in err


def test_an_abort_that_hangs_does_not_stop_it(tmp_path: Path) -> None:
    status, err, _ = run(tmp_path, STUCK + "hvd.stuck = True; failure.install(); boom()")
    assert status == 1 and "<aborted 1" in err


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("sys.exit(3)", 3, ""),
        ("threading.Thread(target=boom).start()", 0, "ValueError: boom"),
        ("failure.uninstall(); boom()", 1, "ValueError: boom"),
        ("hvd.size = 1; boom()", 1, "ValueError: boom"),
        ("hvd.size = -1; boom()", 1, "ValueError: boom"),  # before init
        ("os.fork() or boom(); os.wait()", 0, "ValueError: boom"),
    ],
)
def test_python_goes_its_way(tmp_path: Path, body: str, status: int, words: str) -> None:
    found, err, _ = run(tmp_path, "failure.install()\n" + body)
    assert found == status and words in err and "<" not in err.replace("<module>", "")


def test_before_init_the_launcher_gets_the_traceback_too(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    env = {"HVD_JOB_DIR": str(tmp_path / "job"), "OMPI_COMM_WORLD_RANK": "3"}
    status, err, _ = run(tmp_path, "hvd.size = -1; failure.install(); boom()", **env)
    (report,) = reports(tmp_path)
    assert (status, report["rank"], report["traceback"]) == (1, 3, err)
    assert report["ends_job"] is False  # this may be a program that a rank has started


@pytest.mark.parametrize(
    ("initialised", "finalised", "size", "aborts"),
    [(1, 0, 2, True), (0, 0, 2, False), (1, 1, 2, False), (1, 0, 1, False)],
)
def test_before_init_mpi4py_does_not_wait(
    tmp_path: Path, initialised: int, finalised: int, size: int, aborts: bool
) -> None:
    body = f"""
mpi = sys.modules["mpi4py.MPI"] = types.ModuleType("mpi4py.MPI")
mpi.Is_initialized = lambda: {initialised}
mpi.Is_finalized = lambda: {finalised}
class World:
    Get_size = lambda self: {size}
    def Abort(self, code): hvd.say("mpi4py aborts"); os._exit(code)
mpi.COMM_WORLD = World()
hvd.size = -1
failure.install(); boom()
"""
    (tmp_path / "job").mkdir()
    status, err, _ = run(tmp_path, body, HVD_JOB_DIR=str(tmp_path / "job"))
    assert (status, "<mpi4py aborts>" in err) == (1, aborts)
    assert [report["ends_job"] for report in reports(tmp_path)] == [aborts]
    assert TRACEBACK_END in err


@pytest.mark.parametrize("ranks", ["-1", "1"])
@pytest.mark.parametrize(("launched", "aborts"), [(0, False), (1, False), (2, True)])
def test_peers_that_wait_in_init_are_ended(
    tmp_path: Path, ranks: str, launched: int, aborts: bool
) -> None:
    body = f"hvd.size, hvd.launched = {ranks}, {launched}\nfailure.install(); boom()"
    status, err, _ = run(tmp_path, body)
    before, aborted, _ = err.partition("<aborted 1")
    assert (status, bool(aborted)) == (1, aborts)
    assert before.endswith(TRACEBACK_END) and "<announced" not in err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("ValueError()", "ValueError"),
        ("ValueError('  \\n first\\nsecond')", "ValueError: first"),
        ("ValueError('x' * 10000)", "ValueError: " + "x" * 488),
        ("ValueError('ü\\udcff')", "ValueError: ü\\udcff"),
        ("Odd()", "Odd: its message cannot be shown"),
        ("SystemError", "SystemError"),
        ("ValueError('{{function_node f_device_/a:0}} no room')", "ValueError: no room"),
        ("ValueError('Graph execution error:')", "ValueError: Graph execution error:"),
        (f"ValueError({GRAPH_ERROR!r})", "ValueError: cannot read a.csv"),
        (f"ValueError({NODE_ERROR!r})", "ValueError: cannot read a.csv"),
    ],
)
def test_the_line_that_peers_see(tmp_path: Path, error: str, line: str) -> None:
    odd = "class Odd(Exception):\n    def __str__(self): raise OSError\n"
    status, err, _ = run(tmp_path, f"{odd}failure.install(); raise {error}")
    assert status == 1 and f"<announced {line}>" in err


@pytest.mark.parametrize("stream", ["None", "open(os.devnull, 'w')", "closed()"])
def test_streams_that_are_not_there(tmp_path: Path, stream: str) -> None:
    body = f"""
def closed():
    file = open(os.devnull, "w"); file.close()
    return file
failure.install()
sys.stdout = sys.stderr = {stream}
boom()
"""
    status, err, _ = run(tmp_path, body)
    assert status == 1 and err.startswith(SHORT) and "failed first" in err


def test_install_twice_is_once(tmp_path: Path) -> None:
    body = "failure.install(); failure.install(); failure.uninstall()\n"
    body += "assert sys.excepthook is sys.__excepthook__; failure.uninstall()"
    assert run(tmp_path, body)[:2] == (0, "")


@pytest.mark.parametrize("grace", ["-1", "x", "nan", "inf", ""])
def test_a_bad_grace_is_refused(tmp_path: Path, grace: str) -> None:
    status, err, _ = run(tmp_path, "failure.install()", HVD_ABORT_GRACE_S=grace)
    assert status == 1
    assert f"ValueError: HVD_ABORT_GRACE_S={grace!r}" in err and "at least 0" in err


@pytest.mark.parametrize(("env", "size"), [({}, 1), ({"PMI_SIZE": "3"}, 3)])
def test_launched_size(env: dict[str, str], size: int) -> None:
    assert launched.size(env) == size


def test_the_launcher_looks_for_ranks_in_the_same_variables() -> None:
    assert rank_main.RANK_VARIABLES == launched.RANK_VARIABLES
