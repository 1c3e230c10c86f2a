# SPDX-License-Identifier: Apache-2.0
"""The learning curve: what each evaluation of a training run found."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Optional

from estimators import tf_estimator
from files import write_atomically

Row = dict[str, Any]

FILE = "curve.json"  # in the model's folder


class Curve(tf_estimator.Exporter):
    """Keeps a row for every evaluation; as an exporter it runs on one rank.

    A row: "step", "examples" (flights trained on by all ranks), "auc", "log_loss", "accuracy",
    "seconds" since this object was made (and of the run that goes on), and what `about` held.
    """

    def __init__(self, examples_per_step: int) -> None:
        """examples_per_step: flights of a step, over all ranks."""
        self.rows: list[Row] = []
        self.about: Optional[Row] = {}
        """What the row says of the flights that are evaluated next; None: there are none."""
        self._examples_per_step = examples_per_step
        self._made = time.perf_counter()

    @property
    def name(self) -> str:
        """The exporter's name."""
        return "curve"

    def resume(self, model_dir: Path, step: int) -> None:
        """Take over the rows of an earlier run in this folder, up to the step it had saved."""
        path = model_dir / FILE
        rows = json.loads(path.read_text()) if path.exists() else []
        self.rows = [row for row in rows if row["step"] <= step]
        if self.rows:
            self._made -= self.rows[-1]["seconds"]

    def best(self) -> Row:
        """The row with the highest AUC, the first of equals. There is a row already."""
        return max(self.rows, key=lambda row: row["auc"])

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: dict[str, Any],
        is_the_final_export: bool,
    ) -> None:
        """Add a row, and keep the file for a run that goes on from here."""
        del export_path, checkpoint_path, is_the_final_export
        if self.about is None:
            return
        step = int(eval_result["global_step"])
        row = {"step": step, "examples": step * self._examples_per_step}
        row.update({name: float(eval_result[name]) for name in ("auc", "log_loss", "accuracy")})
        row["seconds"] = time.perf_counter() - self._made
        self.rows = [known for known in self.rows if known["step"] < step] + [row | self.about]
        text = json.dumps(self.rows, indent=2) + "\n"
        write_atomically(Path(estimator.model_dir) / FILE, lambda file: file.write(text.encode()))
        print(f"step {step}: AUC {row['auc']:.4f}, log loss {row['log_loss']:.4f}", file=sys.stderr)
