"""Train a small CNN on real handwritten digits, on every replica that this machine offers.

    phalanx run --replicas 2 examples/train_mnist.py

Strategy first, model and compile inside its scope, `fit` outside: nothing else differs from plain
Keras. The model file that comes out is plain Keras too, as the last step shows by loading it back.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import phalanx  # before keras: it chooses the JAX backend

# isort: split
import digits
import keras

LOSS, ACCURACY = "Cross-entropy loss", "Accuracy"


def build_model(shape: tuple[int, ...]) -> keras.Model:
    """Return a CNN of about 207,000 weights for images of `shape` (height, width, 1) and ten classes."""
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.4),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.4),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def save_curves(history: dict[str, list[float]], title: str, path: Path) -> None:
    """Draw loss and accuracy per epoch, training against validation, into a PNG file."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure(figsize=(10, 4.2), dpi=130, layout="constrained")
    figure.suptitle(title, fontsize=13)
    epochs = range(1, len(history["loss"]) + 1)
    for axes, key, label in zip(figure.subplots(1, 2), ("loss", "accuracy"), (LOSS, ACCURACY), strict=True):
        axes.plot(epochs, history[key], "o-", color="#1f5fa8", markersize=4, label="training")
        axes.plot(epochs, history[f"val_{key}"], "s--", color="#d1600e", markersize=4, label="validation")
        axes.set(xlabel="Epoch", ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        if key == "accuracy":
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    figure.savefig(path)


def parse() -> argparse.Namespace:
    """Read the command line; --help explains what each number means for several replicas."""
    parser = argparse.ArgumentParser(
        description="Train a small CNN on 4,000 real digits and test it on 1,000 others.",
        epilog="Try phalanx run with --replicas 1, then 4: the batch grows with the replicas, "
        "and the printed plan says how learning rate, warmup and steps follow it.",
    )
    parser.add_argument("--epochs", type=int, default=12, help="passes over the training rows (default 12)")
    parser.add_argument(
        "--batch-per-replica",
        type=int,
        default=32,
        help="rows per step on each replica; the recipe derives the rest from it (default 32)",
    )
    parser.add_argument("--rows", type=int, help="use only the first ROWS training rows, for a quick try")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/mnist"), help="folder for the results (default runs/mnist)"
    )
    args = parser.parse_args()
    for name in ("epochs", "batch-per-replica", "rows"):
        value = getattr(args, name.replace("-", "_"))
        if value is not None and value < 1:
            parser.error(f"--{name} starts at 1.\n  received: {value}\n  next:     --{name} 64")
    return args


def accuracy_of(model: keras.Model, data: digits.Digits, batch: int) -> float:
    """Return the share of the test rows that `model` gets right."""
    logs = model.evaluate(data.x_test, data.y_test, batch_size=batch, verbose=0, return_dict=True)
    return float(logs["accuracy"])


def main() -> None:
    """Load, build under the strategy, train, test, save, and load back."""
    args = parse()
    data = digits.load()
    if args.rows:
        data = data.head(args.rows)
    print(f"Data: {data.source}; {len(data.x_train):,} to train on, {len(data.x_test):,} to test on")

    strategy = phalanx.MirroredStrategy()
    recipe = phalanx.Recipe(
        batch_per_replica=args.batch_per_replica,
        learning_rate=lambda updates: keras.optimizers.schedules.CosineDecay(2e-3, updates),
        base_batch=64,  # where 2e-3 was tuned
    )
    plan = recipe.plan(strategy, optimizer="adam", dataset_size=len(data.x_train), epochs=args.epochs)
    print(strategy.describe(plan.global_batch), plan, sep="\n\n", end="\n\n")
    keras.utils.set_random_seed(1)

    with strategy.scope():
        model = build_model(data.x_train.shape[1:])
        model.compile(
            optimizer=plan.make_optimizer(keras.optimizers.Adam),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )

    started = time.perf_counter()
    history = model.fit(
        data.x_train,
        data.y_train,
        batch_size=plan.global_batch,
        epochs=args.epochs,
        validation_data=(data.x_test, data.y_test),
    )
    seconds = time.perf_counter() - started
    accuracy = accuracy_of(model, data, plan.global_batch)

    args.out.mkdir(parents=True, exist_ok=True)
    model_path, curve_path = args.out / "model.keras", args.out / "curves.png"
    model.save(model_path)
    replicas = strategy.num_replicas_in_sync
    title = f"Handwritten digits on {replicas} replicas, test accuracy {accuracy:.1%}"
    save_curves(history.history, title, curve_path)

    again = accuracy_of(keras.models.load_model(model_path), data, plan.global_batch)

    print(f"Trained {args.epochs} epochs on {replicas} replicas in {seconds:.1f} s")
    print(f"Test accuracy: {accuracy:.2%}")
    print(f"Loaded back as plain Keras: {again:.2%}")
    print(f"Model:  {model_path}")
    print(f"Curves: {curve_path}")
    if abs(again - accuracy) * len(data.x_test) > 0.5:
        raise SystemExit("The saved model does not test like the trained one: please report this.")


if __name__ == "__main__":
    main()
