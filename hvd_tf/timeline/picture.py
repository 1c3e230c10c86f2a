# SPDX-License-Identifier: Apache-2.0
"""The picture: where the time of each step goes, and how late each rank is."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from hvd_tf.timeline.errors import TimelineError
from hvd_tf.timeline.split import PARTS, Step

_COLOURS = ("C1", "C3", "C0", "C2", "0.85")
# More would be thinner than a line. Of more steps, equally many each are one bar.
_MOST_BARS = 400
_MOST_RANKS = 16


def missing() -> Optional[str]:
    """What to do where no picture can be drawn. None: one can."""
    if importlib.util.find_spec("matplotlib") is not None:
        return None
    return f"matplotlib is not installed: run '{sys.executable} -m pip install matplotlib'"


def draw(steps: Sequence[Step], path: Path) -> None:
    """Writes the picture as PNG. Needs matplotlib.

    Raises:
      TimelineError: it cannot be written, and no part of it is left.
    """
    import matplotlib

    matplotlib.use("Agg")  # no display is needed
    from matplotlib import pyplot

    figure, (times, late) = pyplot.subplots(2, figsize=(11, 8), sharex=True)
    bars = bars_of(steps)
    numbers = [number for number, _ in bars]
    below = [0.0] * len(bars)
    width = min((b - a for a, b in zip(numbers, numbers[1:])), default=1.0)
    for part, colour in zip(PARTS, _COLOURS):
        heights = [parts[part] for _, parts in bars]
        times.bar(numbers, heights, width, bottom=below, color=colour, label=part)
        below = [bottom + height for bottom, height in zip(below, heights)]
    times.set_ylabel("ms of a step")
    times.legend(loc="upper right")
    for rank in sorted({rank for step in steps for rank in step.lateness_us})[:_MOST_RANKS]:
        points = [
            (step.number, step.lateness_us[rank] / 1e3)
            for step in steps
            if rank in step.lateness_us
        ]
        late.plot(*zip(*points), ".", markersize=3, label=f"rank {rank}")
    late.set_ylabel("ms behind the first rank")
    late.set_xlabel("step")
    late.legend(loc="upper right", ncols=2)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120, bbox_inches="tight")
    pyplot.close(figure)
    _write(drawn.getvalue(), path)


def _write(data: bytes, path: Path) -> None:
    is_begun = False
    try:
        with path.open("wb") as file:
            is_begun = True
            file.write(data)
    except OSError as error:
        if is_begun and path.is_file():  # a part of a picture, and not a device
            path.unlink()
        raise TimelineError(
            f"the picture {path} cannot be written ({error.strerror}): name another place by "
            "--picture"
        ) from None


def bars_of(steps: Sequence[Step]) -> list[tuple[float, dict[str, float]]]:
    """For each bar, the number of its middle step and the mean ms of each of PARTS."""
    together = -(-len(steps) // _MOST_BARS)
    bars = []
    for first in range(0, len(steps), max(together, 1)):
        some = steps[first : first + together]
        scale = 1e3 * len(some)
        parts = {part: sum(step.parts_us[part] for step in some) / scale for part in PARTS}
        bars.append((sum(step.number for step in some) / len(some), parts))
    return bars
