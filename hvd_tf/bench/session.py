# SPDX-License-Identifier: Apache-2.0
"""Runs the jobs: first the yardsticks, then the libraries, which take turns case by case.

The plan of a job, a JSON object:
  ranks, threads, seconds: as in Options.
  module: the library's name. null for the yardsticks.
  sizes_bytes: the sizes of the yardsticks. Each takes one turn.
  cases: those of a library. Each has a Case's fields and its name.
  rounds: the turns for each case.
  search: a further folder where Python looks for the module, or null.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from hvd_tf.bench import jobs, results
from hvd_tf.bench.cases import Case, make_cases, sweep_sizes
from hvd_tf.bench.options import Options
from hvd_tf.bench.units import bytes_text

_OURS = "hvd_tf"


def measure(options: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs all jobs and returns their numbers; see results.collect.

    Args:
      options: what to measure.
      say: a function that is called with what is being done.

    Raises:
      BenchError: a job failed.
    """
    sweep_bytes = sweep_sizes(options.min_bytes, options.max_bytes, options.factor)
    cases = make_cases(options.ranks, options.kinds, sweep_bytes)
    sizes_bytes = sorted({case.size_bytes for case in cases if case.verb == "allreduce"})
    sizes_bytes = sizes_bytes or sweep_bytes
    say("yardsticks")
    yardsticks = _yardsticks(options, sizes_bytes)
    libraries = _libraries(options, cases, say)
    return results.collect(_setting(options), cases, sizes_bytes, libraries, yardsticks)


def _yardsticks(options: Options, sizes_bytes: Sequence[int]) -> dict[str, Any]:
    # The yardsticks run without a library, so that none of its threads disturbs them.
    launch = jobs.Launch("the yardsticks", sys.executable)
    plan = {**_common(options), "module": None, "sizes_bytes": list(sizes_bytes)}
    with jobs.Job(launch, plan, options.limit_s) as job:
        job.wait_until_ready()
        for size_bytes in sizes_bytes:
            job.take_turn(bytes_text(size_bytes))
        return job.finish()


def _libraries(
    options: Options, cases: Sequence[Case], say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    launches = {"ours": jobs.Launch(_OURS, sys.executable)}
    if options.against:
        launches["theirs"] = jobs.Launch(options.against, options.python, options.mpirun)
    with ExitStack() as stack:
        running = {}
        for key, launch in launches.items():
            say(f"starting {launch.name}")
            plan = _plan(options, launch, cases)
            running[key] = stack.enter_context(jobs.Job(launch, plan, options.limit_s))
            running[key].wait_until_ready()
        for number, case in enumerate(cases):
            say(f"case {number + 1} of {len(cases)}: {case.name}")
            for _ in range(options.rounds):
                for job in running.values():
                    job.take_turn(case.name)
        return {key: job.finish() for key, job in running.items()}


def _plan(options: Options, launch: jobs.Launch, cases: Sequence[Case]) -> dict[str, Any]:
    return {
        **_common(options),
        "module": launch.name,
        "search": jobs.search_path(launch),
        "rounds": options.rounds,
        "cases": [{"name": case.name, **asdict(case)} for case in cases],
    }


def _common(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("ranks", "threads", "seconds")}


def _setting(options: Options) -> dict[str, Any]:
    return {
        "ranks": options.ranks,
        "threads": options.threads,
        "seconds": options.seconds,
        "rounds": options.rounds,
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
