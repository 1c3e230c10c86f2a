# SPDX-License-Identifier: Apache-2.0
"""Train the flights model in a loop of its own with a tf.GradientTape, on one rank or on many.

    hvdrun -np 2 python estimator_examples/keras/loop.py

The lines marked `# hvd:` are what hvd_tf asks of such a program.
"""

from __future__ import annotations

import time

import tensorflow as tf
from run import arguments, evaluate, prepare, shown
from wide_deep import WideAndDeep, adagrad, take_averages

import hvd_tf as hvd


def main() -> None:
    """Train, take the weights that were best on validation, and test them."""
    args = arguments(__doc__.splitlines()[0])
    data = prepare(args)
    steps = data.steps_per_pass * args.passes
    model = WideAndDeep()
    rate = args.lr * hvd.size()  # hvd: for size times the batch
    optimizer = adagrad(rate, steps)
    loss_of = tf.keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def train_step(features: dict[str, tf.Tensor], late: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(late, model(features))
        tape = hvd.DistributedGradientTape(tape)  # hvd: averages the gradients over the ranks
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    best, best_auc = model.get_weights(), 0.0
    begin = time.perf_counter()
    for step, (features, late) in enumerate(data.training(args).take(steps), 1):
        loss = train_step(features, late)
        if step == 1:
            # hvd: all start as rank 0; now all variables are there, the optimizer's too
            of_optimizer = optimizer.variables
            of_optimizer = of_optimizer() if callable(of_optimizer) else of_optimizer
            hvd.broadcast_variables([*model.variables, *of_optimizer], root_rank=0)
        if step % data.steps_per_pass == 0:
            weights = take_averages(model, optimizer)
            found = evaluate(model, data, "validation")  # the same on every rank
            if found["auc"] > best_auc:
                best, best_auc = model.get_weights(), found["auc"]
            model.set_weights(weights)
            if hvd.rank() == 0:
                print(f"step {step}/{steps}: loss {float(loss):.4f}, validation {shown(found)}")
    seconds = time.perf_counter() - begin
    model.set_weights(best)
    found = evaluate(model, data, "held_out")
    if hvd.rank() == 0:
        flights = steps * args.batch * hvd.size()
        print(f"test {shown(found)}: flights after 15 November")
        print(f"{flights / seconds:,.0f} examples/s with the evaluations, {hvd.size()} worker(s)")


if __name__ == "__main__":
    main()
