# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: every optimizer of TF 1, in graphs, eagerly and in tf.functions."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from linear_loss import (
    ROWS,
    STEPS,
    assert_same_weights,
    loss_of,
    make_variables,
    slopes_of,
    trained_alone,
)

import hvd_tf

RANKS = (2,)
IN_FULL = (4, "2x2")

v1 = tf.compat.v1
train = v1.train
OPTIMIZERS = {
    "Adadelta": lambda: train.AdadeltaOptimizer(0.5),
    "Adagrad": lambda: train.AdagradOptimizer(0.3),
    "Adam": lambda: train.AdamOptimizer(0.1),
    "Ftrl": lambda: train.FtrlOptimizer(0.2),
    "GradientDescent": lambda: train.GradientDescentOptimizer(0.1),
    "Momentum": lambda: train.MomentumOptimizer(0.1, 0.9),
    "ProximalAdagrad": lambda: train.ProximalAdagradOptimizer(0.2),
    "ProximalGradientDescent": lambda: train.ProximalGradientDescentOptimizer(0.1),
    "RMSProp": lambda: train.RMSPropOptimizer(0.05),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_graph_training_equals_training_alone(rank, size, kind):
    make_optimizer = OPTIMIZERS[kind]
    # TensorFlow's proximal optimizers have no float64.
    dtype = np.float32 if kind.startswith("Proximal") else np.float64
    with tf.Graph().as_default(), v1.Session() as session:
        variables = make_variables(dtype)
        optimizer = hvd_tf.DistributedOptimizer(make_optimizer())
        assert isinstance(optimizer, train.Optimizer)
        step = train.get_or_create_global_step()
        update = optimizer.minimize(loss_of(rank, *variables), global_step=step)
        session.run(v1.global_variables_initializer())
        for _ in range(STEPS):
            session.run(update)
        assert session.run(step) == STEPS
        alone = trained_alone(size, make_optimizer, dtype=dtype)
        assert_same_weights(session.run(variables), alone)


@pytest.mark.parametrize("kind", ["Adagrad", "Adam", "GradientDescent"])
@pytest.mark.parametrize("in_function", [False, True])
def test_eager_training_equals_training_alone(rank, size, kind, in_function):
    dense = tf.Variable(np.linspace(-1, 1, 4), name="dense")
    table = tf.Variable(np.ones((ROWS, 2)), name="table")
    optimizer = hvd_tf.DistributedOptimizer(OPTIMIZERS[kind](), name=f"eager{in_function}")

    def step():
        optimizer.minimize(lambda: loss_of(rank, dense, table), var_list=[dense, table])

    run = tf.function(step) if in_function else step
    for _ in range(STEPS):
        run()
    expected = trained_alone(size, OPTIMIZERS[kind])
    assert_same_weights([dense.numpy(), table.numpy()], expected)


def test_reference_variables(rank, size):
    """TF 1 behaviour makes such variables. Their gradients are not those of resources."""
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("", use_resource=False):
            variables = make_variables()
        assert variables[0].dtype._is_ref_dtype
        optimizer = hvd_tf.DistributedOptimizer(train.AdagradOptimizer(0.3))
        update = optimizer.minimize(loss_of(rank, *variables))
        session.run(v1.global_variables_initializer())
        for _ in range(STEPS):
            session.run(update)
        expected = trained_alone(size, lambda: train.AdagradOptimizer(0.3))
        assert_same_weights(session.run(variables), expected)


def test_sparse_gradients_stay_sparse_unless_asked(rank):
    with tf.Graph().as_default():
        variables = make_variables()
        for as_dense in (False, True):
            optimizer = hvd_tf.DistributedOptimizer(
                train.GradientDescentOptimizer(0.1), sparse_as_dense=as_dense
            )
            pairs = optimizer.compute_gradients(loss_of(rank, *variables))
            gradient = {v.op.name: g for g, v in pairs}["table"]
            assert isinstance(gradient, tf.IndexedSlices) is not as_dense


def test_arguments_of_compute_gradients_reach_the_optimizer(rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        dense, table = make_variables()
        optimizer = hvd_tf.DistributedOptimizer(train.GradientDescentOptimizer(0.1))
        [(gradient, variable)] = optimizer.compute_gradients(
            loss_of(rank, dense, table),
            var_list=[dense],
            gate_gradients=train.Optimizer.GATE_GRAPH,
            aggregation_method=None,
            colocate_gradients_with_ops=True,
            grad_loss=tf.constant(float(rank), tf.float64),
        )
        assert variable is dense
        session.run(v1.global_variables_initializer())
        expected = np.mean([r * slopes_of(r)[0] for r in range(size)], axis=0)
        np.testing.assert_allclose(session.run(gradient), expected, rtol=1e-12)


def test_variables_without_a_gradient(rank):
    with tf.Graph().as_default():
        dense, table = make_variables()
        v1.get_variable("unused", [2])
        optimizer = hvd_tf.DistributedOptimizer(train.GradientDescentOptimizer(0.1))
        pairs = optimizer.compute_gradients(loss_of(rank, dense, table))
        assert [(v.op.name, g is None) for g, v in pairs][2] == ("unused", True)
        optimizer.apply_gradients(pairs)


def test_everything_else_is_the_wrapped_optimizers(rank):
    with tf.Graph().as_default():
        variables = make_variables()
        wrapped = train.AdamOptimizer(0.25)
        optimizer = hvd_tf.DistributedOptimizer(wrapped)
        optimizer.minimize(loss_of(rank, *variables))
        assert optimizer._optimizer is wrapped and optimizer._lr == 0.25
        assert optimizer.get_name() == "DistributedAdamOptimizer"
        assert optimizer.get_slot_names() == wrapped.get_slot_names() == ["m", "v"]
        slot = optimizer.get_slot(variables[0], "m")
        assert slot is wrapped.get_slot(variables[0], "m") and slot.op.name == "dense/Adam"
        assert optimizer.variables() == wrapped.variables() and len(wrapped.variables()) == 6
        with pytest.raises(AttributeError, match="no_such_thing"):
            optimizer.no_such_thing  # noqa: B018


def test_gradients_can_be_clipped_in_between(rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        dense, table = make_variables()
        optimizer = hvd_tf.DistributedOptimizer(
            train.GradientDescentOptimizer(1.0), sparse_as_dense=True
        )
        gradients, variables = zip(*optimizer.compute_gradients(loss_of(rank, dense, table)))
        clipped, norm = tf.clip_by_global_norm(gradients, 0.5)
        update = optimizer.apply_gradients(zip(clipped, variables))  # an iterator
        session.run(v1.global_variables_initializer())
        before = session.run(dense)
        total, _ = session.run([norm, update])
        mean = np.mean([slopes_of(r)[0] for r in range(size)], axis=0)
        np.testing.assert_allclose(session.run(dense), before - mean * min(1, 0.5 / total))


@pytest.mark.parametrize("name", [None, "mine"])
def test_two_optimizers_for_the_same_variables(rank, size, name):
    """Their gradients are under way at once and must not be mixed up."""
    with tf.Graph().as_default(), v1.Session() as session:
        variables = make_variables()
        optimizers = [
            hvd_tf.DistributedOptimizer(train.GradientDescentOptimizer(0.1), name=name)
            for _ in range(2)
        ]
        gradients = [
            optimizer.compute_gradients(factor * loss_of(rank, *variables))
            for optimizer, factor in zip(optimizers, (1.0, 3.0))
        ]
        # One update runs after the other. TensorFlow adds rows to a variable under a shared lock,
        # whatever use_locking says. So one of two updates at once may be lost.
        first = optimizers[0].apply_gradients(gradients[0])
        with tf.control_dependencies([first]):
            updates = optimizers[1].apply_gradients(gradients[1])
        session.run(v1.global_variables_initializer())
        for _ in range(STEPS):
            session.run(updates)
        weights = session.run(variables)
    assert_same_weights(weights, trained_alone(size, lambda: train.GradientDescentOptimizer(0.4)))


def test_one_optimizer_for_two_losses(rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        dense, table = make_variables()
        optimizer = hvd_tf.DistributedOptimizer(train.GradientDescentOptimizer(1.0))
        loss = loss_of(rank, dense, table)
        one = optimizer.compute_gradients(loss, var_list=[dense])[0][0]
        two = optimizer.compute_gradients(2 * loss, var_list=[dense])[0][0]
        session.run(v1.global_variables_initializer())
        expected = np.mean([slopes_of(r)[0] for r in range(size)], axis=0)
        for _ in range(5):
            a, b = session.run([one, two])
            np.testing.assert_allclose(a, expected, rtol=1e-12)
            np.testing.assert_allclose(b, 2 * expected, rtol=1e-12)


def test_options_reach_the_reduction(rank, size):
    expected = {"sum": np.sum, "groups": np.mean, "compressed": np.mean}
    options = {
        "sum": {"op": hvd_tf.Sum},
        "groups": {"groups": 1, "gradient_predivide_factor": 2.0},
        "compressed": {"compression": hvd_tf.Compression.bf16},
    }
    for case, arguments in options.items():
        with tf.Graph().as_default(), v1.Session() as session:
            dense, table = make_variables()
            optimizer = hvd_tf.DistributedOptimizer(
                train.GradientDescentOptimizer(1.0), sparse_as_dense=True, **arguments
            )
            pairs = optimizer.compute_gradients(loss_of(rank, dense, table))
            session.run(v1.global_variables_initializer())
            gradient = session.run(pairs[0][0])
        want = expected[case]([slopes_of(r)[0] for r in range(size)], axis=0)
        tolerance = 2e-2 if case == "compressed" else 1e-12
        np.testing.assert_allclose(gradient, want, rtol=tolerance, atol=tolerance)


def test_local_variables(rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        dense, table = make_variables()
        optimizer = hvd_tf.DistributedOptimizer(train.GradientDescentOptimizer(1.0))
        optimizer.register_local_var(dense)
        pairs = optimizer.compute_gradients(loss_of(rank, dense, table))
        session.run(v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(pairs[0][0]), slopes_of(rank)[0] / size)


def test_a_loop_in_a_function(rank, size):
    weights = tf.Variable(np.zeros(4), name="weights")
    optimizer = hvd_tf.DistributedOptimizer(train.GradientDescentOptimizer(1.0), name="loop")
    slopes = tf.constant(slopes_of(rank)[0])

    @tf.function
    def steps(count):
        for _ in tf.range(count):
            optimizer.minimize(
                lambda: tf.reduce_sum(weights**2 + weights * slopes), var_list=[weights]
            )

    steps(tf.constant(3))
    expected, mean = np.zeros(4), np.mean([slopes_of(r)[0] for r in range(size)], axis=0)
    for _ in range(3):
        expected -= 2 * expected + mean
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-12)


def test_around_a_loss_scale_optimizer(rank, size):
    """It scales the loss and unscales the gradients before they are reduced."""
    mixed_precision = v1.mixed_precision
    with tf.Graph().as_default(), v1.Session() as session:
        variables = make_variables(np.float32)
        scale = mixed_precision.FixedLossScale(128.0)
        inner = train.GradientDescentOptimizer(0.1)
        scaled = mixed_precision.MixedPrecisionLossScaleOptimizer(inner, scale)
        update = hvd_tf.DistributedOptimizer(scaled).minimize(loss_of(rank, *variables))
        session.run(v1.global_variables_initializer())
        for _ in range(STEPS):
            session.run(update)
        alone = trained_alone(size, lambda: train.GradientDescentOptimizer(0.1), dtype=np.float32)
        assert_same_weights(session.run(variables), alone)


# ---- what it refuses ---------------------------------------------------------------------------


def test_an_optimizer_of_keras_becomes_one_of_keras():
    plain = tf.keras.optimizers.SGD(0.5)
    wrapped = hvd_tf.DistributedOptimizer(plain, op=hvd_tf.Sum)
    assert isinstance(wrapped, tf.keras.optimizers.SGD) and wrapped is not plain
    assert wrapped.process_set is hvd_tf.global_process_set


def test_refused_optimizers():
    with pytest.raises(ValueError, match="must be an optimizer of tf.compat.v1.train"):
        hvd_tf.DistributedOptimizer("sgd")
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="SyncReplicasOptimizer"):
            inner = train.GradientDescentOptimizer(0.1)
            hvd_tf.DistributedOptimizer(train.SyncReplicasOptimizer(inner, 2))


def test_refused_arguments():
    def make(**arguments):
        hvd_tf.DistributedOptimizer(train.GradientDescentOptimizer(0.1), **arguments)

    with pytest.raises(ValueError, match="average_aggregated_gradients"):
        make(op=hvd_tf.Adasum, average_aggregated_gradients=True)
    with pytest.raises(ValueError, match="needs op=Average"):
        make(op=hvd_tf.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="groups"):
        make(groups=0)
    for passes in (0, -1, 1.5):
        with pytest.raises(ValueError, match="backward_passes_per_step must be a whole number"):
            make(backward_passes_per_step=passes)
    for op in (hvd_tf.Average, hvd_tf.Adasum):
        with pytest.raises(ValueError, match="needs a graph"):
            make(backward_passes_per_step=2, op=op)


def test_numbers_of_numpy(rank, size):
    keras_sgd, two = tf.keras.optimizers.SGD(0.1), np.int64(2)
    made = hvd_tf.DistributedOptimizer(keras_sgd, backward_passes_per_step=two, groups=two)
    assert made._agg_helper is not None
    with pytest.raises(ValueError, match=r"must be a whole number of at least 1. Received: 1\.5"):
        hvd_tf.DistributedOptimizer(keras_sgd, backward_passes_per_step=1.5)
    with tf.Graph().as_default():
        plain = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        assert hvd_tf.DistributedOptimizer(plain, backward_passes_per_step=two)._agg_helper
