# SPDX-License-Identifier: Apache-2.0
"""Times training steps of a Keras model on a GPU, with and without hvd_tf: one rank of a job.

    hvdrun -np 1 python gpu_training.py                           # what hvd_tf adds to a step
    hvdrun -np 2 python gpu_training.py --batch 32                # ranks may share a GPU
    HVD_GPU_LANE=0 hvdrun -np 2 python gpu_training.py --batch 32 # TensorFlow copies the gradients
    hvdrun -np 2 python gpu_training.py --batch 32 --nccl --completions

Ways take turns in the same process, some steps at a time:

    plain   each rank trains by itself, at the same time
    hvd     gradients are averaged by DistributedGradientTape
    early   the same with HVD_ASYNC_COMPLETION=1, where --completions asks for it

Each step is one tf.function on random images. Each rank has a GPU of its own, where there are
enough, and prints which. Rank 0 prints how gradients went, medians of a step's milliseconds over
the turns, and the median ratio of turns that follow one another, with its quartiles. --nccl makes
ranks of one GPU use NCCL, by the loopback interface: what the CPUs do is as on several GPUs then,
and the time of the sums is not.

--cuda-waits names a library made from cuda_waits.cc, which CUDA has loaded: rank 0 prints which
threads called what of CUDA's driver in the steps of both ways. --profile names a folder for a
trace by TensorFlow's profiler of three steps of rank 0 with hvd_tf.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import statistics
import time
from collections.abc import Callable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Ranks may share a GPU.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import numpy as np
import tensorflow as tf

import hvd_tf as hvd


def model_named(name: str) -> tf.keras.Model:
    if name == "resnet50":
        return tf.keras.applications.ResNet50(weights=None)
    hidden = [tf.keras.layers.Dense(4096, activation="relu") for _ in range(8)]
    shape = [tf.keras.Input([224, 224, 3]), tf.keras.layers.AveragePooling2D(7)]
    return tf.keras.Sequential(
        [*shape, tf.keras.layers.Flatten(), *hidden, tf.keras.layers.Dense(1000, "softmax")]
    )


def trainer(name: str, batch: int, *, distributed: bool) -> Callable[[], tf.Tensor]:
    """A step, which returns its loss, of a model of its own."""
    model = model_named(name)
    generator = np.random.default_rng(hvd.rank())
    images = tf.constant(generator.standard_normal((batch, 224, 224, 3), np.float32))
    labels = tf.constant(generator.integers(0, 1000, batch))
    rate = 0.001

    @tf.function(autograph=False, jit_compile=False)
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = tf.keras.losses.sparse_categorical_crossentropy(
                labels, model(images, training=True)
            )
            loss = tf.reduce_mean(losses)
        if distributed:
            tape = hvd.DistributedGradientTape(tape)
        weights = list(model.trainable_variables)
        for weight, gradient in zip(weights, tape.gradient(loss, weights)):
            value = getattr(weight, "value", weight)
            value = value if isinstance(value, tf.Variable) else weight
            value.assign_sub(rate * gradient)
        return loss

    return step


def turn_ms(step: Callable[[], tf.Tensor], steps: int) -> float:
    """Milliseconds of a step, the last of which has been computed."""
    began = time.perf_counter()
    for _ in range(steps):
        loss = step()
    float(loss)
    return 1e3 * (time.perf_counter() - began) / steps


def host_bytes() -> int:
    """What this rank's host has sent of gradients."""
    return int(hvd.comm_stats()["verbs"].get("allreduce", {}).get("payload_bytes", 0))


def how_sent(lane: bool, ranks: int, sent_bytes: int) -> str:
    """How gradients went in the turns, in which this rank's host sent so many bytes of them."""
    if not lane:
        return "TensorFlow's copies"
    if ranks == 1:
        return "lane"
    return "lane, host memory" if sent_bytes > 0 else "lane, NCCL"


