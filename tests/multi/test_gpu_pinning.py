# SPDX-License-Identifier: Apache-2.0
"""pin_gpu, and run_config's GPU: TensorFlow's own rules, on GPUs that are only listed."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import hvd_tf
from hvd_tf._internal import gpu as pinning

RANKS = (1, 3)
GPU = ()  # those that are only listed

v1 = tf.compat.v1
growth_of = tf.config.experimental.get_memory_growth


def name(number):
    return f"/physical_device:GPU:{number}"


def visible():
    return [device.name for device in tf.config.get_visible_devices("GPU")]


@pytest.fixture
def machine(monkeypatch):
    """A function that gives TensorFlow a context with so many GPUs, in which nothing has run."""
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)

    def with_gpus(count):
        fresh = context.Context()
        gpus = [context.PhysicalDevice(name(number), "GPU") for number in range(count)]
        devices = [context.PhysicalDevice("/physical_device:CPU:0", "CPU"), *gpus]
        fresh._physical_devices = devices
        fresh._pluggable_devices = []
        fresh._visible_device_list = list(devices)
        fresh._memory_growth_map = dict.fromkeys(gpus)
        monkeypatch.setattr(context, "_context", fresh)
        return gpus

    return with_gpus


@pytest.fixture
def local(monkeypatch):
    """A function that sets the local rank."""
    return lambda number: monkeypatch.setattr(pinning, "local_rank", lambda: number)


def start():
    """From here on TensorFlow refuses changes of its devices."""
    context.context()._context_handle = object()


def session_options(given=None):
    try:
        config = hvd_tf.estimator.run_config(session_config=given)
    except ImportError as error:
        pytest.skip(str(error))
    return config.session_config.gpu_options


# ---- pin_gpu -----------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_this_ranks_gpu(machine, rank, gpus):
    machine(gpus)
    assert hvd_tf.pin_gpu() == name(rank % gpus)  # the ranks of one host
    assert visible() == [name(rank % gpus)]
    options = context.context().config.gpu_options  # what eager code and plain sessions start with
    assert options.visible_device_list == str(rank % gpus) and options.allow_growth


@pytest.mark.parametrize("local_rank", range(5))
def test_more_ranks_than_gpus(machine, local, local_rank):
    listed = machine(2)
    local(local_rank)
    for _ in range(2):  # the second call changes nothing
        assert hvd_tf.pin_gpu() == name(local_rank % 2)
        assert visible() == [name(local_rank % 2)]
        assert growth_of(listed[local_rank % 2]) is True
        assert growth_of(listed[1 - local_rank % 2]) is None
        assert len(tf.config.get_visible_devices("CPU")) == 1


@pytest.mark.parametrize(("chosen", "expected"), [([2], [2, 2, 2]), ([1, 3], [1, 3, 1])])
def test_of_what_the_user_has_left_visible(machine, local, chosen, expected):
    for local_rank, number in enumerate(expected):
        listed = machine(4)
        local(local_rank)
        tf.config.set_visible_devices([listed[one] for one in chosen], "GPU")
        assert hvd_tf.pin_gpu() == name(number)
        assert visible() == [name(number)] and growth_of(listed[number])
        assert context.context().config.gpu_options.visible_device_list == str(number)


def test_no_gpu(machine):
    if not tf.config.list_physical_devices("GPU"):  # of this machine
        assert hvd_tf.pin_gpu() is None
    machine(0)
    assert hvd_tf.pin_gpu() is None
    listed = machine(2)
    tf.config.set_visible_devices([], "GPU")
    assert hvd_tf.pin_gpu() is None
    assert visible() == [] and growth_of(listed[0]) is None


def test_too_late(machine, local):
    machine(2)
    local(1)
    start()
    with pytest.raises(RuntimeError) as raised:
        hvd_tf.pin_gpu()
    assert str(raised.value) == (
        f"pin_gpu: TensorFlow has started with the GPUs {name(0)}, {name(1)} and cannot be "
        f"restricted to {name(1)} any more: call hvd_tf.pin_gpu() right after hvd_tf.init(), "
        "before anything runs on TensorFlow"
    )
    assert visible() == [name(0), name(1)]


def test_late_with_the_right_gpu(machine, local):
    listed = machine(2)
    local(1)
    tf.config.set_visible_devices(listed[1], "GPU")
    # TensorFlow compares lists, and now the CPU is the last.
    tf.config.set_visible_devices(tf.config.list_physical_devices("CPU"), "CPU")
    start()
    assert hvd_tf.pin_gpu() == name(1)
    assert growth_of(listed[1]) is None  # it was settled
    listed = machine(2)
    assert hvd_tf.pin_gpu() == name(1)
    start()
    assert hvd_tf.pin_gpu() == name(1)
    assert growth_of(listed[1]) is True


@pytest.mark.parametrize(("value", "growth"), [("false", None), ("true", True)])
def test_the_environment_decides_on_growth(machine, local, monkeypatch, value, growth):
    listed = machine(2)
    local(0)
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", value)
    assert hvd_tf.pin_gpu() == name(0)
    assert visible() == [name(0)] and growth_of(listed[0]) is growth


def test_logical_devices_do_not_grow(machine, local):
    listed = machine(2)
    local(1)
    parts = [tf.config.LogicalDeviceConfiguration(memory_limit=1024)] * 2
    tf.config.set_logical_device_configuration(listed[1], parts)
    assert hvd_tf.pin_gpu() == name(1)
    assert visible() == [name(1)] and growth_of(listed[1]) is None
    assert tf.config.get_logical_device_configuration(listed[1]) == parts
    assert not session_options().allow_growth


def test_before_init(machine):
    hvd_tf.allgather_object(None)
    hvd_tf.shutdown()
    try:
        for gpus in (0, 2):
            machine(gpus)
            with pytest.raises(ValueError, match=r"hvd.init"):
                hvd_tf.pin_gpu()
            assert len(visible()) == gpus
    finally:
        hvd_tf.init()


def test_keras_has_it():
    from hvd_tf import keras

    assert keras.pin_gpu is hvd_tf.pin_gpu


# ---- run_config --------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_sessions_and_eager_code_have_the_same_gpu(machine, rank, gpus, capfd):
    listed = machine(gpus)
    for _ in range(2):
        options = session_options()
        assert options.visible_device_list == str(rank % gpus) and options.allow_growth
        assert visible() == [name(rank % gpus)] and growth_of(listed[rank % gpus])
    eager = context.context().config.gpu_options
    assert eager.visible_device_list == options.visible_device_list
    assert "hvd_tf" not in capfd.readouterr().err


def test_sessions_have_what_the_user_has_left_visible(machine, local):
    for local_rank, number in enumerate([1, 3, 1]):
        listed = machine(4)
        local(local_rank)
        tf.config.set_visible_devices([listed[1], listed[3]], "GPU")
        assert session_options().visible_device_list == str(number)
        assert visible() == [name(number)]


def test_a_list_of_the_users_own(machine):
    machine(8)
    given = v1.ConfigProto()
    given.gpu_options.visible_device_list = "5"
    options = session_options(given)
    assert options.visible_device_list == "5" and not options.allow_growth
    assert len(visible()) == 8


def test_memory_of_the_users_own(machine, local, monkeypatch):
    machine(2)
    local(1)
    fraction, grows, parts = v1.ConfigProto(), v1.ConfigProto(), v1.ConfigProto()
    fraction.gpu_options.per_process_gpu_memory_fraction = 0.25
    grows.gpu_options.allow_growth = True
    parts.gpu_options.experimental.virtual_devices.add().memory_limit_mb.append(1024)
    for given, growth in [(fraction, False), (grows, True), (parts, False)]:
        options = session_options(given)
        assert options.visible_device_list == "1" and options.allow_growth is growth
    assert not given.gpu_options.visible_device_list  # theirs is as it was
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "false")
    assert session_options().allow_growth is False
    assert session_options(grows).allow_growth is True


def test_eager_code_that_has_run_keeps_its_gpus(machine, local, capfd):
    machine(2)
    local(1)
    start()
    options = session_options()
    assert options.visible_device_list == "1" and options.allow_growth
    assert visible() == [name(0), name(1)]
    said = capfd.readouterr().err
    assert "hvd_tf: run_config cannot restrict eager code to its GPU: pin_gpu: " in said
    assert "call hvd_tf.pin_gpu() right after hvd_tf.init()" in said


def test_sessions_without_a_gpu(machine):
    machine(0)
    options = session_options()
    assert not options.visible_device_list and not options.allow_growth
