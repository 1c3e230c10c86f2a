# SPDX-License-Identifier: Apache-2.0
"""The Estimator toolkit: what a model_fn needs to go from one process to many.

`tf_estimator` is `tf.estimator` under TensorFlow 2.15, and as much of it as works under 2.16 to
2.21 where tensorflow-estimator 2.15.0 is installed (best effort: it relies on private modules of
TensorFlow); `tf_estimator_v1` is `tf.compat.v1.estimator`. What needs no Estimator works without.
"""

from hvd_tf.compat.estimator import provide_tf_estimator, tf_estimator, tf_estimator_v1
from hvd_tf.estimator.configuration import run_config
from hvd_tf.estimator.directory import model_dir
from hvd_tf.estimator.end_together import EndTogetherHook
from hvd_tf.estimator.evaluation import evaluate
from hvd_tf.estimator.hooks import LearningRateHook, MetricAverageHook
from hvd_tf.estimator.input_sharding import shard_input_fn
from hvd_tf.estimator.scaling import scale_learning_rate, scale_steps
from hvd_tf.estimator.schedules import piecewise, warm_up
from hvd_tf.estimator.train_and_evaluate import train_and_evaluate

__all__ = [
    "EndTogetherHook",
    "LearningRateHook",
    "MetricAverageHook",
    "evaluate",
    "model_dir",
    "piecewise",
    "provide_tf_estimator",
    "run_config",
    "scale_learning_rate",
    "scale_steps",
    "shard_input_fn",
    "tf_estimator",
    "tf_estimator_v1",
    "train_and_evaluate",
    "warm_up",
]
