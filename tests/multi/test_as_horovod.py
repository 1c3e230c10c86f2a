# SPDX-License-Identifier: Apache-2.0
"""The modules of Horovod: every public name with its arguments, and scripts that use them."""

from __future__ import annotations

import importlib
import inspect

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf

RANKS = (2,)
IN_FULL = (3,)

BASICS = """init shutdown is_initialized size local_size cross_size rank local_rank cross_rank
is_homogeneous mpi_threads_supported mpi_enabled gloo_enabled mpi_built gloo_built ddl_built
ccl_built cuda_built rocm_built nccl_built start_timeline stop_timeline""".split()

NAMES = {
    "horovod": ["run", "__version__"],
    "horovod.tensorflow": [
        *BASICS,
        *"""size_op process_set_included_op local_size_op rank_op local_rank_op Average Sum Adasum
        Min Max Product ProcessSet global_process_set add_process_set remove_process_set
        _executing_eagerly _make_subgraph _cache vars_to_refs refs_to_vars split_list
        check_extension handle_average_backwards_compatibility check_num_rank_power_of_2
        LocalGradientAggregationHelper _make_allreduce_grads_fn _allreduce _grouped_allreduce
        _reducescatter _grouped_reducescatter _allreduce_cond _grouped_allreduce_cond elastic
        mpi_ops util compression functions gpu_available BroadcastGlobalVariablesHook Compression
        SyncBatchNormalization""".split(),
    ],
    "horovod.tensorflow.mpi_ops": [*BASICS, "_basics", "_allreduce", "allgather", "broadcast"],
    "horovod.tensorflow.compression": ["Compression", "Compressor", "NoneCompressor"],
    "horovod.tensorflow.functions": ["broadcast_object", "allgather_object"],
    "horovod.tensorflow.util": ["_executing_eagerly", "_cache", "vars_to_refs"],
    "horovod.tensorflow.gradient_aggregation": ["LocalGradientAggregationHelper"],
    "horovod.tensorflow.gradient_aggregation_eager": ["LocalGradientAggregationHelperEager"],
    "horovod.tensorflow.sync_batch_norm": ["SyncBatchNormalization"],
    "horovod.tensorflow.elastic": ["run", "run_fn", "TensorFlowKerasState"],
    "horovod.tensorflow.keras": [*BASICS, "Average", "Sum", "Compression", "ProcessSet"],
    "horovod.tensorflow.keras.callbacks": ["MetricAverageCallback", "BestModelCheckpoint"],
    "horovod.tensorflow.keras.elastic": ["KerasState", "TensorFlowKerasState", "run"],
    "horovod.keras": [*BASICS, "Average", "Sum", "Adasum", "PartialDistributedOptimizer"],
    "horovod.keras.callbacks": ["LearningRateWarmupCallback"],
    "horovod.keras.elastic": ["TensorFlowKerasState", "UpdateEpochStateCallback"],
    "horovod._keras": ["create_distributed_optimizer"],
    "horovod._keras.callbacks": ["BroadcastGlobalVariablesCallback"],
    "horovod._keras.elastic": ["CommitStateCallback"],
    "horovod.common.util": ["gpu_available", "num_rank_is_power_2", "get_ext_suffix"],
    "horovod.common.exceptions": ["HorovodInternalError", "HorovodVersionMismatchError"],
    "horovod.common.basics": ["HorovodBasics"],
    "horovod.common.process_sets": ["ProcessSet", "global_process_set"],
    "horovod.common.elastic": ["State", "ObjectState", "run_fn", "HorovodInternalError"],
}