@contextlib.contextmanager
def profiled(folder: str | None) -> Iterator[None]:
    """What TensorFlow's profiler sees goes to a folder, on rank 0 and where there is one."""
    if not folder or hvd.rank() != 0:
        yield
        return
    tf.profiler.experimental.start(folder)
    try:
        yield
    finally:
        tf.profiler.experimental.stop()


def print_waits(library: str, way: str, step: Callable[[], tf.Tensor], steps: int) -> None:
    """A table of what rank 0's threads call of CUDA's driver in a step."""
    hvd.barrier()
    waits = ctypes.CDLL(library)
    waits.CudaWaitsBegin()
    turn_ms(step, steps)
    if hvd.rank() == 0:
        print(f"\n{way}, calls of CUDA's driver", flush=True)
        waits.CudaWaitsPrint(steps)


def prepare_nccl() -> None:
    """NCCL refuses ranks that share a GPU, unless each says that it is a host of its own."""
    os.environ["HVD_NCCL"] = "2"
    os.environ["NCCL_HOSTID"] = "rank " + os.environ["OMPI_COMM_WORLD_RANK"]
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"


def begin_anew(*, early: bool, step: Callable[[], tf.Tensor], by_nccl: bool) -> None:
    """Initialises hvd_tf with a way of completion, and waits until NCCL has its sums again."""
    hvd.shutdown()
    os.environ["HVD_ASYNC_COMPLETION"] = "1" if early else "0"
    hvd.init()
    waits = True
    while waits:
        before = host_bytes()
        turn_ms(step, 1)
        with tf.device("CPU:0"):
            mine = tf.constant(int(by_nccl and host_bytes() != before))
            waits = bool(hvd.allreduce(mine, op=hvd.Max, name="waits"))


def print_row(start: str, of_plain: list[float], of_hvd: list[float]) -> None:
    ratios = [second / first for first, second in zip(of_plain, of_hvd)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"| {start} | {statistics.median(of_plain):.2f} | {statistics.median(of_hvd):.2f} "
        f"| {middle:.3f} [{low:.3f}-{high:.3f}] |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("resnet50", "dense"), default="resnet50")
    parser.add_argument("--batch", type=int, default=64, help="images of a rank")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10, help="steps of a turn")
    parser.add_argument("--nccl", action="store_true", help="though ranks share a GPU")
    parser.add_argument("--completions", action="store_true", help="time both")
    parser.add_argument("--cuda-waits", metavar="LIBRARY")
    parser.add_argument("--profile", metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.nccl:
        prepare_nccl()
    hvd.init()
    print(f"rank {hvd.rank()} has {hvd.pin_gpu() or 'no GPU'}", flush=True)
    plain = trainer(arguments.model, arguments.batch, distributed=False)
    averaged = trainer(arguments.model, arguments.batch, distributed=True)
    ways = ["plain", "hvd", *(["early"] if arguments.completions else [])]
    times: dict[str, list[float]] = {way: [] for way in ways}
    sent_bytes = 0
    for turn in range(-2, arguments.turns):
        for way in ways:
            if way != "plain" and arguments.completions:
                begin_anew(early=way == "early", step=averaged, by_nccl=arguments.nccl)
            hvd.barrier()
            before = host_bytes()
            ms = turn_ms(plain if way == "plain" else averaged, arguments.steps)
            if turn >= 0:
                times[way].append(ms)
                sent_bytes += host_bytes() - before
    if hvd.rank() == 0:
        lane = how_sent(os.environ.get("HVD_GPU_LANE") != "0", hvd.size(), sent_bytes)
        for way in ways[1:]:
            start = f"{arguments.model} | {arguments.batch} | {hvd.size()} | {lane}"
            print_row(start + (", early" if way == "early" else ""), times["plain"], times[way])
    with profiled(arguments.profile):
        if arguments.profile:
            turn_ms(averaged, 3)
    if arguments.cuda_waits:
        print_waits(arguments.cuda_waits, "without hvd_tf", plain, arguments.steps)
        print_waits(arguments.cuda_waits, "with it", averaged, arguments.steps)
    hvd.shutdown()


if __name__ == "__main__":
    main()
