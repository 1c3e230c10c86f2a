# SPDX-License-Identifier: Apache-2.0
"""Runs all that needs a GPU, one after the other, and prints one table last.

    make compile-gpu                               # here, or on another machine
    python benchmarks/gpu_report.py
    python benchmarks/gpu_report.py --only speed   # of programs, tests, speed and examples

It is for TensorFlow's Python on a machine with one GPU or more, from the tree's root. Each run has
a limit in seconds, and what it prints goes to a file. Ranks of tests share the GPU, and use NCCL
all the same where a line of the table says so: see docs/notes/2026-11-27-nccl-on-one-gpu.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
BUILT = ROOT / "build" / "cuda"
SHARED = {"HVD_TEST_GPU": "real"}
BY_NCCL = {**SHARED, "HVD_TEST_NCCL": "1"}
# What a run says of itself: rows of gpu_training.py, pytest's count, a harness's, the models' end.
FIGURE = re.compile(
    r"^(?:\[0\] )?(\| (?:resnet50|dense) \|.*|\d+ (?:passed|failed).*|NCCL was ready.*|.*AUC.*)$"
)


@dataclass
class Run:
    part: str
    name: str
    command: Sequence[str | Path]
    env: Mapping[str, str] = field(default_factory=dict)


def programs() -> list[Run]:
    alone = ["cuda_kernels_test", "staging_test", "nccl_test", "gpu_copies", "gpu_row_sums"]
    runs = [Run("programs", name, [BUILT / name]) for name in alone]
    for ranks in (1, 2, 4):
        command = [BIN / "hvdrun", "-np", str(ranks), BUILT / "gpu_staging"]
        runs.append(Run("programs", f"gpu_staging, {ranks} ranks", command))
    return runs


def tests() -> list[Run]:
    def run(name: str, env: Mapping[str, str], *files: str) -> Run:
        paths = [f"tests/multi/test_{file}.py" for file in files]
        return Run("tests", name, [BIN / "pytest", "-q", "-p", "no:cacheprovider", *paths], env)

    lane = ("gpu_lane", "ops", "join", "process_sets", "rows", "op_gradients")
    built = ("keras_optimizers", "keras_equivalence", "keras_fit", "keras_callbacks", "tape")
    built += ("optimizer", "hooks", "gradients", "functions")
    estimators = ("estimator_config", "estimator_hooks", "estimator_evaluation")
    estimators += ("estimator_train_and_evaluate",)
    ends = [BIN / "pytest", "-q", "-p", "no:cacheprovider", "tests/faults/test_gpu_ends.py"]
    return [
        run("lane, NCCL", BY_NCCL, *lane),
        run("lane, NCCL, async completion", {**BY_NCCL, "HVD_ASYNC_COMPLETION": "1"}, *lane),
        Run("tests", "ends of ranks, NCCL", ends, BY_NCCL),
        run("two hosts, NCCL", BY_NCCL, "gpu_hosts"),
        run(
            "two hosts, NCCL, async completion",
            {**BY_NCCL, "HVD_ASYNC_COMPLETION": "1"},
            "gpu_hosts",
        ),
        run("lane, staged", SHARED, *lane, "gpu_hosts", "check_numerics"),
        run("what is built on it, staged", SHARED, *built),
        run("Estimators, staged", SHARED, *estimators),
    ]


def speed() -> list[Run]:
    def run(name: str, ranks: int, env: Mapping[str, str], *arguments: str) -> Run:
        command = [BIN / "hvdrun", "-np", str(ranks), sys.executable, "benchmarks/gpu_training.py"]
        return Run("speed", name, [*command, "--turns", "6", *arguments], env)

    two = ("--batch", "32")
    waits = str(BUILT / "libcuda_waits.so")
    seen = {"CUDA_INJECTION64_PATH": waits}
    return [
        run("a step of 1 rank", 1, {}),
        run("a step of 1 rank, TensorFlow's copies", 1, {"HVD_GPU_LANE": "0"}),
        run("a step of 2 ranks", 2, {}, *two),
        run("a step of 2 ranks, TensorFlow's copies", 2, {"HVD_GPU_LANE": "0"}, *two),
        run("completions, 1 rank", 1, {}, "--completions"),
        run("completions, 2 ranks, NCCL", 2, {}, *two, "--nccl", "--completions"),
        run("large gradients, 2 ranks", 2, {}, *two, "--model", "dense"),
        run("who waits", 2, seen, *two, "--cuda-waits", waits),
        run("who waits, NCCL", 2, seen, *two, "--nccl", "--cuda-waits", waits),
    ]


def examples() -> list[Run]:
    two = [BIN / "hvdrun", "-np", "2", sys.executable]
    flights = [*two, "estimator_examples/flights/train.py", "--passes", "2"]
    return [
        Run("examples", "the flights Estimator, 2 ranks", flights),
        Run("examples", "Keras' fit, 2 ranks", [*two, "estimator_examples/keras/fit.py"]),
    ]


def carry_out(run: Run, log: Path, limit_s: float) -> str:
    """Its row of the table."""
    began = time.monotonic()
    with log.open("wb") as output:
        started = subprocess.Popen(
            [str(word) for word in run.command],
            cwd=ROOT,
            env={"TF_FORCE_GPU_ALLOW_GROWTH": "true", **os.environ, **run.env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = started.wait(limit_s)
            result = "ok" if status == 0 else f"status {status}"
        except subprocess.TimeoutExpired:
            result = f"longer than {limit_s:g} s"
        finally:
            end_all_of(started)
    lines = log.read_text(errors="replace").splitlines()
    figures = [found.group(1) for line in lines if (found := FIGURE.match(line))]
    figure = figures[-1].strip("| ").replace("|", ",") if figures else ""
    return f"| {run.name} | {result} | {time.monotonic() - began:.0f} | {figure} |"


def end_all_of(started: subprocess.Popen[bytes]) -> None:
    """Launchers end their ranks when they are asked to. What is left then is killed."""
    if started.poll() is None:
        started.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()


def main() -> None:
    parts = {"programs": programs, "tests": tests, "speed": speed, "examples": examples}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=parts, action="append", help="may be given again")
    parser.add_argument(
        "--logs", type=Path, default=ROOT / "build" / "gpu_report", help="(%(default)s)"
    )
    parser.add_argument("--limit-s", type=float, default=300, help="of a run (%(default)s)")
    arguments = parser.parse_args()
    arguments.logs.mkdir(parents=True, exist_ok=True)
    rows = []
    for part in arguments.only or parts:
        for run in parts[part]():
            log = arguments.logs / (re.sub(r"\W+", "_", f"{part} {run.name}") + ".txt")
            rows.append(carry_out(run, log, arguments.limit_s))
            if part in ("programs", "speed"):
                print(f"\n== {run.name}\n{tables_of(log)}", flush=True)
    print("\n| what | result | s | its last figure |\n|---|---|---|---|")
    print("\n".join(rows), flush=True)


def tables_of(log: Path) -> str:
    """The rows of tables that a run has printed."""
    lines = [line.removeprefix("[0] ") for line in log.read_text(errors="replace").splitlines()]
    return "\n".join(line for line in lines if line.startswith("|"))


if __name__ == "__main__":
    main()