OPTIMIZER = "device_dense device_sparse compression sparse_as_dense"
# The arguments in their order, which callers may rely on. More may follow, with defaults.
ARGUMENTS = {
    "horovod.tensorflow": {
        "allreduce": "tensor average device_dense device_sparse compression op prescale_factor "
        "postscale_factor name process_set ignore_name_scope",
        "grouped_allreduce": "tensors average device_dense device_sparse compression op "
        "prescale_factor postscale_factor process_set ignore_name_scope name",
        "allgather": "tensor name ignore_name_scope process_set",
        "grouped_allgather": "tensors name ignore_name_scope process_set",
        "broadcast": "tensor root_rank name ignore_name_scope process_set",
        "broadcast_": "variables root_rank name process_set",
        "alltoall": "tensor splits name ignore_name_scope process_set",
        "reducescatter": "tensor device_dense compression op name process_set ignore_name_scope "
        "prescale_factor postscale_factor",
        "grouped_reducescatter": "tensors device_dense compression op process_set "
        "prescale_factor postscale_factor",
        "join": "",
        "broadcast_variables": "variables root_rank process_set inplace",
        "broadcast_global_variables": "root_rank",
        "broadcast_object": "obj root_rank session name process_set",
        "broadcast_object_fn": "root_rank session name process_set",
        "allgather_object": "obj session name process_set",
        "DistributedOptimizer": f"optimizer name use_locking {OPTIMIZER} "
        "backward_passes_per_step op gradient_predivide_factor average_aggregated_gradients "
        "num_groups groups process_set scale_local_gradients",
        "DistributedGradientTape": f"gradtape {OPTIMIZER} op gradient_predivide_factor num_groups "
        "groups process_set scale_local_gradients",
        "PartialDistributedGradientTape": f"gradtape {OPTIMIZER} op gradient_predivide_factor "
        "num_groups groups process_set local_layers scale_local_gradients",
        "start_timeline": "file_path mark_cycles",
    },
    "horovod.tensorflow.mpi_ops": {
        "_reducescatter": "tensor name op ignore_name_scope process_set prescale_factor "
        "postscale_factor",
        "_grouped_reducescatter": "tensors name op ignore_name_scope process_set prescale_factor "
        "postscale_factor",
    },
    "horovod.tensorflow.keras": {
        "DistributedOptimizer": f"optimizer name {OPTIMIZER} gradient_predivide_factor op "
        "backward_passes_per_step average_aggregated_gradients num_groups groups process_set "
        "scale_local_gradients",
        "PartialDistributedOptimizer": f"optimizer name {OPTIMIZER} gradient_predivide_factor op "
        "backward_passes_per_step average_aggregated_gradients groups process_set local_layers "
        "scale_local_gradients",
        "broadcast_global_variables": "root_rank",
        "allreduce": "value name average prescale_factor postscale_factor op compression",
        "allgather": "value name",
        "broadcast": "value root_rank name",
        "reducescatter": "value name op",
        "load_model": "filepath custom_optimizers custom_objects compression legacy_opts",
    },
    "horovod.keras": {
        "DistributedOptimizer": f"optimizer name {OPTIMIZER} gradient_predivide_factor op "
        "num_groups groups",
        "PartialDistributedOptimizer": f"optimizer name {OPTIMIZER} gradient_predivide_factor op "
        "groups process_set local_layers scale_local_gradients",
        "allreduce": "value name average prescale_factor postscale_factor op compression",
    },
    "horovod.tensorflow.keras.callbacks": {
        "BroadcastGlobalVariablesCallback": "root_rank device local_variables",
        "MetricAverageCallback": "device",
        "LearningRateScheduleCallback": "initial_lr multiplier start_epoch end_epoch staircase "
        "momentum_correction steps_per_epoch",
        "LearningRateWarmupCallback": "initial_lr warmup_epochs momentum_correction "
        "steps_per_epoch verbose",
        "BestModelCheckpoint": "monitor verbose save_weights_only mode save_freq",
    },
    "horovod.tensorflow.elastic": {
        "TensorFlowState": "variables session",
        "TensorFlowKerasState": "model optimizer backend",
    },
    "horovod.tensorflow.gradient_aggregation_eager": {
        "LocalGradientAggregationHelperEager": "backward_passes_per_step allreduce_func "
        "sparse_as_dense average_aggregated_gradients process_set scale_local_gradients",
    },
    "horovod.common.elastic": {"run_fn": "func reset"},
    "horovod.tensorflow.keras.elastic": {
        "KerasState": "model optimizer",
        "CommitStateCallback": "state batches_per_commit",
        "UpdateBatchStateCallback": "state",
        "UpdateEpochStateCallback": "state",
    },
}


@pytest.fixture(autouse=True)
def installed():
    hvd_tf.install_as_horovod()
    hvd_tf.install_as_horovod()  # does nothing


@pytest.mark.parametrize("module", NAMES)
def test_names(module):
    found = importlib.import_module(module)
    assert [name for name in NAMES[module] if not hasattr(found, name)] == []


def test_import_of_all_names():
    found = {}
    exec("from horovod.tensorflow import *", found)
    names = [name for name in NAMES["horovod.tensorflow"] if not name.startswith("_")]
    assert [name for name in names if name not in found] == []


@pytest.mark.parametrize("module", ARGUMENTS)
def test_arguments(module):
    found = importlib.import_module(module)
    for name, expected in ARGUMENTS[module].items():
        arguments = inspect.signature(getattr(found, name)).parameters
        names, count = list(arguments), len(expected.split())
        assert names[:count] == expected.split(), f"{name}: {names}"
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        for more in list(arguments.values())[count:]:
            assert more.default is not more.empty or more.kind in variadic, f"{name}: {more}"


