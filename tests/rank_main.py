# SPDX-License-Identifier: Apache-2.0
"""What `tests/mpi.py` lets each rank start with: its own log, its host, then the real program.

Arguments: the job's directory, the number of ranks on a host (0: as it is), the program.
"""

import os
import resource
import sys
from pathlib import Path


def rank_of(environ: "os._Environ[str]") -> int:
    """The rank that Open MPI or MPICH gave this process."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"):
        if name in environ:
            return int(environ[name])
    raise SystemExit("rank_main.py: not started by mpirun")


def main(directory: Path, ranks_a_host: int, program: "list[str]") -> None:
    rank = rank_of(os.environ)
    # A rank that is killed for hanging prints its stacks. A core file would only fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if ranks_a_host:
        os.environ["HVD_HOST_ID"] = f"host{rank // ranks_a_host}"
    # pytest's tmp_path: each rank has its own, and outside TMPDIR, which must be empty at the end.
    root = directory / f"rank-{rank}"
    root.mkdir()
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(root)
    (directory / f"rank-{rank}.pid").write_text(str(os.getpid()))
    log = os.open(directory / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
