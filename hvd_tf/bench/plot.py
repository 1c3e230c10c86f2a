# SPDX-License-Identifier: Apache-2.0
"""--plot: the bus bandwidth of each sweep by size, with the yardsticks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hvd_tf.bench.units import bytes_text

# Each call has one colour, for both libraries.
_COLOURS = {
    "allreduce": "C0",
    "allgather": "C1",
    "broadcast": "C2",
    "broadcast_in_place": "C3",
    "alltoall": "C4",
    "alltoall_uneven": "C5",
    "reducescatter": "C6",
}
_STYLES = {"ours": "o-", "theirs": "x--"}


def plot(numbers: Mapping[str, Any], path: Path) -> None:
    """Writes the picture of what results.collect returned. Needs matplotlib."""
    import matplotlib

    # This needs no display.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 6))
    for label, points, style, colour in lines(numbers):
        axes.plot(*zip(*points), style, color=colour, label=label, markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda size_bytes, _: bytes_text(int(size_bytes)))
    axes.set_xlabel("size")
    axes.set_ylabel("bus bandwidth in GB/s")
    axes.set_title(f"{numbers['ranks']} ranks, medians")
    axes.grid(True, which="both", alpha=0.3)
    if axes.lines:
        axes.legend()
    figure.savefig(path, format="png", dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def lines(
    numbers: Mapping[str, Any],
) -> Iterator[tuple[str, list[tuple[int, float]], str, str]]:
    """Label, points, style and colour of each line. Points without bandwidth are left out."""
    for call, colour in _COLOURS.items():
        # Only of the sweeps, because fused sets have sizes of their own.
        cases = [c for c in numbers["cases"] if c["call"] == call and c["kind"] == c["verb"]]
        for key, style in _STYLES.items():
            found = [c for c in cases if c.get(key, {}).get("busbw_gb_s")]
            points = [(c["size_bytes"], c[key]["busbw_gb_s"]) for c in found]
            if points:
                module = numbers["libraries"][key]["module"]
                yield f"{call} ({module})", points, style, colour
    for name, words, style in (
        ("memcpy", "memcpy", ":"),
        ("mpi_allreduce", "MPI_Allreduce in place", "-."),
    ):
        entries = [e for e in numbers["yardsticks"][name] if e["busbw_gb_s"]]
        if entries:
            yield words, [(e["size_bytes"], e["busbw_gb_s"]) for e in entries], style, "0.3"
