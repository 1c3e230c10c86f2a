# SPDX-License-Identifier: Apache-2.0
"""Wide-and-deep as a custom model_fn: will the flight be late?

The wide part is one weight for each hashed category and each hashed cross of categories; the deep
part is one embedding per category and the numbers, through two dense layers. Every lookup is a
gather from a variable, so the gradients of all tables are IndexedSlices.

The day is among the wide part's categories although the days to come are in no training set: what
made a day bad and is not in the data (storms elsewhere, a strike) goes into its own weights while
training, and the other weights are left with what holds on any day. A new day has weights near 0.

What is evaluated is the moving average of the weights over the last steps. The weights of one step
lean towards its last batches, so that AUC and log loss would jump between evaluations.

The hidden layers are smooth (swish): where relu has its kink, the rounding of a sum decides whether
a record counts, and two runs that add in another order drift apart.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
PRIME = 2**31 - 1  # crosses are hashed into 31 bits, as the categories are

# field -> (rows of its embedding table, width of a row)
EMBEDDINGS = {
    "carrier": (64, 16),
    "origin": (16, 16),
    "dest": (512, 16),
    "tailnum": (8192, 16),
    "flight": (8192, 16),
    "weekday": (32, 8),
    "dep_hour": (128, 16),
    "arr_hour": (128, 16),
    "model": (512, 8),
}
# single fields and crosses of the wide part
CROSSES = (
    ("carrier",), ("dest",), ("tailnum",), ("flight",), ("weekday",), ("dep_hour",), ("arr_hour",),
    ("origin", "dep_hour"), ("carrier", "origin"), ("carrier", "dest"), ("dest", "dep_hour"),
    ("weekday", "dep_hour"), ("carrier", "origin", "dep_hour"),
    ("day",), ("day", "origin"), ("day", "origin", "dep_hour"),
)  # fmt: skip
WIDE_ROWS = 1 << 14  # rows for each entry of CROSSES, all in one table
HIDDEN = (256, 128)
AVERAGED = 0.99  # what each step keeps of the average; less in the first hundreds

Params = dict[str, Any]


def column(categorical: tf.Tensor, fields: list[str], name: str) -> tf.Tensor:
    """int64 [b]: the hashes of one field."""
    return tf.cast(categorical[:, fields.index(name)], tf.int64)


def crossed(categorical: tf.Tensor, fields: list[str], names: tuple[str, ...]) -> tf.Tensor:
    """int64 [b]: one hash for the combination of the fields."""
    value = column(categorical, fields, names[0])
    for name in names[1:]:
        value = (value * 1000003 + column(categorical, fields, name)) % PRIME
    return value


def wide_part(categorical: tf.Tensor, fields: list[str]) -> tf.Tensor:
    """float32 [b]: the sum of the weights of the record's categories and crosses."""
    rows = tf.stack(
        [
            crossed(categorical, fields, names) % WIDE_ROWS + i * WIDE_ROWS
            for i, names in enumerate(CROSSES)
        ],
        axis=1,
    )
    table = v1.get_variable(
        "wide/weights", [len(CROSSES) * WIDE_ROWS, 1], initializer=tf.zeros_initializer()
    )
    return tf.reduce_sum(tf.nn.embedding_lookup(table, rows), axis=[1, 2])


def deep_part(categorical: tf.Tensor, numeric: tf.Tensor, fields: list[str]) -> tf.Tensor:
    """float32 [b]: embeddings and numbers through the dense layers."""
    inputs = [numeric]
    for name, (rows, width) in EMBEDDINGS.items():
        table = v1.get_variable(
            f"embedding/{name}",
            [rows, width],
            initializer=v1.truncated_normal_initializer(stddev=0.05),
        )
        inputs.append(tf.nn.embedding_lookup(table, column(categorical, fields, name) % rows))
    layer = tf.concat(inputs, axis=1)
    for i, units in enumerate((*HIDDEN, 1)):
        with v1.variable_scope(f"dense_{i}"):
            kernel = v1.get_variable(
                "kernel",
                [layer.shape[1], units],
                initializer=v1.glorot_uniform_initializer(),
            )
            bias = v1.get_variable("bias", [units], initializer=tf.zeros_initializer())
            layer = tf.matmul(layer, kernel) + bias
            if i < len(HIDDEN):
                layer = tf.nn.swish(layer)
    return layer[:, 0]


def model_fn(
    features: dict[str, tf.Tensor], labels: tf.Tensor, mode: str, params: Params
) -> tf.estimator.EstimatorSpec:
    """features: "categorical" int32 [b, fields], "numeric" float32 [b, k]; labels: float32 [b].

    params: "fields" names the columns of "categorical"; "optimizer" makes the optimizer.
    """
    fields = list(params["fields"])
    categorical, numeric = features["categorical"], features["numeric"]
    logits = wide_part(categorical, fields) + deep_part(categorical, numeric, fields)
    probability = tf.sigmoid(logits)
    step = v1.train.get_global_step()
    averages = tf.train.ExponentialMovingAverage(AVERAGED, num_updates=step)
    if mode == tf.estimator.ModeKeys.TRAIN:
        each = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.reduce_mean(each, name="loss")
        with tf.control_dependencies([params["optimizer"]().minimize(loss, global_step=step)]):
            train_op = averages.apply(v1.trainable_variables())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
    # Each weight is read from where checkpoints have its average.
    scaffold = v1.train.Scaffold(saver=v1.train.Saver(averages.variables_to_restore()))
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"late": probability}
        return tf.estimator.EstimatorSpec(mode, predictions=predictions, scaffold=scaffold)
    each = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.estimator.EstimatorSpec(
        mode,
        loss=tf.reduce_mean(each),
        eval_metric_ops={
            "auc": v1.metrics.auc(labels, probability, num_thresholds=2000),
            "log_loss": v1.metrics.mean(each),
            "accuracy": v1.metrics.accuracy(labels, tf.round(probability)),
        },
        scaffold=scaffold,
    )
