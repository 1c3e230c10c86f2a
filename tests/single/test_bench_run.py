# SPDX-License-Identifier: Apache-2.0
"""hvd-bench with real ranks: the whole program once, and each of the ranks' calls."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mpi import PACKAGE, run_ranks

from hvd_tf.bench.cases import KINDS, make_cases

RANK_MAIN = PACKAGE / "bench" / "worker" / "rank_main.py"


def test_against_itself(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    arguments = ["-np", "2", "--only=allreduce", "--max-bytes=64", "--factor=16"]
    arguments += ["--seconds=0.01", f"--json={file}", "--against=hvd_tf", "--rounds=2"]
    command = [sys.executable, "-m", "hvd_tf.bench", *arguments]
    result = run_ranks(command, 2, 240, launcher=[])
    assert not result.timed_out and result.returncode == 0, result.text
    assert result.leftovers == [], result.text
    numbers = json.loads(file.read_text())
    assert set(numbers["libraries"]) == {"ours", "theirs"}
    assert [case["size_bytes"] for case in numbers["cases"]] == [4, 64]
    for case in numbers["cases"]:
        assert len(case["ours"]["rounds_s"]) == len(case["theirs"]["rounds_s"]) == 2
        assert 0 < case["ratio"]["least"] <= case["ratio"]["median"] <= case["ratio"]["most"]
    assert [entry["size_bytes"] for entry in numbers["yardsticks"]["memcpy"]] == [4, 64]
    assert "ours/theirs" in result.text, result.text


def test_every_call(tmp_path: Path) -> None:
    """The ranks check the results of their first calls themselves."""
    cases = {}
    for case in make_cases(2, KINDS, [8]):
        # The shapes themselves would take long.
        shapes = [(min(shape[0], 4), *shape[1:]) for shape in case.shapes[:3] if len(shape) < 4]
        cases.setdefault(case.call, {"name": case.name, "call": case.call, "shapes": shapes})
    plan = {"module": "hvd_tf", "ranks": 2, "threads": 1, "seconds": 0.01}
    plan.update(search=str(PACKAGE.parent), rounds=1, cases=list(cases.values()))
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "turns").write_text(str(len(cases)))
    result = run_ranks([sys.executable, str(RANK_MAIN), str(tmp_path)], 2, 240)
    assert not result.timed_out and result.returncode == 0, result.text
    assert result.leftovers == [], result.text
    facts, *turns = (
        json.loads((tmp_path / f"{n}.json").read_text()) for n in range(len(cases) + 1)
    )
    assert facts["module"] == "hvd_tf"
    found = {name: entry for turn in turns for name, entry in turn.items()}
    assert set(found) == {case["name"] for case in cases.values()}
    for entry in found.values():
        assert len(entry["times_s"]) >= 5 and len(entry["plain_s"]) >= 5
        assert min(entry["times_s"]) > 0
