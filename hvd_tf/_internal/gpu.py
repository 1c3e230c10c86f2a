# SPDX-License-Identifier: Apache-2.0
"""pin_gpu: which GPU is this rank's, and how TensorFlow is restricted to it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Optional

import tensorflow as tf

from hvd_tf._internal.runtime import local_rank

__all__ = ["growth_is_open", "own_gpu", "pin_gpu"]

_FORCE_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


def pin_gpu() -> Optional[str]:
    """Gives this rank a GPU of its own, whose memory TensorFlow takes as it is needed.

    Call it right after `init`, before anything runs on TensorFlow. Of the GPUs that are visible to
    TensorFlow, number `local_rank`, modulo how many they are, stays the only visible one. So one
    that the program or CUDA_VISIBLE_DEVICES has chosen for the rank is kept. Where ranks outnumber
    GPUs, some share one. Without a GPU it does nothing, and a second call changes nothing.

    Eager code, `tf.function`, Keras and sessions without a config follow. A session with a config
    needs `gpu_options.visible_device_list` there, as `hvd_tf.estimator.run_config` sets it.

    Memory growth is left as it is if TF_FORCE_GPU_ALLOW_GROWTH is "false", if the GPU has a logical
    device configuration, or if TensorFlow uses the GPU already.

    Returns:
      The name of the physical device, such as "/physical_device:GPU:1". None: no GPU is visible.

    Raises:
      ValueError: `init` was not called.
      RuntimeError: TensorFlow uses its devices already, and this rank's GPU is not the only
        visible one.
    """
    gpu = own_gpu()
    if gpu is None:
        return None
    _hide_others(gpu)
    if growth_is_open(gpu):
        with suppress(RuntimeError):  # it is in use
            tf.config.experimental.set_memory_growth(gpu, True)
    return str(gpu.name)


def own_gpu() -> Optional[tf.config.PhysicalDevice]:
    """This rank's GPU among the visible ones, or None where none is visible.

    Raises:
      ValueError: `init` was not called.
    """
    number = local_rank()
    visible = tf.config.get_visible_devices("GPU")
    return visible[number % len(visible)] if visible else None


def growth_is_open(gpu: tf.config.PhysicalDevice) -> bool:
    """Whether nothing that the user has set speaks against memory growth."""
    if os.environ.get(_FORCE_GROWTH) == "false":
        return False
    return tf.config.get_logical_device_configuration(gpu) is None


def _hide_others(gpu: tf.config.PhysicalDevice) -> None:
    visible = tf.config.get_visible_devices("GPU")
    if visible == [gpu]:
        return
    try:
        tf.config.set_visible_devices([gpu], "GPU")
    except RuntimeError as error:
        names = ", ".join(device.name for device in visible)
        raise RuntimeError(
            f"pin_gpu: TensorFlow has started with the GPUs {names} and cannot be restricted to "
            f"{gpu.name} any more: call hvd_tf.pin_gpu() right after hvd_tf.init(), before "
            "anything runs on TensorFlow"
        ) from error
