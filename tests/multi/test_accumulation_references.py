# SPDX-License-Identifier: Apache-2.0
"""backward_passes_per_step with the reference variables of TF 1, whose branches may be too new."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf

RANKS = (2,)
IN_FULL = (3,)

v1 = tf.compat.v1
OPTIONS = [{}, {"op": hvd_tf.Adasum}]


@contextmanager
def branches(are_new):
    was_new = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if are_new else v1.disable_control_flow_v2)()
    try:
        yield
    finally:
        (v1.enable_control_flow_v2 if was_new else v1.disable_control_flow_v2)()


def update_of(slope, options):
    weights = v1.get_variable("weights", initializer=np.zeros(3), use_resource=False)
    optimizer = hvd_tf.DistributedOptimizer(
        v1.train.MomentumOptimizer(1.0, 0.0), backward_passes_per_step=2, **options
    )
    return weights, optimizer.minimize(tf.reduce_sum(weights * slope))


@pytest.mark.parametrize("options", OPTIONS)
def test_branches_of_tf_2_cannot_change_them(options):
    with branches(are_new=True), tf.Graph().as_default():
        with pytest.raises(ValueError, match="'weights:0' is a reference variable.*control_flow"):
            update_of(1.0, options)


@pytest.mark.parametrize("options", OPTIONS)
def test_branches_of_tf_1_change_them(rank, size, options):
    slope = 1.0 if options else rank + 1.0  # Adasum of equal steps is one of them
    with branches(are_new=False), tf.Graph().as_default(), v1.Session() as session:
        weights, update = update_of(slope, options)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for _ in range(4):
            session.run(update)
        expected = -4.0 if options else -4.0 * (size + 1) / 2
        np.testing.assert_allclose(session.run(weights), expected, rtol=1e-12)
