"""What each scaling rule costs: 4,096 real digits at growing batches, rule by rule, with and without warmup.

    python benchmarks/recipe_study.py                    # about 20 minutes on 2 cores; writes docs/study/
    python benchmarks/recipe_study.py --quick            # does it run? (its numbers mean nothing)

Every run sees the same number of rows: a batch sixteen times as large takes a sixteenth of the updates. One
device is enough, because every number of replicas gives its numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import phalanx  # before keras

# isort: split
import digits
import keras

BASE_BATCH = 64
BATCHES = (64, 128, 256, 512, 1024, 2048, 4096)
RULES = ("none", "linear", "sqrt")
EPOCHS = 20
SEEDS = (0, 1, 2, 3, 4)
RATES = {"SGD": 0.1, "Adam": 1e-3}
ROWS = 4096
WARMUP_SHARE = 0.1
BEGIN, END = "<!-- tables: made by benchmarks/recipe_study.py -->", "<!-- end of tables -->"


def accuracy(optimizer: str, rule: str, warm: bool, batch: int, seed: int, epochs: int, data: Any) -> float:
    """Train once and return the accuracy on the rows that were held out."""
    updates = epochs * -(-len(data.x_train) // batch)
    recipe = phalanx.Recipe(
        batch_per_replica=batch,
        learning_rate=RATES[optimizer],
        base_batch=BASE_BATCH,
        rule=rule,
        warmup_steps=int(WARMUP_SHARE * updates) if warm else 0,
    )
    strategy = phalanx.OneDeviceStrategy("cpu:0")
    cls = getattr(keras.optimizers, optimizer)
    plan = recipe.plan(strategy, optimizer=cls, dataset_size=len(data.x_train), epochs=epochs)
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((784,)),
                keras.layers.Dense(100, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        extra = {"momentum": 0.9} if optimizer == "SGD" else {}
        model.compile(
            plan.make_optimizer(cls, **extra),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(data.x_train, data.y_train, batch_size=plan.global_batch, epochs=epochs, verbose=0)
    logs = model.evaluate(data.x_test, data.y_test, batch_size=904, verbose=0, return_dict=True)
    keras.utils.clear_session()
    return float(logs["accuracy"])


def study(batches: tuple[int, ...], seeds: tuple[int, ...], epochs: int) -> list[dict[str, Any]]:
    """Run every combination; rules that agree at the base batch run once."""
    data = digits.load(test_share=0.1).flat()
    spare = len(data.x_train) - ROWS
    data = digits.Digits(data.x_train[:ROWS], data.y_train[:ROWS], data.x_test, data.y_test, data.source)
    assert spare >= 0, "the study wants 4,096 digits"
    found = []
    for optimizer in RATES:
        for batch in batches:
            for rule in RULES if batch > BASE_BATCH else ("none",):
                for warm in (False, True) if rule != "none" else (False,):
                    runs = [accuracy(optimizer, rule, warm, batch, seed, epochs, data) for seed in seeds]
                    found.append(
                        {
                            "optimizer": optimizer,
                            "batch": batch,
                            "rule": rule,
                            "warmup": warm,
                            "updates": epochs * -(-ROWS // batch),
                            "accuracy": runs,
                        }
                    )
                    print(_line(found[-1]), flush=True)
    return found


def _line(run: dict[str, Any]) -> str:
    name = (
        f"{run['optimizer']:5} batch {run['batch']:5} {run['rule']:6} {'warmup' if run['warmup'] else '':6}"
    )
    return f"{name} {_mean(run)}"


def _mean(run: dict[str, Any]) -> str:
    spread = statistics.stdev(run["accuracy"]) if len(run["accuracy"]) > 1 else 0.0
    return f"{statistics.fmean(run['accuracy']):.2%} ± {spread:.2%}"


def table(found: list[dict[str, Any]], optimizer: str) -> str:
    """The runs of one optimizer as a Markdown table: a row per batch, a column per rule."""
    columns = [("none", False), *((rule, warm) for rule in ("linear", "sqrt") for warm in (False, True))]
    names = [rule + (", warmup" if warm else "") for rule, warm in columns]
    lines = [f"| batch | updates | {' | '.join(names)} |", "|---:|---:|" + "---:|" * len(columns)]
    for batch in sorted({run["batch"] for run in found}):
        runs = {
            (r["rule"], r["warmup"]): r for r in found if (r["batch"], r["optimizer"]) == (batch, optimizer)
        }
        updates = next(iter(runs.values()))["updates"]
        base = runs.get(("none", False))
        cells = [_mean(runs.get(column, base)) for column in columns]
        lines.append(f"| {batch} | {updates} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Accuracy against batch, a line per rule, a panel per optimizer."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator, PercentFormatter

    figure = Figure(figsize=(11, 4.6), dpi=130, layout="constrained")
    figure.suptitle(
        f"Test accuracy after the same number of rows ({EPOCHS} epochs of 4,096 digits)", fontsize=13
    )
    colours = {"none": "0.45", "linear": "#d1600e", "sqrt": "#1f5fa8"}
    panels = figure.subplots(1, len(RATES), sharey=True)
    for axes, optimizer in zip(panels, RATES, strict=True):
        for rule in RULES:
            for warm in (False, True) if rule != "none" else (False,):
                runs = [
                    r
                    for r in found
                    if r["optimizer"] == optimizer
                    and (r["batch"] == BASE_BATCH or (r["rule"], r["warmup"]) == (rule, warm))
                ]
                means = [statistics.fmean(r["accuracy"]) for r in runs]
                spread = [statistics.stdev(r["accuracy"]) if len(r["accuracy"]) > 1 else 0 for r in runs]
                axes.errorbar(
                    [r["batch"] for r in runs],
                    means,
                    spread,
                    color=colours[rule],
                    fmt="s--" if warm else "o-",
                    markersize=4,
                    capsize=2,
                    label=rule + (", warmup" if warm else ""),
                )
        axes.set(title=optimizer, xlabel="Global batch (rows per update)", xscale="log")
        axes.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower left", title="rule")
    panels[0].set_ylabel("Test accuracy")
    figure.savefig(path)


def main() -> None:
    """Run, print, and write table, plot and raw numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="two batches, one seed, one epoch; writes nothing"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/study"), help="folder for the results")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", category=phalanx.PhalanxWarning)
    if args.quick:
        found = study((64, 1024), (0,), 1)
        print(table(found, "SGD"))
        return
    found = study(BATCHES, SEEDS, EPOCHS)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "runs.json").write_text(json.dumps(found, indent=1) + "\n")
    draw(found, args.out / "accuracy.png")
    page = args.out / "index.md"
    page.write_text(with_tables(page.read_text() if page.exists() else f"{BEGIN}{END}", found))


def with_tables(page: str, found: list[dict[str, Any]]) -> str:
    """The page with these runs' tables in the place of the old ones; its words stay."""
    parts = []
    for optimizer, rate in RATES.items():
        parts += [f"## {optimizer}, {rate:g} at a batch of {BASE_BATCH}", "", table(found, optimizer), ""]
    before, _, rest = page.partition(BEGIN)
    return before + "\n".join([BEGIN, "", *parts, ""]).rstrip("\n") + "\n\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    main()
