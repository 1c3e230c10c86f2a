# SPDX-License-Identifier: Apache-2.0
"""MPI at the end of a process: finalised once, by whoever initialised it, whatever came first."""

from __future__ import annotations

import textwrap

import pytest
from mpi import run_ranks

# Reports MPI's state as late as Python code can: handlers run in the opposite order.
PROGRAM = """
    import atexit

    if {mpi4py_first}:
        from mpi4py import MPI
    import hvd_tf as hvd

    def late():  # registered after hvd_tf was imported, so it runs before hvd_tf's own
        from mpi4py import MPI
        print("finalised", MPI.Is_finalized(), "sum", MPI.COMM_WORLD.allreduce(1), flush=True)

    hvd.init()
    if {mpi4py_later}:
        from mpi4py import MPI
        print("initialised", MPI.Is_initialized(), "thread level", MPI.Query_thread(), flush=True)
    atexit.register(late)
    total = hvd.allreduce(hvd.rank(), op=hvd.Sum).numpy()
    if {shut_down}:
        hvd.shutdown()
        hvd.init()
        total = hvd.allreduce(hvd.rank(), op=hvd.Sum).numpy()
        hvd.shutdown()
    print("total", total, flush=True)
"""


@pytest.mark.parametrize(
    "mpi4py_first, mpi4py_later, shut_down",
    [(True, True, False), (False, True, False), (False, False, True), (True, False, True)],
)
def test_mpi_ends_well(tmp_path, mpi4py_first, mpi4py_later, shut_down):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(PROGRAM).format(
            mpi4py_first=mpi4py_first, mpi4py_later=mpi4py_later, shut_down=shut_down
        )
    )
    result = run_ranks(program, 2)
    assert result.returncode == 0, result.text
    assert not result.timed_out and not result.leftovers, result.text
    for output in result.outputs:
        assert "total 1" in output, result.text
        assert "finalised False sum 2" in output, result.text


def test_a_process_that_never_initialises(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import hvd_tf as hvd\nassert not hvd.is_initialized()\nprint('fine')\n")
    result = run_ranks(program, 1)
    assert result.returncode == 0 and "fine" in result.outputs[0], result.text


ASKING = """
    import os, signal, threading
    import hvd_tf as hvd

    hvd.init()
    is_over = False

    def ask():
        while not is_over:
            hvd.global_process_set.size()

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(hvd.global_process_set.size() - 1)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
    is_over = True
    print("fine")
"""


def test_a_child_that_is_forked_while_threads_ask(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(ASKING))
    result = run_ranks(program, 1)
    assert result.returncode == 0 and "fine" in result.outputs[0], result.text


FORKING = """
    import os, sys
    import hvd_tf as hvd

    hvd.init()
    hvd.allreduce(1.0, name="x")
    child = os.fork()
    if child == 0:
        # What a worker process may ask.
        assert hvd.rank() < hvd.size() == 2
        try:
            hvd.allreduce(1.0, name="x")
        except Exception as error:
            print("child:", type(error).__name__, str(error), flush=True)
        {ending}
    _, status = os.waitpid(child, 0)
    print("status", status, "sum", hvd.allreduce(1, op=hvd.Sum, name="y").numpy(), flush=True)
"""


@pytest.mark.parametrize("ending", ["sys.exit(0)", "hvd.shutdown(); sys.exit(0)"])
def test_a_forked_child_has_no_part_in_the_job(tmp_path, ending):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(FORKING).format(ending=ending))
    result = run_ranks(program, 2)
    assert result.returncode == 0 and not result.timed_out, result.text
    assert not result.leftovers, result.text
    for output in result.outputs:
        assert "status 0 sum 2" in output, result.text
        assert "child: FailedPreconditionError" in output, result.text
        assert "'x': this process was forked from one" in output, result.text
        assert "that had called hvd.init()" in output, result.text
