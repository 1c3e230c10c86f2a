# SPDX-License-Identifier: Apache-2.0
"""Rank 1 starts programs that call hvd.init: as it is, as jobs of their own, and by spawn."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys

import hvd_tf as hvd

CHILD = "import hvd_tf as hvd; hvd.init(); print('child', hvd.rank(), 'of', hvd.size(), flush=True)"
OF_LAUNCHER = re.compile("(OMPI|PMIX|PMI)_|MPI_LOCAL")


def start(what: str, *before: str, env: dict[str, str] | None = None) -> None:
    command = [*before, sys.executable, "-c", CHILD]
    done = subprocess.run(command, env=env, timeout=100, check=False)
    print(what, "ends with", done.returncode, flush=True)


def main() -> None:
    hvd.allreduce(1.0, name="before")
    if hvd.rank() == 1:
        start("a child")
        own = {name: value for name, value in os.environ.items() if not OF_LAUNCHER.match(name)}
        start("a job of its own", env=own)
        start("hvdrun", sys.executable, "-m", "hvd_tf.launch", "-np", "2")
        # It imports this file again.
        spawned = multiprocessing.get_context("spawn").Process(target=print, args=("never",))
        spawned.start()
        spawned.join(100)
        print("spawned ends with", spawned.exitcode, flush=True)
    hvd.allreduce(1.0, name="after")
    print("done", flush=True)


hvd.init()
if __name__ == "__main__":
    main()
