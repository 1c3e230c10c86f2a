# SPDX-License-Identifier: Apache-2.0
"""What input_fn may give hvd_tf.estimator.evaluate: each record counts once, or all ranks refuse.

The records are numbers. Their mean and their count tell which were evaluated.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from cases import needs_estimator
from shares import write_tfrecords

import hvd_tf as hvd
from hvd_tf.data.contents import contents_of, difference_of
from hvd_tf.data.marks import is_exact

RANKS = (2,)
IN_FULL = (3,)
TIMEOUT_S = 60

v1 = tf.compat.v1
tfe = hvd.estimator.tf_estimator
pytestmark = needs_estimator

RECORDS = 24  # equally many for 2 and 3 ranks
VALUES = np.arange(RECORDS, dtype=np.float32) ** 2


def model_fn(features, labels, mode):
    del labels
    weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
    count = v1.get_local_variable("count", initializer=np.int64(0))
    metrics = {
        "mean": v1.metrics.mean(features),
        "count": (count.read_value(), v1.assign_add(count, tf.size(features, tf.int64)).op),
    }
    return tfe.EstimatorSpec(mode, loss=weight, eval_metric_ops=metrics)


def evaluate(input_fn):
    with tempfile.TemporaryDirectory() as directory:
        config = hvd.estimator.run_config(directory, tf_random_seed=3)
        estimator = tfe.Estimator(model_fn, config=config)
        return hvd.estimator.evaluate(estimator, input_fn)


def check(found, values):
    assert found["count"] == len(values)
    assert found["mean"] == pytest.approx(np.mean(values), rel=1e-6)


def ones(records):
    """A 1 for each record, in batches."""
    return records.map(lambda _: 1.0).batch(3)


def filtered_share(**arguments):
    """As data.md has it. The filter leaves ranks with different numbers of records."""
    share = hvd.data.shard(tf.data.Dataset.from_tensor_slices(VALUES), uneven="keep")
    return hvd.data.equal_steps(share.filter(lambda x: x > 30).batch(2), **arguments)


def test_a_share_of_equal_steps_is_not_shared_again():
    check(evaluate(lambda: filtered_share(uneven="keep").prefetch(1)), VALUES[6:])


@pytest.mark.parametrize("uneven", ["drop", "repeat"])
def test_equal_steps_that_drop_or_repeat_records_are_refused(uneven):
    with pytest.raises(ValueError, match="drops or repeats records.*equal_steps"):
        evaluate(lambda: filtered_share(uneven=uneven).prefetch(1))
    # Lengths are known here.
    made = []

    def input_fn():
        made.append(tf.data.Dataset.from_tensor_slices(VALUES[: 9 + hvd.rank()]))
        return hvd.data.equal_steps(made[0], uneven).prefetch(1)

    with pytest.raises(ValueError, match="drops or repeats records.*equal_steps"):
        evaluate(input_fn)
    assert is_exact(made[0])  # it stays as it was


def test_equal_steps_that_are_equal_are_shares():
    def input_fn():
        share = hvd.data.shard(tf.data.Dataset.from_tensor_slices(VALUES), uneven="keep")
        return hvd.data.equal_steps(share.filter(lambda x: x >= 0).batch(2), "raise")

    check(evaluate(input_fn), VALUES)


def test_equal_steps_are_not_shared_again_by_shard():
    with pytest.raises(ValueError, match="sharded already, by hvd.data.shard"):
        hvd.data.shard(filtered_share())


def batches(*part):
    return tf.data.Dataset.from_tensor_slices(VALUES).shard(*part).batch(2)


def test_a_share_by_the_ranks_own_numbers():
    check(evaluate(lambda: batches(hvd.size(), hvd.rank())), VALUES)


@pytest.mark.parametrize("index", [0, 1])
def test_a_part_that_is_the_same_on_every_rank_is_no_share(index):
    """A validation part, in a job that happens to have as many ranks as there are parts."""
    check(evaluate(lambda: batches(hvd.size(), index)), VALUES[index :: hvd.size()])
    # Of that part each rank takes its share.
    check(
        evaluate(lambda: batches(hvd.size(), index).shard(hvd.size(), hvd.rank())),
        VALUES[index :: hvd.size()],
    )


@pytest.mark.parametrize(
    "part",
    [
        lambda rank, size: (size, (rank + 1) % size),  # as where ranks are counted in another way
        lambda rank, size: (size, 0) if rank == 0 else (size + 1, rank),
        lambda rank, size: (size, size - 1) if rank == size - 1 else (1, 0),  # on one rank alone
    ],
)
def test_parts_that_are_not_the_ranks_own_are_refused(part):
    with pytest.raises(
        ValueError, match=r"evaluate: .* not the ranks' own: .* on rank 0, .* on rank 1"
    ):
        evaluate(lambda: batches(*part(hvd.rank(), hvd.size())))


def test_an_input_that_fails_on_one_rank_alone_fails_on_all():
    def input_fn():
        if hvd.rank() == 1:
            raise KeyError("no such file")
        return batches(1, 0)

    with pytest.raises((KeyError, RuntimeError), match="no such file"):
        evaluate(input_fn)


@pytest.mark.parametrize("records", [RECORDS, RECORDS - 1])
def test_arrays_that_are_cut_by_hand_are_refused(records):
    mine = VALUES[:records][hvd.rank() :: hvd.size()]
    what = "arrays or the names of files" if records == RECORDS else "length of the dataset"
    with pytest.raises(ValueError, match=f"evaluate: the {what}.* differ.* Dataset.shard"):
        evaluate(lambda: tf.data.Dataset.from_tensor_slices(mine).batch(1))


@pytest.mark.parametrize("records", [RECORDS, 100_000])
@pytest.mark.parametrize("changed", ["order", "signs", "element"])
def test_arrays_of_another_order_or_with_other_elements_are_refused(changed, records):
    """Values that are almost equal, such as points in time, and a sum that stays."""
    mine = np.float64(1e6) + np.arange(records) * 1000.0 / records
    expected = np.mean(mine)
    check_mean(mine, expected)
    if hvd.rank() != 0:
        if changed == "order":
            np.random.default_rng(1).shuffle(mine)
        elif changed == "signs":
            mine[::2] *= -1
        else:
            mine[records // 2] += 1e5
    with pytest.raises(ValueError, match="arrays or the names of files of its dataset differ.*mix"):
        check_mean(mine, expected)


def check_mean(values, expected):
    found = evaluate(lambda: tf.data.Dataset.from_tensor_slices(values).batch(10_000))
    assert found["mean"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "values", [[], [np.inf, 1.0, np.nan], [0.0, -0.0], [1e308, 1e308, -1e308], [1e200] * 9]
)
def test_arrays_that_are_equal_are_alike(values):
    content = contents_of(tf.data.Dataset.from_tensor_slices(np.float64(values)))
    everyones = json.loads(json.dumps([content] * 2))
    assert difference_of(everyones) == ""


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_arrays_that_differ_in_last_bits_are_alike_and_mixed_ones_are_not(dtype):
    def contents(array):
        return contents_of(tf.data.Dataset.from_tensor_slices(array))

    generator = np.random.default_rng(2)
    array = generator.uniform(-9, 9, (700, 300)).astype(dtype)
    nearby = np.nextafter(array, generator.choice([-np.inf, np.inf], array.shape).astype(dtype))
    assert difference_of([contents(array), contents(nearby)]) == ""
    rows = generator.permutation(array)
    assert "mixture" in difference_of([contents(array), contents(rows)])


@pytest.mark.parametrize("reader", [tf.data.TFRecordDataset, tf.data.TextLineDataset])
def test_files_that_are_cut_by_hand_are_refused(tmp_path, reader):
    folder = Path(hvd.broadcast_object(str(tmp_path), 0))
    write_tfrecords(folder, [4] * 2 * hvd.size(), hvd.rank())
    files = sorted(str(path) for path in folder.glob("*.tfrecord"))
    mine = files[hvd.rank() :: hvd.size()]
    with pytest.raises(ValueError, match="names of files of its dataset differ: string .2,. with"):
        evaluate(lambda: ones(reader(mine)))
    whole = evaluate(lambda: ones(reader(files)))
    names = tf.data.Dataset.from_tensor_slices

    def shares():
        return ones(reader(names(files).shard(hvd.size(), hvd.rank())))

    assert evaluate(shares)["count"] == whole["count"]


def test_files_in_another_folder_and_last_bits_do_not_matter(tmp_path):
    write_tfrecords(tmp_path, [4, 4], 0)
    files = sorted(str(path) for path in tmp_path.glob("*.tfrecord"))
    assert len(set(hvd.allgather_object(files[0]))) > 1 or hvd.size() == 1
    check(evaluate(lambda: ones(tf.data.TFRecordDataset(files))), np.ones(8))
    values = np.nextafter(VALUES, np.float32(np.inf)) if hvd.rank() else VALUES
    check(evaluate(lambda: tf.data.Dataset.from_tensor_slices(values).batch(5)), VALUES)


def test_shuffles_with_another_seed_on_each_rank_are_refused():
    def input_fn(config):
        whole = tf.data.Dataset.from_tensor_slices(VALUES)
        return whole.shuffle(RECORDS, seed=config.tf_random_seed).batch(2)

    with pytest.raises(ValueError, match="seeds of a shuffle in the dataset differs: .*run_config"):
        evaluate(input_fn)


def test_a_service_is_read_by_rank_0_alone():
    """With one name of a job each rank would get other elements of it."""
    service = tf.data.experimental.service
    target, servers = None, []
    if hvd.rank() == 0:
        servers.append(service.DispatchServer())
        target = servers[0].target
        address = target.split("://")[1]
        servers.append(service.WorkerServer(service.WorkerConfig(dispatcher_address=address)))
    target = hvd.broadcast_object(target, 0)

    def input_fn():
        whole = tf.data.Dataset.from_tensor_slices(VALUES)
        return whole.apply(service.distribute("parallel_epochs", target, job_name="all")).batch(5)

    with pytest.raises(ValueError, match="this dataset has a tf.data service: every rank"):
        hvd.data.shard(input_fn())
    check(evaluate(input_fn), VALUES)
    hvd.allgather_object(None)
    del servers
