# SPDX-License-Identifier: Apache-2.0
"""benchmarks/gpu_training.py: each rank has its own GPU, and it says how gradients went."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import tensorflow as tf

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_training.py"


class MadeUpJob:
    """What the program calls of hvd_tf, on rank 0 of two."""

    def __init__(self, bytes_of_a_step: int) -> None:
        self.calls: list[str] = []
        self.bytes_of_a_step = bytes_of_a_step
        self.sent = 0

    def init(self) -> None:
        self.calls.append("init")

    def pin_gpu(self) -> str:
        self.calls.append("pin_gpu")
        return "/physical_device:GPU:0"

    def trainer(self, name: str, batch: int, *, distributed: bool):
        self.calls.append("trainer")

        def step() -> tf.Tensor:
            self.sent += self.bytes_of_a_step * distributed
            return tf.constant(0.5)

        return step

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def comm_stats(self) -> dict:
        return {"verbs": {"allreduce": {"payload_bytes": 1000 + self.sent}}}

    def barrier(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


@pytest.fixture
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_training", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("lane", "bytes_of_a_step", "way"),
    [
        ("1", 0, "| lane, NCCL |"),
        ("1", 5, "| lane, host memory |"),
        ("0", 5, "| TensorFlow's copies |"),
    ],
)
def test_a_job(
    program: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lane: str,
    bytes_of_a_step: int,
    way: str,
) -> None:
    job = MadeUpJob(bytes_of_a_step)
    monkeypatch.setenv("HVD_GPU_LANE", lane)
    monkeypatch.setattr(program, "hvd", job)
    monkeypatch.setattr(program, "trainer", job.trainer)
    monkeypatch.setattr("sys.argv", ["gpu_training.py", "--turns=2", "--steps=1"])
    program.main()
    assert job.calls == ["init", "pin_gpu", "trainer", "trainer"]
    printed = capsys.readouterr().out
    assert "rank 0 has /physical_device:GPU:0" in printed
    assert way in printed
