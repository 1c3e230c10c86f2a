# SPDX-License-Identifier: Apache-2.0
"""Optimizers of Keras, distributed: ranks train as one process does with their batches together."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from cases import in_full

from hvd_tf import keras as hvd_keras

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras
IS_KERAS_3 = not hasattr(keras.optimizers.Adam, "compute_gradients")
FAMILIES = ["new"] if IS_KERAS_3 else ["new", "legacy"]
ROWS = 8  # of a rank's batch

needs_keras_3 = pytest.mark.skipif(not IS_KERAS_3, reason="of Keras 3 only")


@pytest.fixture(params=FAMILIES)
def optimizers(request):
    """A module of optimizers."""
    return keras.optimizers if request.param == "new" else keras.optimizers.legacy


def make_model(seed=0, has_table=True):
    """A table, unless it is not wanted, and two dense layers."""
    keras.utils.set_random_seed(seed)
    words = keras.Input([2], dtype="int32")
    if has_table:
        x = keras.layers.Flatten()(keras.layers.Embedding(10, 4)(words))
    else:
        x = keras.layers.Rescaling(0.1)(words)
    x = keras.layers.Dense(8, activation="tanh")(x)
    return keras.Model(words, keras.layers.Dense(1)(x))


def data(size, steps):
    """Words and targets of all ranks, by step."""
    rng = np.random.default_rng(3)
    words = rng.integers(0, 10, (steps, size * ROWS, 2)).astype(np.int32)
    return words, rng.standard_normal((steps, size * ROWS, 1)).astype(np.float32)


def fit(model, words, wanted, **compiled):
    model.compile(loss="mse", **compiled)
    batch = words.shape[1]
    flat = [array.reshape(-1, *array.shape[2:]) for array in (words, wanted)]
    model.fit(*flat, batch_size=batch, shuffle=False, verbose=0)


def made_dense(optimizer):
    """The same optimizer, which makes the gradients of tables dense before all else.

    A sparse allreduce adds up rows of equal index. Alone, Keras clips rows one by one, and Keras 3
    also applies them so.
    """
    base = type(optimizer)

    class Dense(base):
        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            pairs = [(tf.convert_to_tensor(g), v) for g, v in grads_and_vars]
            return super().apply_gradients(pairs, *args, **kwargs)

        def apply(self, grads, *args, **kwargs):
            return super().apply([tf.convert_to_tensor(g) for g in grads], *args, **kwargs)

    optimizer.__class__ = Dense
    return optimizer


def trained(
    hvd, rank, size, make_optimizer, steps=20, has_table=True, as_dense=IS_KERAS_3, **compiled
):
    """Weights of this rank's model, and those of one process with all batches together."""
    words, wanted = data(size, steps)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    model, alone = make_model(has_table=has_table), make_model(has_table=has_table)
    optimizer = hvd_keras.DistributedOptimizer(make_optimizer())
    fit(model, words[:, mine], wanted[:, mine], optimizer=optimizer, **compiled)
    plain = made_dense(make_optimizer()) if as_dense else make_optimizer()
    fit(alone, words, wanted, optimizer=plain, **compiled)
    return model.get_weights(), alone.get_weights()


def check_equal(got, expected, tolerance=1e-5):
    assert len(got) == len(expected)
    for one, other in zip(got, expected):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


MAKES = {
    "sgd": lambda optimizers: optimizers.SGD(0.05),
    "momentum": lambda optimizers: optimizers.SGD(0.02, momentum=0.9),
    "clipped": lambda optimizers: optimizers.SGD(0.05, clipnorm=0.1),
    "globally clipped": lambda optimizers: optimizers.SGD(0.05, global_clipnorm=0.1),
    "adagrad": lambda optimizers: optimizers.Adagrad(0.05),
}


# The others are those of test_keras_equivalence.py.
@pytest.mark.parametrize(
    "kind",
    [kind if "clipped" in kind else pytest.param(kind, marks=in_full) for kind in MAKES],
)
def test_fit_is_that_of_one_process(hvd, rank, size, optimizers, kind):
    as_dense = IS_KERAS_3 or "clipped" in kind
    check_equal(*trained(hvd, rank, size, lambda: MAKES[kind](optimizers), as_dense=as_dense))


def test_adam_for_50_steps(hvd, rank, size, optimizers):
    got, expected = trained(hvd, rank, size, lambda: optimizers.Adam(0.01), steps=50)
    check_equal(got, expected, 1e-4)


