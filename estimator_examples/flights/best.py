# SPDX-License-Identifier: Apache-2.0
"""The checkpoint of the best evaluation, which is kept while training goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Optional

import tensorflow as tf
from curve import Curve
from estimators import tf_estimator


class Best(tf_estimator.Exporter):
    """Keeps the checkpoint of the evaluation with the highest AUC; runs on one rank.

    `tf.estimator.BestExporter` does so for a SavedModel, but forgets after a restart which was the
    best. Here the curve remembers, and stands before this among the exporters.
    """

    def __init__(self, curve: Curve) -> None:
        """curve: has a row for every evaluation, the newest included."""
        self._curve = curve

    @property
    def name(self) -> str:
        """The exporter's name, and that of its folder in model_dir/export."""
        return "best"

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: dict[str, Any],
        is_the_final_export: bool,
    ) -> Optional[str]:
        """Copy the checkpoint where its evaluation is the best so far, and delete the one before.

        Returns:
          The path of the copy, None when an earlier evaluation was better.
        """
        del estimator, is_the_final_export
        if self._curve.best()["step"] != int(eval_result["global_step"]):
            return None
        folder, checkpoint = Path(export_path), Path(checkpoint_path)
        folder.mkdir(parents=True, exist_ok=True)
        before = set(folder.glob("model.ckpt-*"))
        files = list(checkpoint.parent.glob(f"{checkpoint.name}.*"))
        copies = {Path(shutil.copy(file, folder)) for file in files}
        kept = str(folder / checkpoint.name)
        tf.compat.v1.train.update_checkpoint_state(str(folder), kept)
        for file in before - copies:
            file.unlink()
        return kept


def best_checkpoint(model_dir: str) -> Optional[str]:
    """The path that `Best` keeps in this model's folder, None on ranks that have none."""
    return tf.train.latest_checkpoint(str(Path(model_dir, "export", "best")))
