# SPDX-License-Identifier: Apache-2.0
"""JoinCallback: fit with different numbers of batches on the ranks, against NumPy."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from hvd_tf import keras as hvd_keras
from hvd_tf.keras import callbacks

RANKS = (2,)
IN_FULL = (1, 3, 4)

keras = tf.keras
IS_KERAS_3 = not hasattr(keras.optimizers.Adam, "compute_gradients")
FAMILIES = ["new"] if IS_KERAS_3 else ["new", "legacy"]

ROWS = 4  # of a batch
RATE, MOMENTUM = 0.02, 0.9
EPOCHS = 3

# How many batches ranks 0 to 3 have.
COUNTS = {
    "rank 0 first": (2, 5, 3, 4),
    "rank 0 last": (6, 2, 1, 3),
    "equal": (3, 3, 3, 3),
}


@pytest.fixture(params=COUNTS)
def counts(request, size):
    return COUNTS[request.param][:size]


def data_of(rank, count):
    """x [count, ROWS, 3] and y [count, ROWS, 1]."""
    rng = np.random.default_rng([11, rank])
    shapes = ((count, ROWS, width) for width in (3, 1))
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return x, y


HELD_OUT = data_of(99, 2)


def dataset_of(rank, counts, known):
    """This rank's batches. Whether Keras knows their number."""
    rows = tuple(array.reshape(-1, array.shape[-1]) for array in data_of(rank, counts[rank]))
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(ROWS)
    return dataset if known else dataset.filter(lambda x, y: True)


def held_out():
    return tf.data.Dataset.from_tensor_slices(HELD_OUT)


def make_model(family="new", momentum=MOMENTUM, distributed=True, **arguments):
    optimizers = keras.optimizers if family == "new" else keras.optimizers.legacy
    inputs = keras.Input([3])
    model = keras.Model(inputs, keras.layers.Dense(1, use_bias=False)(inputs))
    model.set_weights([np.full((3, 1), 0.5, np.float32)])
    optimizer = optimizers.SGD(RATE, momentum=momentum)
    if distributed:
        optimizer = hvd_keras.DistributedOptimizer(optimizer, **arguments)
    model.compile(optimizer, "mse")
    return model


def trained_alone(counts, epochs=EPOCHS, active=False):
    """The weights, the losses and those on the held-out rows of each epoch, in one process."""
    w, v = np.full((3, 1), 0.5), np.zeros((3, 1))
    data = [[a.astype(np.float64) for a in data_of(r, count)] for r, count in enumerate(counts)]
    losses, val_losses = [], []
    for _ in range(epochs):
        of_epoch = []
        for step in range(max(counts)):
            batches = [(x[step], y[step]) for x, y in data if step < len(x)]
            of_epoch += [np.mean((x @ w - y) ** 2) for x, y in batches]
            gradients = [2 / ROWS * x.T @ (x @ w - y) for x, y in batches]
            divisor = len(batches) if active else len(counts)
            v = MOMENTUM * v - RATE * np.sum(gradients, 0) / divisor
            w = w + v
        losses.append(np.mean(of_epoch))
        x, y = (a.reshape(-1, a.shape[-1]) for a in HELD_OUT)
        val_losses.append(np.mean((x @ w - y) ** 2))
    return w, losses, val_losses


def iterations_of(model):
    return int(model.optimizer.iterations.numpy())


def iterations_alone(counts, family, known):
    """The steps that Keras alone counts. Some count the step that finds no more data."""
    model = make_model(family, distributed=False)
    fit(model, dataset_of(0, (max(counts),), known))
    return iterations_of(model)


def variables_of(model):
    of_optimizer = model.optimizer.variables
    of_optimizer = of_optimizer() if callable(of_optimizer) else of_optimizer
    return [np.asarray(v) for v in [*model.get_weights(), *(o.numpy() for o in of_optimizer)]]


def check_equal(hvd, model):
    """Weights and the optimizer's state are equal on all ranks."""
    everyones = hvd.allgather_object(variables_of(model))
    for theirs in everyones:
        for got, expected in zip(theirs, everyones[0]):
            np.testing.assert_array_equal(got, expected)


def fit(model, dataset, *used, **arguments):
    return model.fit(
        dataset, **{"epochs": EPOCHS, "verbose": 0, "callbacks": list(used), **arguments}
    )