@pytest.mark.parametrize(
    "compiled", [{"run_eagerly": True}, {"steps_per_execution": 2}, {"jit_compile": False}]
)
def test_ways_to_compile(hvd, rank, size, compiled):
    make = MAKES["momentum"]
    got = trained(hvd, rank, size, lambda: make(keras.optimizers), steps=4, **compiled)
    check_equal(*got)


def test_a_loop_of_ones_own(hvd, rank, size, optimizers):
    words, wanted = data(size, 4)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    model, alone = make_model(), make_model()
    optimizer = optimizers.SGD(0.05)
    distributed = hvd_keras.DistributedOptimizer(optimizers.SGD(0.05))

    @tf.function
    def step(words, wanted):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((model(words, training=True) - wanted) ** 2)
        variables = model.trainable_variables
        # Keras 2: it does not reduce a second time. Keras 3: the mean of equal gradients.
        distributed.apply_gradients(zip(tape.gradient(loss, variables), variables))

    for at in range(4):
        step(words[at, mine], wanted[at, mine])
    fit(alone, words, wanted, optimizer=optimizer)
    check_equal(model.get_weights(), alone.get_weights())


def test_sums(hvd, rank, size, optimizers):
    words, wanted = data(size, 4)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    model, alone = make_model(), make_model()
    optimizer = hvd_keras.DistributedOptimizer(optimizers.SGD(0.05), op=hvd_keras.Sum)
    fit(model, words[:, mine], wanted[:, mine], optimizer=optimizer)
    fit(alone, words, wanted, optimizer=optimizers.SGD(0.05 * size))
    check_equal(model.get_weights(), alone.get_weights())


@pytest.mark.parametrize("averages", [True, False])
def test_several_passes(hvd, rank, size, optimizers, averages):
    passes, steps = 3, 7
    words, wanted = data(size, steps)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    model, alone = make_model(), make_model()
    optimizer = hvd_keras.DistributedOptimizer(
        optimizers.SGD(0.05),
        backward_passes_per_step=passes,
        average_aggregated_gradients=averages,
        sparse_as_dense=True,
    )
    fit(model, words[:, mine], wanted[:, mine], optimizer=optimizer)
    assert int(optimizer.iterations.numpy()) == steps
    # Two updates, of three batches each. The last pass changes nothing.
    joined = [array[:6].reshape(2, 3 * size * ROWS, -1) for array in (words, wanted)]
    fit(alone, *joined, optimizer=optimizers.SGD(0.05 * (1 if averages else passes)))
    check_equal(model.get_weights(), alone.get_weights())


@pytest.mark.parametrize("passes", [1, 2])
def test_variables_have_the_names_of_a_plain_optimizer(hvd, size, passes):
    words, wanted = data(1, 2)
    names = []
    for wrap in (
        lambda optimizer: optimizer,
        lambda optimizer: hvd_keras.DistributedOptimizer(
            optimizer, backward_passes_per_step=passes, sparse_as_dense=True
        ),
    ):
        optimizer = wrap(keras.optimizers.SGD(0.1, momentum=0.9))
        fit(make_model(), words, wanted, optimizer=optimizer)
        variables = optimizer.variables
        variables = variables() if callable(variables) else variables
        found = [getattr(v, "path", v.name).split("/") for v in variables]
        # A layer's name ends in a number of its own in each model.
        names.append([[re.sub(r"_\d+|:0", "", part) for part in parts] for parts in found])
    assert names[0] == names[1]


def test_slices_of_several_passes(hvd, optimizers, size):
    if size == 1:
        return
    model = make_model()
    optimizer = hvd_keras.DistributedOptimizer(optimizers.SGD(0.05), backward_passes_per_step=2)
    words, wanted = data(1, 2)
    with pytest.raises(ValueError, match="IndexedSlices.* pass sparse_as_dense=True"):
        fit(model, words, wanted, optimizer=optimizer)


def test_local_layers(hvd, rank, size, optimizers):
    model, alone = make_model(), make_model()
    first, last = model.layers[-2], model.layers[-1]
    optimizer = hvd_keras.PartialDistributedOptimizer(
        optimizers.SGD(0.05), local_layers=[last], scale_local_gradients=False
    )
    words, wanted = data(size, 1)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    fit(model, words[:, mine], wanted[:, mine], optimizer=optimizer)
    # After one step only: later the layers' gradients depend on each other.
    fit(alone, words, wanted, optimizer=optimizers.SGD(0.05))
    check_equal(first.get_weights(), alone.layers[-2].get_weights())
    own = make_model()
    fit(own, words[:, mine], wanted[:, mine], optimizer=optimizers.SGD(0.05))
    check_equal(last.get_weights(), own.layers[-1].get_weights())


