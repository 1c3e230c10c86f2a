# SPDX-License-Identifier: Apache-2.0
"""One rank of hvd-bench: carries out a plan with a Horovod-compatible module given by its name.

    mpirun -np 2 python rank_main.py DIRECTORY

It is run by path, maybe with the Python of another environment. So it finds its parts beside
itself. It uses only what horovod.tensorflow has.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from rank_files import Files


def main(directory: str) -> None:
    """Carries out the plan."""
    files = Files(directory)
    plan = files.plan()
    if plan["module"] is None:
        import rank_yardsticks

        rank_yardsticks.measure(plan, files)
    else:
        _measure(plan, files)


def _measure(plan: dict[str, Any], files: Files) -> None:
    if plan["search"] and plan["search"] not in sys.path:
        # hvd-bench was started from a source tree. Its folder comes after this file's own.
        sys.path.insert(1, plan["search"])
    import rank_calls
    import rank_clock
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(plan["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(plan["threads"])
    tf.config.set_visible_devices([], "GPU")
    module = importlib.import_module(plan["module"])
    module.init()
    if module.size() != plan["ranks"]:
        raise SystemExit(
            f"{plan['module']} sees {module.size()} rank(s) of {plan['ranks']}: it belongs to "
            "another MPI than the mpirun that started it"
        )
    clock = rank_clock.Clock(module, plan["seconds"])
    files.ready(module.rank() == 0, _facts(module, tf))
    for number, case in enumerate(plan["cases"]):
        calls, entry = None, {}
        for turn in range(plan["rounds"]):
            files.wait_for_turn()
            if turn == 0:
                try:
                    calls = rank_calls.make(module, case, f"bench{number}")
                    clock.start(calls)
                except rank_calls.MissingError as missing:
                    entry = {"skipped": str(missing)}
            files.end_turn({case["name"]: clock.measure(calls) if calls else entry})


def _facts(module: Any, tf: Any) -> dict[str, str]:
    version = getattr(module, "__version__", None)
    if version is None:  # horovod has it, horovod.tensorflow does not
        version = getattr(sys.modules[module.__name__.partition(".")[0]], "__version__", "unknown")
    return {
        "module": module.__name__,
        "version": str(version),
        "tensorflow": tf.__version__,
        "python": sys.version.split()[0],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
