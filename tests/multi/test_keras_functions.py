# SPDX-License-Identifier: Apache-2.0
"""Collectives of plain values, loaded models and checkpoints of Keras."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from cases import BEST_MODEL, is_before_keras_2_15

from hvd_tf import keras as hvd_keras

RANKS = (2,)

keras = tf.keras
IS_KERAS_3 = not hasattr(keras.optimizers.Adam, "compute_gradients")
FAMILIES = ["new"] if IS_KERAS_3 else ["new", "legacy"]


@pytest.fixture(params=FAMILIES)
def optimizers(request):
    """A module of optimizers."""
    return keras.optimizers if request.param == "new" else keras.optimizers.legacy


def make_model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input([3])
    # The ranks make different numbers of models, and Keras numbers layers without a name.
    return keras.Model(inputs, keras.layers.Dense(1, name="dense")(inputs))


def data(rank, steps=2):
    rng = np.random.default_rng([9, rank])
    x = rng.standard_normal((4 * steps, 3)).astype(np.float32)
    return x, rng.standard_normal((4 * steps, 1)).astype(np.float32)


def fit(model, x, y, batch_size=4, **arguments):
    return model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0, **arguments)


def test_values(hvd, rank, size):
    total = size * (size - 1) / 2
    assert hvd_keras.allreduce(float(rank), name="mean").numpy() == total / size
    assert hvd_keras.allreduce([rank], op=hvd_keras.Sum, name="sum").numpy().tolist() == [total]
    with pytest.warns(DeprecationWarning, match="average= is deprecated"):
        assert hvd_keras.allreduce(rank, average=False, name="sum 2").numpy() == total
    assert hvd_keras.allgather([[rank]], name="all").numpy().tolist() == [[i] for i in range(size)]
    assert hvd_keras.broadcast([rank, 7], size - 1, name="last").numpy().tolist() == [size - 1, 7]


@pytest.mark.parametrize("in_function", [False, True])
def test_broadcast_in_place(hvd, rank, size, in_function):
    model = make_model()
    model.compile(keras.optimizers.Adam())
    weights = model.trainable_variables
    weights[0].assign(np.full((3, 1), rank + 1.0))
    weights[1].assign([rank + 5.0])

    def call():
        return hvd.broadcast_(weights, size - 1)

    results = (tf.function(call, autograph=False) if in_function else call)()
    for weight, result, expected in zip(weights, results, [[[size]] * 3, [size + 4]]):
        np.testing.assert_array_equal(result.numpy(), expected)
        np.testing.assert_array_equal(weight.numpy(), expected)


def test_weights_are_tensors_to_the_verbs(hvd, rank, size):
    weight = make_model().trainable_variables[1]
    weight.assign([rank + 1.0])
    everyones = np.arange(size) + 1.0
    total = everyones.sum()
    for results, expected in [
        (hvd.allreduce(weight, op=hvd.Sum), [total]),
        (hvd.grouped_allreduce([weight, 1.0], op=hvd.Sum)[0], [total]),
        (hvd.allgather(weight), everyones),
        (hvd.grouped_allgather([weight])[0], everyones),
        (hvd.broadcast(weight, size - 1), [size]),
        (hvd.alltoall(weight, [1] + [0] * (size - 1))[0], everyones if rank == 0 else []),
        (hvd.reducescatter(weight, op=hvd.Sum), [total] if rank == 0 else []),
    ]:
        np.testing.assert_array_equal(results.numpy(), expected)


def data_of_all(size):
    """Each batch has the ranks' batches one after another."""
    parts = [[array.reshape(2, 4, -1) for array in data(rank)] for rank in range(size)]
    joined = [np.concatenate(arrays, axis=1) for arrays in zip(*parts)]
    return [array.reshape(-1, array.shape[-1]) for array in joined]


@pytest.mark.parametrize("kind", ["keras", "h5"])
def test_a_loaded_model_goes_on_training(hvd, rank, size, tmp_path, kind):
    model, alone = make_model(), make_model()
    loss = keras.losses.MeanSquaredError()
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), loss)
    alone.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    fit(model, *data(rank))
    path = str(tmp_path / f"model.{kind}")
    model.save(path)
    loaded = hvd_keras.load_model(path)
    assert loaded.optimizer.process_set is hvd.global_process_set
    assert int(loaded.optimizer.iterations.numpy()) == 2
    fit(loaded, *data(rank))
    for _ in range(2):
        fit(alone, *data_of_all(size), batch_size=4 * size)
    for got, expected in zip(loaded.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_loaded_model_takes_arguments_of_the_optimizer(hvd, rank, size, tmp_path):
    loss = keras.losses.MeanSquaredError()
    saved, built, each = make_model(), make_model(), make_model()
    saved.compile(keras.optimizers.SGD(0.1), loss)
    path = str(tmp_path / "model.keras")
    saved.save(path)
    loaded = hvd_keras.load_model(path, backward_passes_per_step=2)
    passes = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)
    built.compile(passes, loss)
    each.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss)
    for model in (loaded, built, each):
        fit(model, *data(rank))
    for got, expected, other in zip(*(m.get_weights() for m in (loaded, built, each))):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        assert not np.allclose(got, other, rtol=1e-4)


