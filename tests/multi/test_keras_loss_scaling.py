# SPDX-License-Identifier: Apache-2.0
"""Loss scaling of Keras around a distributed optimizer, and within one, against one process."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest
import tensorflow as tf
from cases import in_full, is_before_keras_2_15

from hvd_tf import keras as hvd_keras
from hvd_tf.keras import callbacks

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras
IS_KERAS_3 = not hasattr(keras.optimizers.Adam, "compute_gradients")
FAMILIES = [("new", "around"), ("new", "within")]
if not IS_KERAS_3:
    FAMILIES += [("legacy", "around"), pytest.param(("legacy", "within"), marks=in_full)]
ROWS = 4  # of a rank's batch


def loss_scaled(optimizer):
    of_keras = keras.optimizers if IS_KERAS_3 else keras.mixed_precision
    return of_keras.LossScaleOptimizer(optimizer, initial_scale=2.0**10)


# What a program may write: the first is what compile() makes of a policy of mixed precision.
ORDERS = {
    "around": lambda optimizer, **arguments: loss_scaled(
        hvd_keras.DistributedOptimizer(optimizer, **arguments)
    ),
    "within": lambda optimizer, **arguments: hvd_keras.DistributedOptimizer(
        loss_scaled(optimizer), **arguments
    ),
}


@pytest.fixture(params=FAMILIES)
def family_and_order(request):
    return request.param


@pytest.fixture
def optimizers(family_and_order):
    """A module of optimizers."""
    family, _ = family_and_order
    return keras.optimizers if family == "new" else keras.optimizers.legacy


@pytest.fixture
def wrap(family_and_order):
    """A distributed optimizer with loss scaling."""
    return ORDERS[family_and_order[1]]


def make_model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input([3])
    x = keras.layers.Dense(4, activation="tanh")(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def data(size, steps):
    """x [steps, size * ROWS, 3] and y [steps, size * ROWS, 1]."""
    rng = np.random.default_rng(23)
    shapes = ((steps, size * ROWS, width) for width in (3, 1))
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return x, y


def share(rank, arrays):
    return [array[:, rank * ROWS : (rank + 1) * ROWS] for array in arrays]


def fit(model, arrays, *used, **arguments):
    flat = [array.reshape(-1, array.shape[-1]) for array in arrays]
    return model.fit(
        *flat,
        batch_size=arrays[0].shape[1],
        shuffle=False,
        verbose=0,
        callbacks=list(used),
        **arguments,
    )


def trained_alone(optimizers, arrays, rate=0.05, momentum=0.9):
    """The weights of one process without loss scaling."""
    model = make_model()
    model.compile(optimizers.SGD(rate, momentum=momentum), "mse")
    fit(model, arrays)
    return model.get_weights()


def check_equal(got, expected):
    assert len(got) == len(expected)
    for one, other in zip(got, expected):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_ranks_meet_in_fit(hvd, rank, size, optimizers, wrap):
    """Callbacks know the optimizer in both orders. The last rank has a batch less."""
    model = make_model()
    model.compile(wrap(optimizers.SGD(0.05, momentum=0.9)), "mse")
    mine = share(rank, data(size, 3))
    if rank == size - 1:
        with pytest.raises(ValueError, match="do not train together"):
            fit(model, [a[:2] for a in mine], callbacks.BroadcastGlobalVariablesCallback(0))
        fit(model, [a[:2] for a in mine], callbacks.JoinCallback())
    else:
        with pytest.raises(ValueError, match="do not train together"):
            fit(model, mine, callbacks.BroadcastGlobalVariablesCallback(0))
        fit(model, mine, callbacks.JoinCallback())
    for theirs in hvd.allgather_object(model.get_weights()):
        check_equal(theirs, model.get_weights())


# Optimizers of Keras 2 cannot be copied in the other ways.
WAYS_TO_COPY = {
    "config": lambda optimizer: type(optimizer).from_config(optimizer.get_config()),
    **({"copy": copy.copy, "deepcopy": copy.deepcopy} if IS_KERAS_3 else {}),
}


@pytest.mark.parametrize("how", WAYS_TO_COPY)
def test_a_copy_reduces_too(hvd, rank, size, optimizers, wrap, how):
    first = wrap(optimizers.SGD(0.05, momentum=0.9), compression=hvd.Compression.fp16)
    weights = []
    for optimizer in (first, WAYS_TO_COPY[how](first)):
        model = make_model()
        model.compile(optimizer, "mse")
        fit(model, share(rank, data(size, 3)))
        weights.append(model.get_weights())
    check_equal(*weights)
    for theirs in hvd.allgather_object(weights[1]):
        check_equal(theirs, weights[1])


def test_what_a_copy_is_made_of_can_be_saved_without_it(rank, optimizers, wrap):
    config = wrap(optimizers.SGD(0.05)).get_config()
    saved = json.loads(json.dumps(config))
    assert "hvd" not in json.dumps(config) and saved == dict(config)
    assert type(pickle.loads(pickle.dumps(config))) is dict
    loaded = type(loss_scaled(optimizers.SGD(0.05))).from_config(saved)
    assert type(loaded.inner_optimizer).__mro__[0] is optimizers.SGD


def test_a_loaded_model_trains_with_others(hvd, rank, size, optimizers, tmp_path):
    if optimizers is not keras.optimizers and is_before_keras_2_15():
        pytest.skip("this Keras cannot read a .keras file with a legacy optimizer")
    arrays = data(size, 4)
    model = make_model()
    # Keras does not save the state of a legacy optimizer in this format.
    model.compile(ORDERS["around"](optimizers.SGD(0.05)), "mse")
    fit(model, [a[:2] for a in share(rank, arrays)])
    path = str(tmp_path / "model.keras")
    model.save(path)
    # Where one rank alone loads it, the others have theirs as `compile` makes it.
    loaded = hvd_keras.load_model(path) if rank == 0 else model
    fit(loaded, [a[2:] for a in share(rank, arrays)], callbacks.JoinCallback())
    check_equal(loaded.get_weights(), trained_alone(optimizers, arrays, momentum=0.0))


# --- The loss scale is a part of the state --------------------------------------


def scale_variables(model):
    """The loss scale, and the number of steps since it changed."""
    optimizer = model.optimizer
    if IS_KERAS_3:
        return optimizer.dynamic_scale, optimizer.step_counter
    return optimizer._loss_scale.current_loss_scale, optimizer.dynamic_counter


def set_scale(model, scale, steps):
    for variable, value in zip(scale_variables(model), (scale, steps)):
        variable.assign(value)


def scale_of(model):
    return [float(variable.numpy()) for variable in scale_variables(model)]


@pytest.mark.parametrize("callback", ["broadcast", "backup"])
def test_all_start_with_the_scale_of_the_root(
    hvd, rank, size, optimizers, wrap, callback, tmp_path
):
    model = make_model()
    model.compile(wrap(optimizers.SGD(0.05, momentum=0.9)), "mse")
    mine = share(rank, data(size, 1))
    if callback == "broadcast":
        fit(model, mine)
        set_scale(model, 2.0 ** (5 + rank), 10 + rank)
        fit(model, mine, callbacks.BroadcastGlobalVariablesCallback(0))
        # After the first step, which counts.
        assert scale_of(model) == [2.0**5, 11]
        return
    # Only rank 0 has the callback, and what an earlier training left.
    backup = [keras.callbacks.BackupAndRestore(str(tmp_path), delete_checkpoint=False)]
    fit(model, mine, *(backup if rank == 0 else []))
    set_scale(model, 2.0**6, 20 + rank)
    fit(model, mine, *(backup if rank == 0 else []), epochs=2)
    everyones = hvd.allgather_object((scale_of(model), model.get_weights()))
    for scale, weights in everyones:
        assert scale == everyones[0][0]
        check_equal(weights, everyones[0][1])


@pytest.mark.parametrize("passes", [1, 2])
def test_an_elastic_state_has_the_scale(hvd, rank, size, optimizers, wrap, passes):
    model = make_model()
    optimizer = wrap(optimizers.SGD(0.05, momentum=0.9), backward_passes_per_step=passes)
    model.compile(optimizer, "mse")
    state = hvd_keras.elastic.KerasState(model, batch=0)
    set_scale(model, 2.0 ** (5 + rank), rank)
    state.sync()
    assert scale_of(model) == [2.0**5, 0]
    fit(model, share(rank, data(size, 2)))
    state.commit()
    kept = scale_of(model), model.get_weights()
    fit(model, share(rank, data(size, 2)))
    set_scale(model, 8.0, 3)
    state.restore()
    assert scale_of(model) == kept[0] == [2.0**5, 2 / passes]
    check_equal(model.get_weights(), kept[1])


# --- Several passes ------------------------------------------------------------


@pytest.mark.parametrize("compiled", [{}, {"run_eagerly": True}])
def test_several_passes(hvd, rank, size, optimizers, wrap, compiled):
    """The loss scale doubles after each update, and not between the passes of one."""
    passes, updates = 3, 2
    arrays = data(size, passes * updates + 1)
    model = make_model()
    optimizer = wrap(
        optimizers.SGD(0.05, momentum=0.9),
        backward_passes_per_step=passes,
        average_aggregated_gradients=True,
    )
    set_growth_steps(optimizer, 1)
    model.compile(optimizer, "mse", **compiled)
    fit(model, share(rank, arrays))
    # The last pass changes nothing.
    joined = [a[:-1].reshape(updates, passes * size * ROWS, -1) for a in arrays]
    check_equal(model.get_weights(), trained_alone(optimizers, joined))
    assert scale_of(model) == [2.0**12, 0]
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    assert int(inner.iterations.numpy()) == passes * updates + 1


def set_growth_steps(optimizer, steps):
    if IS_KERAS_3:
        optimizer.dynamic_growth_steps = steps
    else:
        optimizer._loss_scale._growth_steps = steps


@pytest.mark.parametrize("overflowing", [0, 1])
def test_an_overflow_in_a_pass(hvd, rank, size, optimizers, wrap, overflowing):
    """On one rank: no rank applies the update, and all halve the loss scale, once."""
    x, y = share(rank, data(size, 4))
    if rank == size - 1:
        y[overflowing] = np.inf
    model = make_model()
    model.compile(wrap(optimizers.SGD(0.05), backward_passes_per_step=2), "mse")
    before = model.get_weights()
    fit(model, (x[:2], y[:2]))
    assert scale_of(model) == [2.0**9, 0]
    for got, expected in zip(model.get_weights(), before):
        np.testing.assert_array_equal(got, expected)
    fit(model, (x[2:], y[2:]))
    assert scale_of(model) == [2.0**9, 1]
    everyones = hvd.allgather_object(model.get_weights())
    assert any((got != old).any() for got, old in zip(everyones[0], before))
    for theirs in everyones:
        assert all((got == other).all() for got, other in zip(theirs, everyones[0]))