class Epochs(keras.callbacks.Callback):
    """The numbers of batches of the epochs."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def on_epoch_begin(self, epoch, logs=None):
        self.batches.append(0)

    def on_train_batch_end(self, batch, logs=None):
        self.batches[-1] += 1


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_batch_is_lost(hvd, rank, size, counts, family, known):
    model, seen = make_model(family), Epochs()
    history = fit(
        model,
        dataset_of(rank, counts, known),
        callbacks.BroadcastGlobalVariablesCallback(0),
        callbacks.MetricAverageCallback(),
        seen,
        callbacks.JoinCallback(),
        validation_data=held_out(),
    ).history
    weights, losses, val_losses = trained_alone(counts)
    np.testing.assert_allclose(model.get_weights()[0], weights, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-5)
    np.testing.assert_allclose(history["val_loss"], val_losses, rtol=1e-5)
    assert seen.batches == [counts[rank]] * EPOCHS
    assert iterations_of(model) == iterations_alone(counts, family, known)
    check_equal(hvd, model)
    # With the same model again, without a validation. The first callback meets at an epoch's end.
    used = [callbacks.MetricAverageCallback(), callbacks.JoinCallback()]
    fit(model, dataset_of(rank, counts, known), *used, epochs=1)
    check_equal(hvd, model)


@pytest.mark.usefixtures("active_average")
def test_averages_over_the_ranks_that_go_on(rank, size):
    counts = COUNTS["rank 0 first"][:size]
    model = make_model()
    fit(model, dataset_of(rank, counts, True), callbacks.JoinCallback())
    weights = trained_alone(counts, active=True)[0]
    np.testing.assert_allclose(model.get_weights()[0], weights, rtol=1e-5, atol=1e-6)


def test_rank_0_alone_validates(hvd, rank, counts):
    model = make_model()
    validation = {"validation_data": held_out()} if rank == 0 else {}
    history = fit(model, dataset_of(rank, counts, False), callbacks.JoinCallback(), **validation)
    if rank == 0:
        np.testing.assert_allclose(history.history["val_loss"], trained_alone(counts)[2], rtol=1e-5)
    check_equal(hvd, model)


def test_several_passes(hvd, rank, size, counts):
    """A pass that no step has seen yet counts in the next one."""
    model = make_model(momentum=0.0, backward_passes_per_step=2)
    fit(model, dataset_of(rank, counts, True), callbacks.JoinCallback())
    data = [[a.astype(np.float64) for a in data_of(r, count)] for r, count in enumerate(counts)]
    w, number = np.full((3, 1), 0.5), 0
    sums = [np.zeros((3, 1)) for _ in counts]
    for _ in range(EPOCHS):
        for step in range(max(counts)):
            active = [r for r, count in enumerate(counts) if step < count]
            for r in active:
                x, y = (a[step] for a in data[r])
                sums[r] += 2 / ROWS * x.T @ (x @ w - y)
            number = (number + 1) % 2
            if number == 0:
                w = w - RATE * sum(sums[r] for r in active) / size
                for r in active:
                    sums[r] = np.zeros((3, 1))
    np.testing.assert_allclose(model.get_weights()[0], w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("told", ["the optimizer", "the callback"])
def test_local_variables_stay_on_their_rank(hvd, rank, size, told):
    counts = COUNTS["rank 0 first"][:size]
    model = make_model(momentum=0.0)
    local = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Model(model.inputs, local(model.outputs[0]))
    local.set_weights([np.full((1, 1), rank + 2, np.float32)])
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(RATE))
    variables = local.trainable_variables
    if told == "the optimizer":
        for variable in variables:
            optimizer.register_local_var(variable)
    model.compile(optimizer, "mse")
    joined = callbacks.JoinCallback(variables if told == "the callback" else None)
    fit(model, dataset_of(rank, counts, True), joined)
    shared, own = zip(*hvd.allgather_object(model.get_weights()))
    assert len({weights.tobytes() for weights in shared}) == 1
    assert len({weights.tobytes() for weights in own}) == len(own)


def outcome(hvd, *arguments, **keywords):
    """The error of a fit, once all ranks are through."""
    try:
        fit(*arguments, **keywords)
        error = None
    except Exception as raised:
        error = raised
    hvd.allgather_object(None)
    return error


class Fail(keras.callbacks.Callback):
    """Raises on one rank."""

    def __init__(self, method, here):
        super().__init__()
        if here:
            setattr(self, method, self.fail)

    def fail(self, number, logs=None):
        if number == 1:
            raise OSError("disk full")


@pytest.mark.parametrize("method", ["on_epoch_begin", "on_train_batch_begin", "on_epoch_end"])
def test_a_failure_is_an_error_on_all(hvd, rank, size, counts, method):
    """Whether the rank that fails has more batches or fewer. The job lives."""
    if size == 1:
        return
    used = [Fail(method, rank == 1), callbacks.JoinCallback()]
    error = outcome(hvd, make_model(), dataset_of(rank, counts, True), *used)
    if rank == 1:
        assert isinstance(error, OSError)
    else:
        assert isinstance(error, RuntimeError), error
        assert "fit failed on rank 1: OSError: disk full" in str(error)
    model = make_model()
    fit(model, dataset_of(rank, counts, True), callbacks.JoinCallback())
    check_equal(hvd, model)


class FailAtEnd(keras.callbacks.Callback):
    """Raises on one rank, when `fit` is over."""

    def __init__(self, here):
        super().__init__()
        self.here = here

    def on_train_end(self, logs=None):
        if self.here:
            raise OSError("disk full")


def test_a_failure_after_the_last_epoch_is_that_ranks_own(hvd, rank, size):
    used = [FailAtEnd(rank == size - 1), callbacks.JoinCallback()]
    error = outcome(hvd, make_model(), dataset_of(rank, COUNTS["equal"][:size], True), *used)
    assert isinstance(error, OSError) if rank == size - 1 else error is None
    assert hvd.allgather_object(rank) == list(range(size))  # nobody has joined


class StopOne(keras.callbacks.Callback):
    """Ends the training of one rank after the first epoch."""

    def __init__(self, here):
        super().__init__()
        self.here = here

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = self.here


def test_what_makes_no_sense(hvd, rank, size):
    if size == 1:
        return
    counts = COUNTS["rank 0 first"][:size]
    dataset = dataset_of(rank, counts, True)
    used = [callbacks.JoinCallback()] if rank else []
    error = outcome(hvd, make_model(), dataset, *used)
    assert "whether there is a JoinCallback differs: False on rank 0, True on rank 1" in str(error)
    error = outcome(hvd, make_model(), dataset, callbacks.JoinCallback(), StopOne(rank == 0))
    told = "rank 0 ended fit after 1 epochs, rank 1 begins epoch 2"
    assert isinstance(error, ValueError) and told in str(error)
    warm_up = callbacks.LearningRateWarmupCallback(0.1)
    error = outcome(hvd, make_model(), dataset, warm_up, callbacks.JoinCallback())
    assert "needs steps_per_epoch=, the same on every rank" in str(error)
    error = outcome(hvd, make_model(distributed=False), dataset, callbacks.JoinCallback())
    assert "JoinCallback needs a model with a distributed optimizer" in str(error)


def test_a_later_fit_without_it_needs_equal_numbers_of_batches(hvd, rank, size):
    if size == 1:
        return
    dataset, model = dataset_of(rank, COUNTS["rank 0 first"][:size], True), make_model()
    fit(model, dataset, callbacks.JoinCallback(), epochs=1)
    error = outcome(hvd, model, dataset, callbacks.BroadcastGlobalVariablesCallback(0))
    assert isinstance(error, ValueError), error
    assert "rank 0 begins fit with 2 batches an epoch, rank 1 begins fit with 5" in str(error)


def test_a_model_is_freed_after_its_fit():
    """A search over hyperparameters makes many."""
    model = make_model()
    model.fit(dataset_of(0, (2,), True), verbose=0, callbacks=[callbacks.JoinCallback()])
    lives = weakref.ref(model)
    del model
    gc.collect()
    assert lives() is None


@pytest.mark.skipif(IS_KERAS_3, reason="in Keras 3 a rank may have none")
@pytest.mark.parametrize("known", [True, False])
def test_a_rank_without_a_batch_is_named_on_all(hvd, rank, size, known):
    if size == 1:
        return
    counts = (*[2] * (size - 1), 0)
    error = outcome(hvd, make_model(), dataset_of(rank, counts, known), callbacks.JoinCallback())
    if known:  # Keras looks before it begins
        told = "Expected input data to be non-empty"
    else:
        told = f"rank {size - 1} had no batch in epoch 1, and Keras 2 needs one on every rank"
    assert isinstance(error, ValueError if rank == size - 1 else RuntimeError), error
    assert told in str(error)
    assert hvd.allgather_object(rank) == list(range(size))  # the job lives


@pytest.mark.skipif(IS_KERAS_3, reason="in Keras 3 a rank may have none")
def test_a_rank_without_a_batch_in_a_later_epoch_is_named_on_all(hvd, rank, size):
    if size == 1:
        return
    left = iter([2, 0, 0] if rank == size - 1 else [2, 2, 2])
    x, y = data_of(rank, 2)

    def batches():
        yield from list(zip(x, y))[: next(left)]

    signature = [tf.TensorSpec(array.shape[1:]) for array in (x, y)]
    dataset = tf.data.Dataset.from_generator(batches, output_signature=tuple(signature))
    error = outcome(hvd, make_model(), dataset, callbacks.JoinCallback())
    assert isinstance(error, ValueError), error
    assert "in Keras 2 each rank needs a batch in every epoch" in str(error)


@pytest.mark.skipif(not IS_KERAS_3, reason="in Keras 2 every rank needs a batch")
def test_the_root_broadcasts_while_a_rank_has_joined(hvd, rank, size):
    counts = (0, *[2] * (size - 1))
    model = make_model()
    broadcast = callbacks.BroadcastGlobalVariablesCallback(size - 1)
    fitted = [callbacks.JoinCallback(), broadcast]
    model.fit(dataset_of(rank, counts, True), epochs=2, verbose=0, callbacks=fitted)
    everyones = hvd.allgather_object(model.get_weights())
    for theirs in everyones:
        np.testing.assert_array_equal(theirs[0], everyones[0][0])
