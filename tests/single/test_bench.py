# SPDX-License-Identifier: Apache-2.0
"""hvd-bench: its command line, its cases, its numbers and its report. No rank is started."""

from __future__ import annotations

import ast
import copy
import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from mpi import ROOT

from hvd_tf.bench import plot, results
from hvd_tf.bench.bandwidth import FACTORS, algbw_gb_s, busbw_gb_s
from hvd_tf.bench.cases import KINDS, Case, make_cases, sweep_sizes
from hvd_tf.bench.errors import BenchError
from hvd_tf.bench.options import parse
from hvd_tf.bench.report import report
from hvd_tf.bench.resnet50 import gradient_shapes
from hvd_tf.bench.units import bytes_text, parse_bytes, time_text

BENCH = ROOT / "hvd_tf" / "bench"
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None

# --- Units, bandwidths, cases -------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("4", 4), ("64K", 65536), ("256 kB", 262144), ("1MiB", 1 << 20), ("256M", 256 << 20)],
)
def test_sizes_are_read(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "M", "-4", "1.5K", "4 T", "4 Ki", "x4"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size such as 4, 64K or 256M"):
        parse_bytes(text)


def test_sizes_are_written() -> None:
    sizes = [4, 1023, 1024, 1536, 102228128, 1 << 30, 1 << 42]
    assert [bytes_text(size) for size in sizes] == [
        *["4 B", "1023 B", "1 KiB", "1.5 KiB", "97.5 MiB", "1 GiB", "4096 GiB"],
    ]


def test_times_are_written() -> None:
    times = [0.0, 4.6e-7, 1.234e-6, 12.34e-6, 123.4e-6, 0.9999e-3, 1.234e-2, 1.5, 1234.0, -2e-6]
    assert [time_text(time_s) for time_s in times] == [
        *["0.00 us", "0.46 us", "1.23 us", "12.3 us", "123 us", "1.00 ms", "12.3 ms"],
        *["1.50 s", "1234 s", "-2.00 us"],
    ]


def test_bandwidths() -> None:
    assert algbw_gb_s(2_000_000_000, 0.5) == pytest.approx(4.0)
    expected = {"allreduce": 1.5, "allgather": 0.75, "broadcast": 1.0}
    expected.update(reducescatter=0.75, alltoall=0.75, barrier=0.0)
    found = {verb: busbw_gb_s(verb, 4, 1_000_000_000, 1.0) for verb in FACTORS}
    assert found == pytest.approx(expected)
    assert busbw_gb_s("allreduce", 1, 4, 1.0) == 0.0


def test_shapes_of_resnet50() -> None:
    shapes = gradient_shapes()
    assert len(shapes) == 161
    assert sum(map(math.prod, shapes)) == 25_557_032
    assert shapes[0] == (7, 7, 3, 64) and shapes[-2:] == [(2048, 1000), (1000,)]


def test_default_sizes() -> None:
    sizes = sweep_sizes(4, 256 << 20, 4)
    assert (sizes[0], sizes[-1], len(sizes)) == (4, 256 << 20, 14)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_cases(ranks: int) -> None:
    cases = make_cases(ranks, KINDS, sweep_sizes(4, 1024, 4))
    assert len({case.name for case in cases}) == len(cases)
    assert {case.kind for case in cases} == set(KINDS)
    for case in cases:
        assert f"{'in' if case.place == 'in' else 'out of'} place" in case.heading
        given = 4 * sum(map(math.prod, case.shapes))
        if case.kind == "allgather":
            assert case.size_bytes == ranks * given
        elif case.kind == "sparse":
            assert case.size_bytes == ranks * (given + 8 * case.shapes[0][0])
        elif case.kind == "barrier":
            assert case.size_bytes == 0
        else:
            assert case.size_bytes == given
        parts = {"alltoall": ranks, "reducescatter": ranks}.get(case.call, 1)
        # The least splits that differ are 1, 2, 3 ... rows.
        least = ranks * (ranks + 1) // 2 if case.call == "alltoall_uneven" else parts
        assert math.prod(case.shapes[0]) >= least and math.prod(case.shapes[0]) % parts == 0
    sets = [(case.label, len(case.shapes)) for case in cases if case.kind == "fused"]
    assert sets == 2 * [("100 x 256 KiB", 100), ("200 x 256 B", 200), ("ResNet-50, 161", 161)]


def test_every_call_has_a_maker() -> None:
    calls = {case.call for case in make_cases(2, KINDS, [4])}
    text = (BENCH / "worker" / "rank_calls.py").read_text()
    (makers,) = (
        node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_MAKERS"
    )
    assert isinstance(makers, ast.Dict)
    assert {key.value for key in makers.keys if isinstance(key, ast.Constant)} == calls


def test_heavy_modules_are_left_to_those_who_need_them() -> None:
    """hvd-bench itself starts without TensorFlow. The ranks' part runs where no hvd_tf is."""
    for path in BENCH.rglob("*.py"):
        text = path.read_text()
        if path.parent.name == "worker":
            assert "from hvd_tf" not in text and "import hvd_tf" not in text.replace(
                "nothing here imports hvd_tf", ""
            )
        else:
            assert "import tensorflow" not in text and "import numpy" not in text


# --- The command line ---------------------------------------------------------


def test_defaults() -> None:
    options = parse([])
    assert (options.ranks, options.kinds, options.rounds) == (2, KINDS, 1)
    assert (options.min_bytes, options.max_bytes, options.threads) == (4, 256 << 20, 1)
    assert options.seconds == 1.0 and options.python == sys.executable


def test_against(tmp_path: Path) -> None:
    python = program(tmp_path / "python")
    mpirun = program(tmp_path / "mpirun")
    options = parse(["--against", "horovod.tensorflow", "--python", str(python)])
    assert (options.against, options.python) == ("horovod.tensorflow", str(python))
    assert (options.mpirun, options.rounds) == (str(mpirun), 3)
    other = program(tmp_path / "other")
    options = parse(["--against=m", f"--python={python}", f"--mpirun={other}", "--rounds=2"])
    assert (options.mpirun, options.rounds) == (str(other), 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-np", "0"], "'0' is not a whole number from 1 upwards"),
        (["--factor", "1"], "'1' is not a whole number from 2 upwards"),
        (["--seconds", "none"], "'none' is not a number of seconds above 0"),
        (["--limit", "-1"], "'-1' is not a number of seconds above 0"),
        (["--max-bytes", "1X"], "'1X' is not a size such as 4, 64K or 256M"),
        (["--min-bytes", "6"], "'6' is not a multiple of 4 bytes"),
        (["--min-bytes", "8", "--max-bytes", "4"], "exchange them"),
        (["--only", "gossip"], "'gossip' is not measured: choose of allreduce, "),
        (["--python", "p"], "--python p is for another library: name its module too"),
        (["--against", "m", "--python", "/none/python"], "/none/python is not an executable"),
        (["--json", "/none/file"], "--json /none/file cannot be written"),
        (["--sizes", "4"], "unrecognized arguments: --sizes 4"),
    ],
)
def test_errors_are_one_sentence(arguments: list[str], words: str) -> None:
    with pytest.raises(BenchError) as caught:
        parse(arguments)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_python_without_mpirun(tmp_path: Path) -> None:
    python = program(tmp_path / "python")
    with pytest.raises(BenchError, match=r"no mpirun beside it: name .* by --mpirun"):
        parse(["--against", "m", "--python", str(python)])