def check_equal_on_all(hvd, model):
    of_optimizer = model.optimizer.variables
    of_optimizer = of_optimizer() if callable(of_optimizer) else of_optimizer
    by_size = sorted((v.numpy() for v in of_optimizer), key=lambda value: value.shape)
    everyones = hvd.allgather_object([*model.get_weights(), *by_size])
    for theirs in everyones:
        for got, expected in zip(theirs, everyones[0]):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", ["keras", "h5"])
def test_rank_0_alone_loads_the_model(hvd, rank, optimizers, tmp_path, kind):
    """The names of its optimizer's variables are others then, with Keras 2."""
    if kind == "keras" and optimizers is not keras.optimizers and is_before_keras_2_15():
        pytest.skip("this Keras cannot read a .keras file with a legacy optimizer")
    loss = keras.losses.MeanSquaredError()
    if rank == 0:
        model = make_model()
        model.compile(optimizers.SGD(0.1, momentum=0.9), loss)
        fit(model, *data(rank))
        model.save(str(tmp_path / f"model.{kind}"))
        model = hvd_keras.load_model(str(tmp_path / f"model.{kind}"))
    else:
        model = make_model()
        model.compile(hvd_keras.DistributedOptimizer(optimizers.SGD(0.1, momentum=0.9)), loss)
    broadcast = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, *data(rank, steps=1), callbacks=[broadcast])
    check_equal_on_all(hvd, model)
    fit(model, *data(rank), callbacks=[broadcast])
    check_equal_on_all(hvd, model)


def test_rank_0_alone_restores_a_checkpoint(hvd, rank, optimizers, tmp_path):
    """Legacy slots of Keras 2 that wait for their variables get other names and another order."""
    model = make_model()
    model.compile(hvd_keras.DistributedOptimizer(optimizers.Adam(0.1)), "mse")
    if rank == 0:
        saved = make_model()
        saved.compile(optimizers.Adam(0.1), "mse")
        fit(saved, *data(rank))
        kept = tf.train.Checkpoint(model=saved, optimizer=saved.optimizer)
        path = kept.save(str(tmp_path / "checkpoint"))
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(path)
    broadcast = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, *data(rank, steps=1), callbacks=[broadcast])
    assert int(model.optimizer.iterations.numpy()) == 3
    check_equal_on_all(hvd, model)


class Mine(keras.optimizers.SGD):
    """An optimizer that Keras does not know."""


def test_optimizers_that_keras_does_not_know(hvd, rank, tmp_path):
    model = make_model()
    model.compile(hvd_keras.DistributedOptimizer(Mine(0.1)), "mse")
    fit(model, *data(rank))
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = hvd_keras.load_model(path, custom_optimizers=[Mine])
    assert isinstance(loaded.optimizer, Mine)
    assert loaded.optimizer.process_set is hvd.global_process_set


class Distributed(keras.optimizers.SGD):
    """How a program gives a loaded optimizer its own arguments of DistributedOptimizer."""

    @classmethod
    def from_config(cls, config, custom_objects=None):
        del custom_objects
        return summed(cls(**config))


def summed(optimizer):
    return hvd_keras.DistributedOptimizer(optimizer, op=hvd_keras.Sum)


makes_by_function = pytest.mark.skipif(
    not hasattr(keras.optimizers.SGD, "compute_gradients"),
    reason="Keras 3 takes only classes for optimizers",
)


@pytest.mark.parametrize(
    "kind, made",
    [
        ("keras", Distributed),
        ("h5", Distributed),
        pytest.param(
            "h5",
            lambda **config: summed(keras.optimizers.SGD(**config)),
            marks=makes_by_function,
        ),
    ],
)
def test_an_optimizer_that_custom_objects_distribute_is_kept(rank, size, tmp_path, kind, made):
    model, alone = make_model(), make_model()
    path = str(tmp_path / f"model.{kind}")
    model.compile(Distributed(0.1 / size), keras.losses.MeanSquaredError())
    model.save(path)
    loaded = hvd_keras.load_model(path, custom_objects={"Distributed": made})
    alone.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError())
    fit(loaded, *data(rank), epochs=1)
    fit(alone, *data_of_all(size), batch_size=4 * size, epochs=1)
    for got, expected in zip(loaded.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_the_best_model_is_saved_on_rank_0(hvd, rank, tmp_path):
    model = make_model()
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
    best = hvd_keras.callbacks.BestModelCheckpoint(monitor="loss")
    with pytest.raises(ValueError, match="set its `filepath` before fit"):
        fit(model, *data(rank), callbacks=[best])
    best.filepath = str(tmp_path / f"best{BEST_MODEL}")
    fit(model, *data(rank), epochs=2, callbacks=[best])
    assert [path.name for path in tmp_path.iterdir()] == (
        [f"best{BEST_MODEL}"] if rank == 0 else []
    )


@pytest.mark.parametrize("when", ["made", "set"])
def test_the_best_model_s_path_may_be_a_path(rank, tmp_path, when):
    model = make_model()
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
    path = tmp_path / f"best-{{epoch}}{BEST_MODEL}"
    best = hvd_keras.callbacks.BestModelCheckpoint(
        monitor="loss", filepath=path if when == "made" else None
    )
    if when == "set":
        best.filepath = path
    fit(model, *data(rank), callbacks=[best])
    assert [path.name for path in tmp_path.iterdir()] == (
        [f"best-1{BEST_MODEL}"] if rank == 0 else []
    )
