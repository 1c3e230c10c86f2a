# SPDX-License-Identifier: Apache-2.0
"""Ranks that add up tensors of a GPU until one of them ends. `gpu_program.py HOW`.

HOW the last rank ends: stop (it freezes), or leave (it ends as if all were done). The others print
the error that they have then. Where HVD_TEST_NCCL=1, the sums go by NCCL before that.
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import fake_gpu

fake_gpu.prepare()

import tensorflow as tf  # noqa: E402

import hvd_tf as hvd  # noqa: E402

HOW = sys.argv[1]
LIMITS = ("HVD_STALL_WARNING_S", "HVD_STALL_SHUTDOWN_S")
BY_NCCL = os.environ.get(fake_gpu.NCCL_VARIABLE) == "1"


def sum_on_gpu(name: str, count: int) -> None:
    with tf.device("CPU:0"):
        ones = tf.ones([count])
    with tf.device("GPU:0"):
        total = hvd.allreduce(tf.identity(ones), op=hvd.Sum, name=name)
    assert float(total.numpy()[-1]) == hvd.size()


def sent_by_host() -> int:
    return int(hvd.comm_stats()["verbs"].get("allreduce", {}).get("payload_bytes", 0))


def wait_for_nccl() -> None:
    """Until no rank's host sends anything of a sum. The test has a limit."""
    sends = True
    while sends:
        before = sent_by_host()
        sum_on_gpu("first", 10)
        mine = tf.constant([int(sent_by_host() != before)])
        with tf.device("CPU:0"):
            sends = bool(hvd.allreduce(mine, op=hvd.Max, name="host sends").numpy()[0])


def main() -> None:
    # However long the first sum takes, with all that it loads.
    limits = {name: os.environ.pop(name) for name in LIMITS}
    hvd.init()
    sum_on_gpu("first", 300_000)
    hvd.shutdown()
    os.environ.update(limits)
    hvd.init()
    (Path(os.environ["HVD_TEST_DIR"]) / f"rank-{hvd.rank()}.pid").write_text(str(os.getpid()))
    if BY_NCCL:
        wait_for_nccl()
    for i in range(20):
        sum_on_gpu(f"sum {i % 2}", 300_000)
    if hvd.rank() == hvd.size() - 1:
        print(f"now {HOW}", flush=True)
        if HOW == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        return
    try:
        while True:
            sum_on_gpu("lost", 300_000)
    except tf.errors.OpError as error:
        print(f"told: {error.message}", flush=True)


main()
