# SPDX-License-Identifier: Apache-2.0
"""hvd-bench: the program. The same as `python -m hvd_tf.bench`."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Optional

from hvd_tf.bench import plot, session
from hvd_tf.bench.errors import BenchError
from hvd_tf.bench.options import Options, parse
from hvd_tf.bench.report import report

_USAGE_ERROR = 2


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs hvd-bench.

    Args:
      arguments: the command line after the program's name; sys.argv's by default.

    Returns:
      0, or 2 after an error. The last lines of stderr have the error.
    """
    # The default would end this process alone. An exception ends its jobs too.
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup ignores it
        signal.signal(signal.SIGHUP, _stop)
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        numbers = session.measure(options, _say)
        # It is written first, because the measurement took long.
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


def _write(options: Options, numbers: dict[str, Any]) -> None:
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=1) + "\n")
    if options.plot:
        plot.plot(numbers, options.plot)


def _say(text: str) -> None:
    print(f"hvd-bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
