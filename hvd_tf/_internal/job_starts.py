# SPDX-License-Identifier: Apache-2.0
"""Which start of which job this is, and whether one follows another. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# The same at all starts of one job. `hvdrun` makes one up where there is none.
JOB_VARIABLE = "HVD_ELASTIC_JOB"


class JobStart(NamedTuple):
    """Which start of which job this is."""

    job: str
    """Empty: nobody says which job it is."""
    number: int
    """0 for its first start."""
    slurm_job: str = ""
    """Slurm's number of it. It may run several jobs of `hvdrun`, one after another."""
    slurm_number: int = 0
    """How often Slurm has started it again."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> JobStart:
        """As `hvdrun` says it, and Slurm where it has started `hvdrun`."""

        def number(name: str) -> int:
            text = environ.get(name, "")
            return int(text) if text.isdecimal() else 0

        return cls(
            environ.get(JOB_VARIABLE, ""),
            number("HVD_RESTART"),
            environ.get("SLURM_JOB_ID", ""),
            number("SLURM_RESTART_COUNT"),
        )

    def follows(self, other: JobStart) -> bool:
        """Whether the same job was started again since, by `hvdrun` or by Slurm."""
        is_of_slurm_job = self.slurm_job != "" and self.slurm_job == other.slurm_job
        if is_of_slurm_job and self.slurm_number != other.slurm_number:
            return self.slurm_number > other.slurm_number
        return self.job != "" and self.job == other.job and self.number > other.number
