# SPDX-License-Identifier: Apache-2.0
"""What train.py can train on: passes over the shards, or the year as a stream."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from types import ModuleType
from typing import Optional

import inputs
import stream
import tensorflow as tf
from batches import steps_of
from curve import Curve
from data import Flights, load, mark, source_folder, split
from hooks import Speed
from inputs import InputFn
from shards import FORMAT, SHARDS, Shards, prepare_on_all


@dataclass(frozen=True)
class Task:
    """The input of a training run and of its evaluations."""

    train: InputFn
    evaluate: InputFn
    """During the training."""
    evaluated: str
    """What that is, for the report."""
    interval: int
    """Steps between evaluations."""
    flights: Optional[int] = None
    """In one pass; None where nobody knows beforehand."""
    test: Optional[InputFn] = None
    """After the training; None where every evaluation is of flights that come later."""
    tested: str = ""
    """What that is."""


def flight_shards(args: argparse.Namespace, hvd: ModuleType) -> Shards:
    """The shards of the flights, after every rank has called this."""

    def parts() -> dict[str, Flights]:
        flights = load(args.data_dir).take(slice(None, None, args.one_in))
        return dict(zip(SHARDS, split(flights, args.held_out)))

    name = f"shards-{FORMAT}-{mark(source_folder())}-{args.held_out}-{args.one_in}"
    return prepare_on_all(hvd, args.data_dir / name, parts)


def passes(args: argparse.Namespace, hvd: ModuleType, first_step: int) -> Task:
    """Shuffled passes over the shards, which are prepared when they are missing."""
    shards = flight_shards(args, hvd)
    flights = shards.flights["train"]
    if args.steps is None:  # hvd: a step of all ranks takes size times the flights
        args.steps = hvd.estimator.scale_steps(steps_of(args.passes, flights, args.batch, 1))
    first_pass = first_step * args.batch * hvd.size() // flights
    return Task(
        inputs.training(hvd, shards, args.batch, args.seed, first_pass),
        inputs.evaluation(shards, "validation"),
        evaluated="validation on every tenth day before, which is not trained on",
        interval=-(-args.steps // args.evaluations),
        flights=flights,
        test=inputs.evaluation(shards, "held_out"),
        tested="flights after 15 November" if args.held_out == "test" else args.held_out,
    )


def time_order(args: argparse.Namespace, hvd: ModuleType, speed: Speed, curve: Curve) -> Task:
    """The year once, in time order: evaluated block by block on what comes next.

    speed: counts this rank's steps. curve: is told which flights are evaluated.
    """
    per_step = args.batch * hvd.size()
    interval = max(1, args.block // per_step)
    flights = load(args.data_dir).take(slice(None, None, args.one_in))
    year = stream.Stream(stream.days(flights), interval * per_step)

    def next_block() -> tf.data.Dataset:
        number, begun = divmod(speed.done, interval)
        block = None if begun else year.block(number)  # a step amid a block is the stream's last
        year.forget_before(number)
        curve.about = None if block is None else {"from": date(block, 0), "to": date(block, -1)}
        return stream.evaluation(block)

    return Task(
        stream.training(hvd, year, args.batch),
        next_block,
        evaluated="each block of flights before training on it",
        tested="the last flights, before training on them",
        interval=interval,
    )


def date(flights: Flights, which: int) -> str:
    """The day of one of them, MM-DD."""
    return f"{flights.day[which] // 100:02}-{flights.day[which] % 100:02}"
