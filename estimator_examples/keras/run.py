# SPDX-License-Identifier: Apache-2.0
"""What fit.py and loop.py share: the command line, the data, and evaluation by all ranks."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.append(str(Path(__file__).parents[1] / "flights"))

import inputs
import numpy as np
import tensorflow as tf
from batches import steps_of
from data import Flights, load, mark, source_folder, split
from shards import FORMAT, SHARDS, Shards, prepare_on_all
from starting import limit_threads, not_negative, positive
from wide_deep import WideAndDeep

import hvd_tf as hvd


def arguments(description: str) -> argparse.Namespace:
    """The command line."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd_tf_flights"
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--data-dir", type=Path, default=cache, help="where the shards are kept (%(default)s)")
    add("--passes", type=positive, default=6, help="passes over the flights (%(default)s)")
    add("--batch", type=positive, default=1024, help="flights per worker and step (%(default)s)")
    add("--lr", type=float, default=0.075, help="of Adagrad, for one worker (%(default)s)")
    add("--seed", type=int, default=1, help="of the weights and the shuffle (%(default)s)")
    add(
        "--threads",
        type=not_negative,
        default=1,
        help="per rank, 0: as many as cores (%(default)s)",
    )
    add("--one-in", type=positive, default=1, help="use one flight in so many (%(default)s)")
    return parser.parse_args()


@dataclass(frozen=True)
class Data:
    """The shards, and how often this job steps over them."""

    shards: Shards
    steps_per_pass: int

    def training(self, args: argparse.Namespace) -> tf.data.Dataset:
        """This rank's batches, for ever."""
        return inputs.training(hvd, self.shards, args.batch, args.seed, 0)()


def prepare(args: argparse.Namespace) -> Data:
    """Starts hvd_tf, and finds the flights or gets them. Every rank calls it."""
    hvd.init()  # hvd: before anything else of the library
    limit_threads(args.threads)
    tf.keras.utils.set_random_seed(args.seed)

    def parts() -> dict[str, Flights]:
        flights = load(args.data_dir).take(slice(None, None, args.one_in))
        return dict(zip(SHARDS, split(flights, "test")))

    name = f"shards-{FORMAT}-{mark(source_folder())}-test-{args.one_in}"
    shards = prepare_on_all(hvd, args.data_dir / name, parts)
    steps = steps_of(1, shards.flights["train"], args.batch, hvd.size())
    return Data(shards, max(1, steps))


def evaluate(model: WideAndDeep, data: Data, part: str) -> dict[str, float]:
    """AUC, log loss and accuracy over a part's flights. Each rank takes some of the batches."""
    batches = inputs.evaluation(data.shards, part)().shard(hvd.size(), hvd.rank())
    logits, late = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)]
    for features, labels in batches:
        logits.append(model.predict_on_batch(features))
        late.append(labels.numpy())
    # hvd: every rank gets all of them
    scores = hvd.allgather(np.concatenate(logits), name=f"{part}/logits").numpy()
    labels = hvd.allgather(np.concatenate(late), name=f"{part}/late").numpy()
    return metrics(scores.astype(np.float64), labels > 0.5)


def metrics(logits: np.ndarray, late: np.ndarray) -> dict[str, float]:
    """For float64 [n] and bool [n]. The AUC comes from the ranks' sum (Mann and Whitney 1947)."""
    _, place, counts = np.unique(logits, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # equal ones share theirs
    late_ones, others = int(late.sum()), int((~late).sum())
    above = ranks[late].sum() - late_ones * (late_ones + 1) / 2
    signed = np.where(late, logits, -logits)
    return {
        "auc": float(above / max(1, late_ones * others)),
        "log_loss": float(np.logaddexp(0.0, -signed).mean()),
        "accuracy": float((signed > 0).mean()),
    }


def shown(found: dict[str, float]) -> str:
    """Such as "AUC 0.7386, log loss 0.5245, accuracy 0.7526"."""
    return (
        f"AUC {found['auc']:.4f}, log loss {found['log_loss']:.4f}, "
        f"accuracy {found['accuracy']:.4f}"
    )
