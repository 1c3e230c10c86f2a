# SPDX-License-Identifier: Apache-2.0
"""The Estimator toolkit: what a model_fn needs to go from one process to many.

`tf_estimator` is `tf.estimator` under TensorFlow 2.15. Under 2.16 to 2.21 it is as much of it as
works, if tensorflow-estimator 2.15.0 is installed. That is best effort, because it uses private
modules of TensorFlow. `tf_estimator_v1` is `tf.compat.v1.estimator`. Parts that need no Estimator
work without it.
"""

from hvd_tf._internal.compat.estimator import provide_tf_estimator, tf_estimator, tf_estimator_v1
from hvd_tf.estimator.configuration import run_config
from hvd_tf.estimator.directory import model_dir
from hvd_tf.estimator.end_together import EndTogetherHook
from hvd_tf.estimator.evaluation import evaluate
from hvd_tf.estimator.hooks import LearningRateHook, MetricAverageHook
from hvd_tf.estimator.input_sharding import shard_input_fn
from hvd_tf.estimator.scaling import scale_learning_rate, scale_steps
from hvd_tf.estimator.schedules import piecewise, warm_up
from hvd_tf.estimator.train_and_evaluate import train_and_evaluate
from hvd_tf.estimator.training import train

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
    "train",
    "train_and_evaluate",
    "warm_up",
]
