# SPDX-License-Identifier: Apache-2.0
"""Training on P ranks against training on one: the same global batches, the same model.

    hvdrun -np 4 python estimator_examples/ctr/against_one.py
    hvdrun -np 4 python estimator_examples/ctr/against_one.py --model wide_deep

P ranks with b clicks each average the gradients of their parts; one process takes all P * b, with
the same learning rate. Prints the norm-relative difference of every variable after 100 steps and
both AUCs. Fails above 1e-6, or where the AUCs differ by more than 0.001.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.append(str(Path(__file__).parents[1] / "flights"))

import tensorflow as tf
from hooks import Keep, Variables, difference
from rows import InputFn, blocks_of, decode, evaluation, files
from starting import library, limit_threads
from training import Settings, train

v1 = tf.compat.v1
BOUND, AUC_BOUND = 1e-6, 1e-3
STEPS = 100


def in_turn(hvd: ModuleType, folder: Path, batch: int) -> InputFn:
    """Every size-th record, as they are."""

    def input_fn() -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(files(folder, "train"))
        share = hvd.data.shard(records, epochs=None)
        return share.batch(blocks_of(batch)).map(decode)

    return input_fn


def trained(
    hvd: ModuleType, settings: Settings, data: Path, batch: int, steps: int
) -> tuple[Variables, float]:
    """The trainable variables after so many steps, and the AUC of the part that is held out."""
    keep = Keep()
    with tempfile.TemporaryDirectory() as folder:
        share = in_turn(hvd, data, batch)
        estimator = train(hvd, settings, share, Path(folder), steps, [keep])
        found = hvd.estimator.evaluate(estimator, evaluation(data))
    return keep.variables, float(found["auc"])


def compared(
    hvd: ModuleType, settings: Settings, data: Path, *, batch: int, steps: int
) -> tuple[dict[str, float], tuple[float, float]]:
    """The difference of each variable, and the AUCs of all ranks and of one process.

    hvd is initialised, and every rank calls it. Rank 0 is the one process, while the others wait.
    settings.lr: the effective rate of both.
    """
    size = hvd.size()
    scaled = dataclasses.replace(settings, lr=settings.lr / size)  # train() takes it times size
    many, auc = trained(hvd, scaled, data, batch, steps)
    reference = None
    if hvd.rank() == 0:
        reference = trained(library(plain=True), settings, data, batch * size, steps)
    one, auc_of_one = hvd.broadcast_object(reference)
    found = {name: difference(many[name], value) for name, value in one.items()}
    return found, (auc, auc_of_one)


def main() -> None:
    """Compare and print."""
    import train as program

    v1.logging.set_verbosity(v1.logging.ERROR)
    args = program.arguments()
    hvd = library(args.plain)
    hvd.init()
    limit_threads(args.threads)
    data = program.prepared(args, hvd)
    steps = args.steps or STEPS
    found, aucs = compared(hvd, program.settings(args), data, batch=args.batch, steps=steps)
    if hvd.rank() == 0:
        for name, value in found.items():
            print(f"{value:.1e}  {name}")
        print(f"AUC {aucs[0]:.6f} on {hvd.size()} ranks, {aucs[1]:.6f} on one")
    if max(found.values()) > BOUND or abs(aucs[0] - aucs[1]) > AUC_BOUND:
        sys.exit(f"rank {hvd.rank()}: differs by more than {BOUND:g}, or the AUC by {AUC_BOUND:g}")


if __name__ == "__main__":
    main()