def test_it_is_hvd_tf(hvd, rank, size):
    import horovod.tensorflow as horovod

    assert horovod.DistributedOptimizer is hvd.DistributedOptimizer
    assert horovod.SyncBatchNormalization is hvd.SyncBatchNormalization
    assert horovod.mpi_ops._basics.rank() == rank
    everyones = horovod.mpi_ops._basics._get_process_set_ids_and_ranks()
    assert everyones[0] == list(range(size))
    assert not hasattr(horovod, "data")
    with pytest.raises(ImportError, match="let hvd_tf.data give each rank its share"):
        importlib.import_module("horovod.tensorflow.data")


def test_packages_know_a_distributed_optimizer(hvd, tmp_path):
    import horovod.keras as horovod_keras

    keras = tf.keras
    optimizer = horovod_keras.DistributedOptimizer(keras.optimizers.SGD(0.5))
    assert str(optimizer).startswith("<horovod._keras.SGD object at 0x")
    assert optimizer.__module__ == "horovod._keras"
    assert "horovod" in str(horovod_keras.DistributedOptimizer(keras.optimizers.Adam()))
    of_graphs = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    assert str(of_graphs).startswith("<horovod.tensorflow._DistributedOptimizer object at 0x")
    # Files have Keras' own.
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.SGD
    np.testing.assert_allclose(float(loaded.optimizer.learning_rate), 0.5)


# As docs/migrating_from_horovod.md says, these are there with hvd_tf.as_horovod only.
OF_HOROVOD_ONLY = {"mpi_ops", "util", "refs_to_vars", "vars_to_refs"}


def test_hvd_tf_itself_has_the_names():
    horovod = importlib.import_module("horovod.tensorflow")
    names = {name for name in NAMES["horovod.tensorflow"] if not name.startswith("_")}
    for name in names - OF_HOROVOD_ONLY:
        found = getattr(hvd_tf, name)
        assert found is getattr(horovod, name) or inspect.ismodule(found), name
        assert name in dir(hvd_tf)


def test_helpers_of_hvd_tf(hvd):
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    assert hvd.gpu_available("tensorflow") is has_gpu
    assert hvd.gpu_available("torch") is False
    assert hvd.check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__) is None
    assert [hvd.check_num_rank_power_of_2(n) for n in (0, 1, 6, 16)] == [False, True, False, True]
    assert hvd.split_list(list("abcde"), 2) == [["a", "b", "c"], ["d", "e"]]


def test_helpers(hvd, rank, size):
    from horovod.common import util
    from horovod.tensorflow import _allreduce_cond, _cache, refs_to_vars, vars_to_refs
    from horovod.tensorflow.mpi_ops import _allreduce, _grouped_reducescatter, _reducescatter

    assert [util.num_rank_is_power_2(n) for n in (0, 1, 3, 8)] == [False, True, False, True]
    assert util.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
    with util.env(HVD_TEST_ENV="1"):
        pass
    versions = [("2.15.1", "2.4.0"), ("2.4.0", "2.4.0"), ("2.4.0rc1", "2.4.0")]
    assert [util.is_version_greater_equal_than(*v) for v in versions] == [True, True, False]
    for wrong in [("2.15.1", "2.4"), (2, "2.4.0")]:
        with pytest.raises(ValueError, match="pass "):
            util.is_version_greater_equal_than(*wrong)
    with pytest.warns(UserWarning, match="tensorflow 1.0.0 is installed"):
        util.check_installed_version("tensorflow", "1.0.0")
    with pytest.raises(ImportError, match="tensorflow 1.0.0 is installed"):
        util.check_installed_version("tensorflow", "1.0.0", KeyError())
    choose = util.get_average_backwards_compatibility_fun(hvd)
    assert [choose(None, None), choose(hvd.Sum, None)] == [hvd.Average, hvd.Sum]
    variables = [tf.Variable(1.0), tf.Variable(2.0)]
    assert refs_to_vars(vars_to_refs(variables))[1] is variables[1]
    calls = []
    once = _cache(lambda x: calls.append(x) or x)
    assert (once(1), once(1), calls) == (1, 1, [1])
    assert _allreduce(tf.constant([1.0]), name="sum").numpy() == [size]
    # Unlike those without the underscore, these add up.
    assert _reducescatter(tf.ones([size]), "rows").numpy() == [size]
    assert _reducescatter(tf.ones([size]), "mean", hvd.Average).numpy() == [1]
    first, second = _grouped_reducescatter([tf.ones([size]), tf.ones([size, 2])], "parts")
    assert (first.numpy().tolist(), second.numpy().tolist()) == ([size], [[size] * 2])
    assert _grouped_reducescatter([tf.ones([size])], "some", hvd.Sum, True)[0].numpy() == [size]
    mean = _allreduce_cond(tf.constant([float(rank)]), op=hvd.Average, name="mean")
    assert mean.numpy() == [(size - 1) / 2]