def test_ranks_outside_the_set_train_alone(hvd, rank, size, optimizers, others):
    words, wanted = data(size, 3)
    rows = slice(0, ROWS) if rank == 0 else slice(ROWS, size * ROWS)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    model, alone = make_model(), make_model()
    optimizer = hvd_keras.DistributedOptimizer(optimizers.SGD(0.05), process_set=others)
    assert optimizer.process_set is others
    fit(model, words[:, mine], wanted[:, mine], optimizer=optimizer)
    fit(alone, words[:, rows], wanted[:, rows], optimizer=optimizers.SGD(0.05))
    check_equal(model.get_weights(), alone.get_weights())


# --- What it shares with the optimizer that it wraps ---------------------------


def test_the_state_of_a_used_optimizer_is_kept(hvd, rank, size, optimizers):
    words, wanted = data(size, 6)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    model, alone = make_model(), make_model()
    for one in (model, alone):
        fit(one, words[:3], wanted[:3], optimizer=optimizers.SGD(0.02, momentum=0.9))
    distributed = hvd_keras.DistributedOptimizer(model.optimizer)
    assert int(distributed.iterations.numpy()) == 3
    fit(model, words[3:, mine], wanted[3:, mine], optimizer=distributed)
    fit(alone, words[3:], wanted[3:], optimizer=alone.optimizer)
    check_equal(model.get_weights(), alone.get_weights())


def test_a_template_for_several_models(hvd, rank, size, optimizers):
    words, wanted = data(size, 6)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    template = optimizers.SGD(0.02, momentum=0.9)
    models = [make_model(), make_model()]
    for model, steps in zip(models, (slice(0, 2), slice(2, 6))):
        distributed = hvd_keras.DistributedOptimizer(template)
        fit(model, words[steps, mine], wanted[steps, mine], optimizer=distributed)
        alone = make_model()
        fit(alone, words[steps], wanted[steps], optimizer=optimizers.SGD(0.02, momentum=0.9))
        check_equal(model.get_weights(), alone.get_weights())
        assert int(distributed.iterations.numpy()) == steps.stop - steps.start
        assert len(tf.nest.flatten(distributed.variables)) == len(
            tf.nest.flatten(alone.optimizer.variables)
        )


def test_configuration_and_copies(hvd, rank, size, optimizers):
    plain = optimizers.SGD(0.05, momentum=0.5, name="mine")
    distributed = hvd_keras.DistributedOptimizer(plain)
    assert isinstance(distributed, optimizers.SGD)
    assert type(distributed).__name__ == "SGD"
    assert distributed.get_config() == plain.get_config()
    again = type(distributed).from_config(distributed.get_config())
    words, wanted = data(size, 3)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    model, alone = make_model(), make_model()
    fit(model, words[:, mine], wanted[:, mine], optimizer=again)
    fit(alone, words, wanted, optimizer=optimizers.SGD(0.05, momentum=0.5))
    check_equal(model.get_weights(), alone.get_weights())


def test_checkpoints_fit_with_and_without(hvd, rank, size, optimizers, tmp_path):
    words, wanted = data(size, 4)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    model = make_model()
    optimizer = hvd_keras.DistributedOptimizer(optimizers.SGD(0.02, momentum=0.9))
    fit(model, words[:2, mine], wanted[:2, mine], optimizer=optimizer)
    path = tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(tmp_path / "c"))
    alone = make_model(seed=1)
    plain = optimizers.SGD(0.02, momentum=0.9)
    tf.train.Checkpoint(model=alone, optimizer=plain).restore(path)
    other = make_model(seed=2)
    again = hvd_keras.DistributedOptimizer(optimizers.SGD(0.02, momentum=0.9))
    tf.train.Checkpoint(model=other, optimizer=again).restore(path)
    fit(alone, words[2:], wanted[2:], optimizer=plain)
    fit(other, words[2:, mine], wanted[2:, mine], optimizer=again)
    assert int(again.iterations.numpy()) == int(plain.iterations.numpy()) == 4
    check_equal(other.get_weights(), alone.get_weights())


