# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNormalization: what Keras' own layer gives for the ranks' batches one after another."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_tf import keras as hvd_keras

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras
IS_KERAS_3 = not hasattr(keras.optimizers.Adam, "compute_gradients")
SHAPES = {"rows": (3,), "sequences": (4, 3), "images": (2, 5, 3)}


def data(rank, shape, rows, mean=0.0):
    rng = np.random.default_rng([11, rank])
    return (mean + rng.standard_normal((rows, *shape))).astype(np.float32)


def train(layer, x, mask=None):
    """Output, gradients of a loss, moving averages."""
    weights = np.arange(1, x.shape[-1] + 1, dtype=np.float32)
    x = tf.constant(x)
    # A loss in which each row counts alone, so that ranks' losses add up.
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=True, **({} if mask is None else {"mask": mask}))
        loss = tf.reduce_sum(tf.square(tf.cast(y, tf.float32)) * y * weights)
    gradients = tape.gradient(loss, [x, *layer.trainable_variables])
    return [np.asarray(part) for part in (y, *gradients, *layer.non_trainable_variables)]


def check(hvd, rank, size, x, tolerance=1e-5, mask=None, **arguments):
    everyones = hvd.allgather_object((x, mask), name="data")
    joined = np.concatenate([theirs for theirs, _ in everyones])
    masks = None if mask is None else np.concatenate([theirs for _, theirs in everyones])
    layer, plain = (
        hvd.SyncBatchNormalization(**arguments),
        keras.layers.BatchNormalization(**arguments),
    )
    # Keras' fused kernel corrects the moving variance for the number of samples.
    if not IS_KERAS_3:
        plain = keras.layers.BatchNormalization(fused=False, **arguments)
    layer.build((None, *x.shape[1:]))
    plain.build((None, *x.shape[1:]))
    got, expected = train(layer, x, mask), train(plain, joined, masks)
    begin = sum(len(theirs) for theirs, _ in everyones[:rank])
    for i, (mine, all_) in enumerate(zip(got, expected)):
        if i < 2:  # of each row
            all_ = all_[begin : begin + len(x)]
        elif i < 2 + len(layer.trainable_variables):
            mine = hvd.allreduce(mine, op=hvd.Sum, name="parameter").numpy()
        scale = max(1.0, np.abs(all_).max(initial=0.0))
        np.testing.assert_allclose(mine / scale, all_ / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_as_one_process_with_all_batches(hvd, rank, size, shape):
    check(hvd, rank, size, data(rank, shape, 4 + rank))


def test_another_axis(hvd, rank, size):
    check(hvd, rank, size, data(rank, (3, 4, 5), 4), axis=1)


def test_a_rank_without_rows(hvd, rank, size):
    check(hvd, rank, size, data(rank, (3,), 0 if rank == 0 else 5))


def test_a_variance_that_is_small_beside_the_mean(hvd, rank, size):
    """Sums of squares in 32 bits would lose all of it."""
    x = data(rank, (3,), 64, mean=3000.0)
    layer = hvd.SyncBatchNormalization(momentum=0.0)
    layer(tf.constant(x), training=True)
    joined = np.concatenate(hvd.allgather_object(x)).astype(np.float64)
    variance = layer.moving_variance.numpy()
    np.testing.assert_allclose(variance, joined.var(axis=0), rtol=1e-4)


def test_the_variance_of_equal_rows_is_not_below_zero(hvd, rank, size):
    """What is rounded would be, by more than the layer's epsilon."""
    row = np.array([34, 47, 56, 68, 94, 103, 112, 136]) * 1e7 / 3
    layer = hvd.SyncBatchNormalization(dtype="float64", momentum=0.0)
    y = layer(tf.constant([row] * 3, tf.float64), training=True)
    assert np.isfinite(y.numpy()).all() and (layer.moving_variance.numpy() >= 0).all()


def test_masks(hvd, rank, size):
    mask = np.random.default_rng(rank).random((4, 5)) < (0.9 if rank == 0 else 0.3)
    # Keras 3 adds its epsilon, 1e-7, to the number of samples.
    check(hvd, rank, size, data(rank, (5, 3), 4), mask=mask)


def test_16_bit_inputs(hvd, rank, size):
    layer = hvd.SyncBatchNormalization(dtype="mixed_float16", momentum=0.0)
    x = data(rank, (3,), 16, mean=5.0).astype(np.float16)
    y = layer(tf.constant(x), training=True)
    joined = np.concatenate(hvd.allgather_object(x)).astype(np.float64)
    expected = (x - joined.mean(axis=0)) / np.sqrt(joined.var(axis=0) + 1e-3)
    assert y.dtype == tf.float16
    np.testing.assert_allclose(y.numpy(), expected, atol=2e-2)


def test_without_training_it_is_the_plain_layer(hvd, rank, size):
    # Ranks match layers by their names, which Keras counts: all make the same ones.
    layer, plain = hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()
    x = data(0, (3,), 4)
    if rank == 0:  # no peer is needed
        np.testing.assert_array_equal(layer(x).numpy(), plain(x).numpy())


def make_model(layer):
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [keras.Input([3]), keras.layers.Dense(4), layer(), layer(), keras.layers.Dense(1)]
    )


def test_fit_and_files(hvd, rank, size, tmp_path):
    """Two of them in a model, against a process with all batches; then what files have of it.

    Rank 0 has made a model more, so that Keras numbers its layers otherwise.
    """
    if rank == 0:
        make_model(hvd.SyncBatchNormalization)
    x, y = data(rank, (3,), 32), data(rank + 50, (1,), 32)
    everyones = hvd.allgather_object((x, y))
    model, alone = (
        make_model(hvd.SyncBatchNormalization),
        make_model(keras.layers.BatchNormalization),
    )
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    alone.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, y, batch_size=8, shuffle=False, epochs=3, verbose=0)
    batches = [
        np.concatenate([theirs[i].reshape(4, 8, -1) for theirs in everyones], axis=1)
        for i in (0, 1)
    ]
    joined = [array.reshape(-1, array.shape[-1]) for array in batches]
    alone.fit(*joined, batch_size=8 * size, shuffle=False, epochs=3, verbose=0)
    for got, expected in zip(model.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(got, expected, atol=2e-5)

    model.save(tmp_path / "model.keras")
    loaded = hvd_keras.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[1]) is hvd.SyncBatchNormalization
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))

    path = str(tmp_path / "exported")
    if IS_KERAS_3:
        model.export(path, verbose=False)
    else:
        model.save(path)
    graph = (tmp_path / "exported" / "saved_model.pb").read_bytes()
    assert b"BatchNorm" in graph or b"batch_norm" in graph
    assert b"Horovod" not in graph


def test_arguments(hvd):
    for fused in (True, None):
        with pytest.raises(ValueError, match=f"fused={fused}.*Leave fused out"):
            hvd.SyncBatchNormalization(fused=fused)
    layer = hvd.SyncBatchNormalization(axis=1, momentum=0.5)
    again = hvd.SyncBatchNormalization.from_config(layer.get_config())
    assert (again.axis, again.momentum) == (layer.axis, 0.5)
    assert hvd.SyncBatchNormalization().name != hvd.SyncBatchNormalization().name


def test_xla_is_refused_by_a_sentence(hvd, rank):
    layer = hvd.SyncBatchNormalization()
    layer.build((None, 3))
    step = tf.function(lambda x: layer(x, training=True), jit_compile=True)
    with pytest.raises(ValueError, match="XLA cannot compile the reduction"):
        step(tf.constant(data(rank, (3,), 4)))