def test_plot_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BenchError, match=r"needs matplotlib, which is not installed: run '.*pip"):
        parse(["--plot", str(tmp_path / "a.png")])


def program(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


# --- Numbers, report, plot ----------------------------------------------------

SETTING = {"ranks": 2, "threads": 1, "seconds": 1.0, "rounds": 2, "cores": 2}
SIZES = [4, 1 << 20]
LIBRARY = {"module": "hvd_tf", "version": "1", "tensorflow": "2.15.1", "python": "3.11.7"}


def library(cases: list[Case], *rounds_s: float) -> dict[str, Any]:
    """What a job returns: in each round all calls take as long, but one of five twice that."""
    rounds = [{"times_s": [s] * 4 + [2 * s], "plain_s": [s / 4] * 3} for s in rounds_s]
    return {"facts": LIBRARY, "cases": {case.name: rounds for case in cases}}


def yardsticks() -> dict[str, Any]:
    names = [f"{name} {size}" for name in results.YARDSTICKS for size in SIZES]
    cases = {name: [{"times_s": [1e-3] * 5}] for name in names}
    return {"facts": {"mpi": "Open MPI"}, "cases": cases}


def numbers(against: bool) -> dict[str, Any]:
    cases = make_cases(2, KINDS, SIZES)
    libraries = {"ours": library(cases, 2e-3, 6e-3)}
    if against:
        libraries["theirs"] = library(cases, 4e-3, 4e-3)
        libraries["theirs"]["cases"][cases[0].name] = 2 * [{"skipped": "m has no allreduce"}]
    found = results.collect(SETTING, cases, SIZES, libraries, yardsticks())
    # As in the file.
    return json.loads(json.dumps(found))


def test_numbers_of_a_case() -> None:
    found = numbers(against=True)
    assert found["format"] == 1 and found["ranks"] == 2
    case = next(c for c in found["cases"] if c["name"] == "allreduce 1 MiB")
    assert case["ours"] == {
        "median_s": pytest.approx(5e-3),
        "q1_s": pytest.approx(2e-3),
        "q3_s": pytest.approx(6e-3),
        "calls": 10,
        "rounds_s": [pytest.approx(2e-3), pytest.approx(6e-3)],
        "algbw_gb_s": pytest.approx((1 << 20) / 5e-3 / 1e9),
        "busbw_gb_s": pytest.approx((1 << 20) / 5e-3 / 1e9),
        "plain_s": pytest.approx(1e-3),
        "above_plain_s": pytest.approx(4e-3),
        "above_plain_rounds_s": [pytest.approx(1.5e-3), pytest.approx(4.5e-3)],
    }
    ratio = {
        "median": pytest.approx(1.0),
        "least": pytest.approx(0.5),
        "most": pytest.approx(1.5),
    }
    # Both are four times a call with tf.negative.
    assert case["ratio"] == ratio
    assert case["above_plain_ratio"] == ratio
    assert case["over_mpi"] == pytest.approx(5.0)
    assert (case["place"], case["tensors"], case["size_bytes"]) == ("out", 1, 1 << 20)
    assert {case["verb"] for case in found["cases"] if case["over_mpi"]} == {"allreduce"}
    skipped = found["cases"][0]
    assert skipped["theirs"] == {"skipped": "m has no allreduce"} and skipped["ratio"] is None


@pytest.mark.parametrize("plain_s", [1e-3, 2e-3])
def test_a_verb_that_adds_nothing_to_the_plain_call_gives_no_ratio_above_it(
    plain_s: float,
) -> None:
    cases = make_cases(2, ["allreduce"], SIZES)
    fast = {case.name: [{"times_s": [1e-3] * 5, "plain_s": [plain_s] * 3}] for case in cases}
    libraries = {"ours": library(cases, 2e-3), "theirs": {"facts": LIBRARY, "cases": fast}}
    found = results.collect(SETTING, cases, SIZES, libraries, yardsticks())["cases"][0]
    assert found["above_plain_ratio"] is None
    assert found["ratio"]["median"] == pytest.approx(2.0)


def test_numbers_without_another_library() -> None:
    found = numbers(against=False)
    assert list(found["libraries"]) == ["ours"]
    assert all(case["ratio"] is None and "theirs" not in case for case in found["cases"])
    assert [entry["size_bytes"] for entry in found["yardsticks"]["memcpy"]] == SIZES


@pytest.mark.parametrize("against", [False, True])
def test_report(against: bool) -> None:
    text = report(numbers(against))
    lines = text.splitlines()
    assert lines[0].startswith("hvd-bench: 2 rank(s) of 1 thread(s), 2 core(s)")
    for words in ("allreduce, out of place", "broadcast, in place", "doc/PERFORMANCE.md"):
        assert words in text
    row = next(line for line in lines if line.split()[:2] == ["1", "MiB"])
    words = "1 MiB 10 5.00 ms [2.00 ms - 6.00 ms] 4.00 ms 0.21 0.21 5.00"
    words += " 4.00 ms [4.00 ms - 4.00 ms]" + 2 * " 1.00 [0.50 - 1.50]" if against else ""
    assert " ".join(row.split()) == words
    assert ("ours/theirs" in text) == ("m has no allreduce" in text) == against
    assert text.count("ResNet-50, 161") == 2 and "MPI_Allreduce in place" in text
    assert "they take turns" not in text
    assert "they take turns" in report({**numbers(against), "cores": 1})


def test_report_without_mpi4py() -> None:
    found = copy.deepcopy(numbers(against=False))
    found["yardsticks"]["mpi_allreduce"] = []
    found["yardstick_facts"] = {"mpi4py": "no MPI_Allreduce: No module named 'mpi4py'"}
    for case in found["cases"]:
        case["over_mpi"] = None
    text = report(found)
    assert "No module named 'mpi4py'" in text and "/MPI" not in text


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="matplotlib is not installed")
def test_plot(tmp_path: Path) -> None:
    plot.plot(numbers(against=True), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_lines_of_the_plot() -> None:
    lines = {label: points for label, points, *_ in plot.lines(numbers(against=True))}
    assert {"memcpy", "MPI_Allreduce in place", "broadcast_in_place (hvd_tf)"} <= set(lines)
    assert [size for size, _ in lines["memcpy"]] == SIZES