def test_a_saved_model_has_a_plain_optimizer(hvd, rank, size, tmp_path):
    words, wanted = data(1, 2)
    model = make_model()
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.01))
    fit(model, words, wanted, optimizer=optimizer)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.Adam
    check_equal(loaded.get_weights(), model.get_weights(), 0)


def test_the_learning_rate_is_that_of_both(hvd):
    plain = keras.optimizers.SGD(0.05)
    distributed = hvd_keras.DistributedOptimizer(plain)
    distributed.learning_rate = 0.25
    assert float(plain.learning_rate.numpy()) == 0.25


# --- Keras 3 -------------------------------------------------------------------


@needs_keras_3
@pytest.mark.parametrize(
    "arguments",
    [
        {"use_ema": True, "ema_overwrite_frequency": 2},
        {"weight_decay": 0.1},
        {"loss_scale_factor": 1024.0},
        {"gradient_accumulation_steps": 2},
    ],
)
def test_options_of_keras_3(hvd, rank, size, arguments):
    make = lambda: keras.optimizers.SGD(0.05, **arguments)  # noqa: E731
    # Keras cannot unscale the gradient of a table.
    has_table = "loss_scale_factor" not in arguments
    check_equal(*trained(hvd, rank, size, make, steps=6, has_table=has_table))


@needs_keras_3
def test_loss_scaling_where_one_rank_overflows(hvd, rank, size):
    keras.utils.set_random_seed(0)
    inputs = keras.Input([3])
    outputs = keras.layers.Dense(1, dtype="mixed_float16")(inputs)
    model = keras.Model(inputs, keras.layers.Activation("linear", dtype="float32")(outputs))
    inner = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.05))
    optimizer = keras.optimizers.LossScaleOptimizer(inner)
    model.compile(optimizer, "mse")
    before = model.get_weights()
    x = np.ones((4, 3), np.float32)
    bad = np.full((4, 1), np.inf if rank == size - 1 else 1.0, np.float32)
    model.train_on_batch(x, bad)
    check_equal(model.get_weights(), before, 0)  # skipped on all ranks
    model.train_on_batch(x, np.ones((4, 1), np.float32))
    everyones = hvd.allgather_object(model.get_weights())
    assert any((a != b).any() for a, b in zip(model.get_weights(), before))
    for theirs in everyones:
        check_equal(theirs, everyones[0], 0)


@needs_keras_3
def test_xla_is_refused_where_it_is_asked_for(hvd, size):
    if size == 1:
        return
    words, wanted = data(1, 1)
    with pytest.raises(ValueError, match="pass jit_compile=False"):
        optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.05))
        fit(make_model(), words, wanted, optimizer=optimizer, jit_compile=True)


# --- What makes no sense -------------------------------------------------------


def with_passes_of_its_own(optimizer):
    optimizer.gradient_accumulation_steps = 3  # Keras 3 has an argument for it
    return optimizer


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hvd_keras.DistributedOptimizer("sgd"), "an optimizer of Keras. Received: 'sgd'"),
        (
            lambda: hvd_keras.DistributedOptimizer(
                hvd_keras.DistributedOptimizer(keras.optimizers.SGD())
            ),
            "distributed already: wrap it once",
        ),
        (lambda: hvd_keras.DistributedOptimizer(keras.optimizers.SGD(), op=3), "op must be"),
        (
            lambda: hvd_keras.DistributedOptimizer(
                keras.optimizers.SGD(), op=hvd_keras.Sum, gradient_predivide_factor=2.0
            ),
            "needs op=Average",
        ),
        (
            lambda: hvd_keras.DistributedOptimizer(
                keras.optimizers.SGD(), backward_passes_per_step=0
            ),
            "at least 1. Received: 0",
        ),
        (
            lambda: hvd_keras.DistributedOptimizer(
                with_passes_of_its_own(keras.optimizers.SGD()), backward_passes_per_step=2
            ),
            "step=2 of an optimizer that has gradient_accumulation_steps=3",
        ),
        (
            lambda: hvd_keras.PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=[3]),
            "a Keras layer or a list of them. Received: 3",
        ),
    ],
)
def test_arguments_that_make_no_sense(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_strategy_is_refused(hvd):
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        model = make_model()
        optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.05))
    words, wanted = data(1, 1)
    with pytest.raises(ValueError, match="leave the strategy out"):
        fit(model, words, wanted, optimizer=optimizer)
