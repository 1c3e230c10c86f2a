# SPDX-License-Identifier: Apache-2.0
"""Compares ways of reducing many small tensors by turns in the same processes.

    hvdrun -np 2 python small_tensors.py hvd_tf --in session
    mpirun -n 2 python small_tensors.py horovod.tensorflow --in session

Any number of ranks of one host up to 16.

The first list says what is done with each of the tensors. The second says where, and what follows:

    plain     tf.negative in place of a collective
    handed    meeting_op.cc: copied, and ended by another thread; the least of any asynchronous op
    meeting   the same, after that thread has met the other ranks', once for all the tensors
    single    an allreduce each
    grouped   one grouped_allreduce

    session   a v1 session, which takes nothing over
    applied   a v1 session that subtracts each result from a variable
    function  a tf.function that returns the results
    assigned  a tf.function that subtracts each result from a variable

handed and meeting need hvd_tf's compiler. They are left out for another module. Prints medians of
blocks of steps in milliseconds, with their quartiles. Also prints rank 0's CPU time and changes of
threads in a step.
"""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2

v1 = tf.compat.v1
Ways = dict[str, Callable[[list[Any]], list[Any]]]
BLOCK_STEPS = 25


def load_meeting_op(module: ModuleType) -> Callable[..., Any]:
    """Compiles the yardstick on rank 0, and gives the ranks memory to meet in."""
    rank, size = module.rank(), module.size()
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory, "meeting_op.so")
        if rank == 0:
            flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
            source = Path(__file__).with_name("meeting_op.cc")
            command = [os.environ.get("CXX", "g++"), "-O2", "-shared", "-fPIC", source]
            subprocess.run([*command, "-o", library, *flags], check=True)
            Path(directory, "shared").write_bytes(bytes(4096))
        directory_of_0 = module.broadcast_object(directory, 0)
        op = tf.load_op_library(str(Path(directory_of_0, library.name))).benchmark_meet
        file = os.open(Path(directory_of_0, "shared"), os.O_RDWR)
        module.allreduce(tf.zeros([]), name="all_have_opened_it")
    return lambda tensor, **attributes: op(tensor, file=file, rank=rank, size=size, **attributes)


def ways_of(module: ModuleType, count: int) -> Ways:
    ways: Ways = {"plain": lambda tensors: [tf.negative(tensor) for tensor in tensors]}
    if module.__name__ == "hvd_tf":
        op = load_meeting_op(module)
        for name, meet in (("handed", False), ("meeting", True)):
            ways[name] = lambda tensors, meet=meet: [
                op(tensor, batch=count, meet=meet) for tensor in tensors
            ]
    ways["single"] = lambda tensors: [
        module.allreduce(tensor, op=module.Sum, name=f"single{i}")
        for i, tensor in enumerate(tensors)
    ]
    ways["grouped"] = lambda tensors: module.grouped_allreduce(
        tensors, op=module.Sum, name="grouped"
    )
    return ways


def in_session(ways: Ways, count: int, shape: list[int], apply: bool) -> dict[str, Callable]:
    rewrites = rewriter_config_pb2.RewriterConfig(disable_meta_optimizer=True)
    config = v1.ConfigProto(
        inter_op_parallelism_threads=1,
        intra_op_parallelism_threads=1,
        graph_options=v1.GraphOptions(rewrite_options=rewrites),
    )
    steps = {}
    for name, way in ways.items():
        with tf.Graph().as_default():
            sources, targets = (
                [v1.get_variable(f"{kind}{i}", shape, use_resource=True) for i in range(count)]
                for kind in ("source", "target")
            )
            results = way([source.read_value() for source in sources])
            if apply:
                results = [subtract(*pair) for pair in zip(targets, results)]
            session = v1.Session(config=config)
            session.run(v1.global_variables_initializer())
            operations = [getattr(result, "op", result) for result in results]
            steps[name] = session.make_callable(tf.group(*operations))
    return steps


def in_function(ways: Ways, count: int, shape: list[int], assign: bool) -> dict[str, Callable]:
    sources, targets = ([tf.Variable(tf.zeros(shape)) for _ in range(count)] for _ in range(2))

    def step_of(way: Callable[[list[Any]], list[Any]]) -> Callable:
        @tf.function(autograph=False)
        def step() -> Any:
            results = way([source.read_value() for source in sources])
            if not assign:
                return results
            for target, result in zip(targets, results):
                subtract(target, result)
            return None

        return step

    return {name: step_of(way) for name, way in ways.items()}


def subtract(target: Any, result: Any) -> Any:
    return tf.raw_ops.ResourceApplyGradientDescent(var=target.handle, alpha=1e-3, delta=result)


def switches() -> int:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_nvcsw + usage.ru_nivcsw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", help="hvd_tf or horovod.tensorflow")
    places = ("session", "applied", "function", "assigned")
    parser.add_argument("--in", dest="place", choices=places, default="session")
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--elements", type=int, default=64, help="float32 values of a tensor")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    module = importlib.import_module(arguments.module)
    module.init()
    if not 2 <= module.size() <= 16:
        parser.error(f"this is a job of {module.size()} ranks; start 2 to 16")
    size = arguments.tensors, [arguments.elements]
    ways = ways_of(module, arguments.tensors)
    if arguments.place in ("session", "applied"):
        steps = in_session(ways, *size, apply=arguments.place == "applied")
    else:
        steps = in_function(ways, *size, assign=arguments.place == "assigned")
    barrier = tf.function(lambda: module.allreduce(tf.zeros([]), name="barrier"))
    times_ms: dict[str, list[float]] = {name: [] for name in steps}
    changes: dict[str, list[float]] = {name: [] for name in steps}
    cpu_ms: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(arguments.rounds + 1):
        for name, step in steps.items():
            barrier()
            before, cpu_before_s = switches(), time.process_time()
            block_ms = statistics.median(timed_ms(step) for _ in range(BLOCK_STEPS))
            if turn:  # The first round warms up.
                times_ms[name].append(block_ms)
                changes[name].append((switches() - before) / BLOCK_STEPS)
                cpu_ms[name].append(1e3 * (time.process_time() - cpu_before_s) / BLOCK_STEPS)
    if module.rank() == 0:
        job = f"{arguments.module}, {module.size()} ranks"
        print(f"{job}, {arguments.place}, {arguments.tensors} tensors")
        for name, blocks_ms in times_ms.items():
            low, median, high = statistics.quantiles(blocks_ms, n=4)
            often = statistics.median(changes[name])
            cpu = statistics.median(cpu_ms[name])
            spread = f"[{low:.2f} - {high:.2f}]"
            print(f"{name:8}{median:8.2f} ms {spread}{cpu:8.2f} ms of CPU{often:6.0f} changes")


def timed_ms(step: Callable) -> float:
    begin = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
