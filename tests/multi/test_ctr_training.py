# SPDX-License-Identifier: Apache-2.0
"""The CTR example's models: many ranks as one process, from files that are written once."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from cases import in_full

sys.path.append(str(Path(__file__).parents[2] / "estimator_examples" / "ctr"))
sys.path.append(str(Path(__file__).parents[2] / "estimator_examples" / "flights"))

import against_one
import rows
from generator import CARDINALITIES, Generator
from layers import Sizes, folded, rows_of
from training import Settings

import hvd_tf as hvd

RANKS = (2,)
IN_FULL = ("2x2",)
TIMEOUT_S = 180

SMALL = Sizes(ids=5000, dimension=8, hidden=(32, 16), cross_rows=512)
CLICKS = {"train": 12_800, "held_out": 3200}
BATCH = 64  # clicks of a rank and step
STEPS = 100


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = hvd.broadcast_object(tmp_path_factory.mktemp("clicks"), 0)
    return rows.prepare_on_all(hvd, folder, 1.05, 11, CLICKS)


def test_files_hold_what_was_generated(data: Path) -> None:
    """The first of four files has 13 of the 50 records."""
    made = Generator(1.05, 11).records(13 * rows.BLOCK, rows.NUMBERS["held_out"], 0)
    records = tf.data.TFRecordDataset(rows.files(data, "held_out")[:1])
    ((features, labels),) = records.batch(1000).map(rows.decode)
    for name in ("categorical", "integers", "logits"):
        np.testing.assert_array_equal(features[name], getattr(made, name))
    np.testing.assert_array_equal(labels, made.labels)
    count = sum(1 for _ in tf.data.TFRecordDataset(rows.files(data, "held_out")))
    assert count * rows.BLOCK == CLICKS["held_out"]


def test_a_table_has_rows_for_all_features() -> None:
    for ids in (26, 5000, 1_000_000, 40_000_000):
        found = rows_of(ids)
        assert sum(found) <= ids and min(found) >= 1
        assert all(count <= most + 1 for count, most in zip(found, CARDINALITIES))
    assert found == [most + 1 for most in CARDINALITIES]
    large = np.full([2, len(CARDINALITIES)], 2**63 - 1)
    places = folded(tf.constant(np.where([[True], [False]], large, 0)), 5000).numpy()
    assert places.min() >= 0 and places.max() < 5000
    assert len(set(places[1].tolist())) == len(CARDINALITIES)


@pytest.mark.parametrize("model", ["deepfm", pytest.param("wide_deep", marks=in_full)])
def test_many_ranks_train_the_model_of_one(data: Path, model: str) -> None:
    settings = Settings(model, SMALL)
    found, aucs = against_one.compared(hvd, settings, data, batch=BATCH, steps=STEPS)
    assert {"embeddings", "weights", "dense_0/kernel", "dense_2/bias"} <= set(found)
    # The comparison is no comparison if nothing was trained or one run was compared with itself.
    assert 0 < max(found.values()) <= 1e-6, found
    assert aucs[0] == pytest.approx(aucs[1], abs=1e-3) and aucs[0] > 0.6
