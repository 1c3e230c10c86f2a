# SPDX-License-Identifier: Apache-2.0
"""hvd-bench: the program. The same as `python -m hvd_tf.bench`."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any, NoReturn, Optional

from hvd_tf.bench import jobs, plot, results
from hvd_tf.bench.cases import Case, make_cases, sweep_sizes
from hvd_tf.bench.errors import BenchError
from hvd_tf.bench.options import Options, parse
from hvd_tf.bench.report import report

_OURS = "hvd_tf"
_USAGE_ERROR = 2
# A job's limit: to start, and for each case what it takes beyond the seconds asked for.
_START_S, _CASE_S = 120.0, 15.0


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs hvd-bench.

    Args:
      arguments: the command line after the program's name; sys.argv's by default.

    Returns:
      0, or 2 after an error, of which the last lines of stderr tell.
    """
    # The default would end this process alone; an exception ends its job, too.
    signal.signal(signal.SIGTERM, _stop)
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        numbers = _measure(options)
        # First of all, for it is what took the time.
        print(report(numbers), end="", flush=True)
        _write(options, numbers)
    except (BenchError, OSError) as error:
        print(f"hvd-bench: {error}", file=sys.stderr)
        return _USAGE_ERROR
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _stop(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _measure(options: Options) -> dict[str, Any]:
    """Runs all jobs, the libraries' in turn, and collects what they found."""
    sweep_bytes = sweep_sizes(options.min_bytes, options.max_bytes, options.factor)
    cases = make_cases(options.ranks, options.kinds, sweep_bytes)
    sizes_bytes = sorted({case.size_bytes for case in cases if case.verb == "allreduce"})
    sizes_bytes = sizes_bytes or sweep_bytes
    turns = _turns(options, cases, sizes_bytes)
    limit_s = options.limit_s or _START_S + len(cases) * (_CASE_S + 3 * options.seconds)
    found: dict[str, list[dict[str, Any]]] = {"yardsticks": [], "ours": [], "theirs": []}
    for number in range(options.rounds):
        for key, (launch, plan) in turns.items():
            _say(f"round {number + 1} of {options.rounds}: {launch.name}")
            found[key].append(jobs.run(launch, plan, limit_s))
    return results.collect(_setting(options), cases, sizes_bytes, **found)


def _turns(
    options: Options, cases: Sequence[Case], sizes_bytes: Sequence[int]
) -> dict[str, tuple[jobs.Launch, dict[str, Any]]]:
    """What runs in each round, in this order: how, and the plan of worker/rank_main.py."""
    common = {name: getattr(options, name) for name in ("ranks", "threads", "seconds")}
    # They are without the library, so that none of its threads is in their way.
    plan = {**common, "module": None, "sizes_bytes": list(sizes_bytes)}
    turns = {"yardsticks": (jobs.Launch("the yardsticks", sys.executable), plan)}
    libraries = {"ours": jobs.Launch(_OURS, sys.executable)}
    if options.against:
        libraries["theirs"] = jobs.Launch(options.against, options.python, options.mpirun)
    for key, launch in libraries.items():
        plan = {**common, "module": launch.name, "search": jobs.search_path(launch)}
        plan["cases"] = [{"name": case.name, **asdict(case)} for case in cases]
        turns[key] = (launch, plan)
    return turns


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


def _write(options: Options, numbers: dict[str, Any]) -> None:
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=1) + "\n")
    if options.plot:
        plot.plot(numbers, options.plot)


def _say(text: str) -> None:
    print(f"hvd-bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
