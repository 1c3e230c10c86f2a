# SPDX-License-Identifier: Apache-2.0
"""One rank of hvd-bench: carries out a plan with a Horovod-compatible module given by its name.

    mpirun -np 2 python rank_main.py PLAN.json RESULTS.json

It is run by path, maybe by the Python of another environment, so it finds its parts beside itself
and knows of the module only what horovod.tensorflow has. Rank 0 writes the results.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(plan_path: str, results_path: str) -> None:
    """Does what the plan says."""
    plan = json.loads(Path(plan_path).read_text())
    results = _Results(Path(results_path))
    if plan["module"] is None:
        import rank_yardsticks

        rank_yardsticks.measure(plan, results)
    else:
        _measure_library(plan, results)
    results.write(done=True)


class _Results:
    """What rank 0 has found so far, in a file that is complete at any time."""

    def __init__(self, path: Path) -> None:
        self.writes = False  # until the rank is known
        self._path = path
        self._content: dict[str, Any] = {"done": False, "facts": {}, "cases": {}}

    def facts(self, **facts: Any) -> None:
        self._content["facts"].update(facts)

    def add(self, name: str, entry: dict[str, Any]) -> None:
        """A case's times, or why it was left out."""
        self._content["cases"][name] = entry
        self.write()

    def write(self, done: bool = False) -> None:
        if not self.writes:
            return
        self._content["done"] = done
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._content))
        os.replace(new, self._path)


def _measure_library(plan: dict[str, Any], results: _Results) -> None:
    search = plan["search"]
    if search and search not in sys.path:
        # hvd-bench was started from a source tree; behind this file's own folder.
        sys.path.insert(1, search)
    import importlib

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
    results.writes = module.rank() == 0
    results.facts(**_facts(module, tf))
    clock = rank_clock.Clock(module, plan["seconds"])
    for number, case in enumerate(plan["cases"]):
        try:
            calls = rank_calls.make(module, case, f"bench{number}")
        except rank_calls.MissingError as missing:
            results.add(case["name"], {"skipped": str(missing)})
            continue
        results.add(case["name"], clock.measure(calls))
        del calls


def _facts(module: Any, tf: Any) -> dict[str, str]:
    version = getattr(module, "__version__", None)
    if version is None:  # horovod.tensorflow leaves it to horovod
        version = getattr(sys.modules[module.__name__.partition(".")[0]], "__version__", "unknown")
    return {
        "module": module.__name__,
        "version": str(version),
        "tensorflow": tf.__version__,
        "python": sys.version.split()[0],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
