# SPDX-License-Identifier: Apache-2.0
"""Training that goes on from its last commit after a failed collective or a new start of the job.

    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)

    @hvd.elastic.run
    def train(state):
        while state.batch < 1000:
            step()
            state.batch += 1  # batches that are done
            if state.batch % 10 == 0:
                state.commit()

Where a collective fails and all ranks are alive, they restore their last commit and go on. Where a
rank dies, MPI ends the job. `hvdrun --restarts N` starts it again, and it goes on from the last
commit of rank 0: of the same program with the same arguments and state. The number of ranks stays
the same while a job runs: joining and leaving are not offered yet.
"""

from hvd_tf.elastic.running import run
from hvd_tf.elastic.states import ObjectState, State
from hvd_tf.elastic.tensorflow_states import TensorFlowKerasState, TensorFlowState

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]