def test_gradients_of_several_passes(hvd, rank, size):
    from horovod.tensorflow import LocalGradientAggregationHelper, _make_allreduce_grads_fn

    reduce = _make_allreduce_grads_fn("helper", "", "", None, False, hvd.Sum, 1.0, None)
    helper = LocalGradientAggregationHelper(2, reduce, False, False)
    variable = tf.Variable([0.0])
    first = helper.compute_gradients([tf.constant([1.0 + rank])], [variable])
    assert first[0].numpy() == [1.0 + rank]
    second = helper.compute_gradients([tf.constant([10.0])], [variable])
    assert second[0].numpy() == [sum(11.0 + r for r in range(size))]


@pytest.mark.parametrize("scales", [True, False])
def test_local_gradients_of_several_passes(hvd, rank, size, scales):
    from horovod.tensorflow import LocalGradientAggregationHelper, _make_allreduce_grads_fn

    reduce = _make_allreduce_grads_fn("local", "", "", None, False, hvd.Sum, 1.0, None)
    helper = LocalGradientAggregationHelper(
        2, reduce, False, False, scale_local_gradients=scales, name="local"
    )
    shared, own = tf.Variable([0.0]), tf.Variable([0.0])
    helper.register_local_var(own)
    for _ in range(2):
        gradients = [tf.constant([1.0 + rank]), tf.constant([3.0 + rank])]
        found = helper.compute_gradients([gradients[1], gradients[0]], [own, shared])
    assert found[1].numpy() == [sum(2.0 + 2 * r for r in range(size))]
    expected = (6.0 + 2 * rank) / (size if scales else 1)
    np.testing.assert_allclose(found[0].numpy(), [expected], rtol=1e-6)


def test_attributes_that_programs_look_at(hvd, rank, size):
    variable = tf.Variable([1.0])
    optimizers = [hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))]
    optimizers.append(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)))
    for optimizer in optimizers:
        assert optimizer.process_set is hvd.global_process_set
        assert optimizer._agg_helper is None and list(optimizer._local_vars) == []
        optimizer.register_local_var(variable)
        assert len(optimizer._local_vars) == 1
    assert optimizers[1].scale_local_gradients is True
    other = tf.Variable([2.0])
    (reduced,) = optimizers[0]._allreduce_grads([tf.constant([float(rank)])], [other])
    assert reduced.numpy() == [(size - 1) / 2]
    several = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), backward_passes_per_step=2)
    assert several._agg_helper is not None
    with tf.Graph().as_default():
        plain = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        several = hvd.DistributedOptimizer(plain, backward_passes_per_step=2)
        assert several._agg_helper is not None


def test_a_script_with_a_tape(hvd, rank, size):
    """As Horovod's examples for TensorFlow 2 are written."""
    import horovod.tensorflow as horovod

    horovod.init()
    model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.01 * horovod.size())
    rng = np.random.default_rng(rank)

    @tf.function
    def step(x, y, first):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        tape = horovod.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    for i in range(3):
        x = rng.standard_normal((4, 2)).astype(np.float32)
        step(x, x.sum(axis=1, keepdims=True), i == 0)
        if i == 0:
            variables = optimizer.variables
            horovod.broadcast_variables(model.variables, root_rank=0)
            horovod.broadcast_variables(
                variables() if callable(variables) else variables, root_rank=0
            )
    everyones = hvd.allgather_object(model.get_weights())
    for theirs in everyones:
        np.testing.assert_array_equal(theirs[0], everyones[0][0])


def test_a_script_with_fit(hvd, rank, size):
    """As its examples for Keras are written."""
    import horovod.tensorflow.keras as horovod

    model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)])
    scaled_lr = 0.01 * horovod.size()
    optimizer = horovod.DistributedOptimizer(
        tf.keras.optimizers.SGD(scaled_lr), backward_passes_per_step=1
    )
    model.compile(loss="mse", optimizer=optimizer, metrics=["mae"])
    callbacks = [
        horovod.callbacks.BroadcastGlobalVariablesCallback(0),
        horovod.callbacks.MetricAverageCallback(),
        horovod.callbacks.LearningRateWarmupCallback(
            initial_lr=scaled_lr, warmup_epochs=1, verbose=1
        ),
    ]
    x = np.random.default_rng(rank).standard_normal((8, 2)).astype(np.float32)
    y = x.sum(axis=1, keepdims=True)
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
    everyones = hvd.allgather_object(model.get_weights())
    for theirs in everyones:
        np.testing.assert_array_equal(theirs[0], everyones[0][0])


def test_horovod_keras_averages_by_default(hvd, rank, size):
    import horovod.keras as horovod

    mean = (size - 1) / 2
    assert np.asarray(horovod.allreduce(float(rank), name="mean")) == mean
    assert np.asarray(horovod.allreduce(float(rank), op=horovod.Sum, name="sum")) == mean * size
