"""Makes the sample bundle: scikit-learn's handwritten digits, classified out of fold.

    python tools/make_sample.py [folder]        # by default the folder inside the package

Needs scikit-learn, which the package itself does not. The same versions give the same bytes.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import sklearn
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lithi_datasets import sample
from lithi_datasets.testing import PartSpec, write_bundle

SEED = 0
FOLDS = 5
FULL_INK = 16
"""Pixels count ink from 0 to 16. A scan without one pixel of full ink is refused as too faint."""
THRESHOLD = 0.6
"""Below this probability of its own best guess, the model gives no answer."""
CONFIDENCE_DIGITS = 4
"""Enough to compare confidences; the last bits, which differ by machine, stay out of the bytes."""
CLASS_NAMES = [str(digit) for digit in range(10)]

# Split, format, rows, how it is written; in the order of the set. Uneven, as real parts are.
PARTS: list[tuple[str, str, int, dict[str, Any]]] = [
    ("train", "parquet", 520, {"compression": "zstd"}),
    ("train", "arrow", 417, {"compression": "zstd", "batch_rows": 128}),
    ("train", "parquet", 300, {"compression": "zstd", "row_group_size": 100}),
    ("train", "arrow", 200, {"compression": "zstd", "stream": True}),
    ("test", "parquet", 220, {"compression": "zstd"}),
    ("test", "arrow", 140, {"compression": "zstd"}),
]

LOG = """\
input       handwritten digits, 8 x 8 pixels, values 0 to 16, with the digit that a person read
            (E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning
            Repository, 1998, doi:10.24432/C50P49, CC BY 4.0; as scikit-learn ships its test set)
failed      {failed} scans without one pixel of full ink (16): the run's exposure check refuses
            them, and nothing more was done with them
model       logistic regression (C = 0.1) on standardised pixels; each scan is classified by a model
            that did not see it in training ({folds} stratified folds, seed {seed})
confidence  probability of the predicted digit, rounded to {digits} decimals
abstained   {abstained} scans where that is under {threshold}: no prediction is given
verified    by a second model of another kind, 3 nearest neighbours in the same folds: `agrees` or
            `differs`, said of the best guess also where the model abstained
outcome     {accepted} accepted, of which {right} ({share:.2%}) are the digit that the person read
versions    scikit-learn {sklearn}
"""


@dataclass(frozen=True)
class Run:
    """What the run found; every array has one entry for each scan, `[n]`."""

    readable: NDArray[np.bool_]
    guess: NDArray[np.int64]
    confidence: NDArray[np.float64]
    second: NDArray[np.int64]

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """The scans that got an answer."""
        return self.readable & (self.confidence >= THRESHOLD)


def classify(pixels: NDArray[np.float64], truth: NDArray[np.int64]) -> Run:
    """Classify every readable scan out of fold.

    Args:
        pixels: `float64[n, 64]`.
        truth: `int64[n]`.
    """
    readable = pixels.max(axis=1) >= FULL_INK
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=SEED)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000))
    chances = cross_val_predict(
        model, pixels[readable], truth[readable], cv=folds, method="predict_proba"
    )
    neighbours = KNeighborsClassifier(3)
    second = cross_val_predict(neighbours, pixels[readable], truth[readable], cv=folds)
    run = Run(
        readable,
        guess=np.zeros(len(truth), np.int64),
        confidence=np.zeros(len(truth)),
        second=np.zeros(len(truth), np.int64),
    )
    run.guess[readable] = chances.argmax(axis=1)
    run.confidence[readable] = chances.max(axis=1).round(CONFIDENCE_DIGITS)
    run.second[readable] = second
    return run


def to_table(pixels: NDArray[np.float64], truth: NDArray[np.int64], run: Run) -> pa.Table:
    """The rows of the bundle, in the order of the set."""
    status = np.where(run.accepted, "accepted", np.where(run.readable, "abstained", "failed"))
    agreement = np.where(run.guess == run.second, "agrees", "differs")
    columns = {
        "item_id": pa.array([f"digit-{index:04}" for index in range(len(truth))]),
        "pixels": pa.FixedSizeListArray.from_arrays(
            pa.array(pixels.astype(np.uint8).ravel()), pixels.shape[1]
        ),
        "label": pa.array(truth.astype(np.int8)),
        "prediction": pa.array(run.guess.astype(np.int8), mask=~run.accepted),
        "lithi_status": pa.array(status.tolist()),
        "lithi_confidence": pa.array(run.confidence, mask=~run.readable),
        "lithi_verification": pa.array(agreement.tolist(), mask=~run.readable),
    }
    return pa.table(columns)


def to_parts(table: pa.Table) -> list[PartSpec]:
    """Cut the rows into the parts; each file is compressed inside."""
    parts = []
    start = 0
    for split, kind, rows, options in PARTS:
        piece = table.slice(start, rows).combine_chunks()
        parts.append(PartSpec(piece, split=split, format=kind, options=options))
        start += rows
    assert start == table.num_rows
    return parts


def log_text(run: Run, truth: NDArray[np.int64]) -> str:
    """How the run went, for the log that the bundle binds."""
    accepted = int(run.accepted.sum())
    right = int((run.guess == truth)[run.accepted].sum())
    facts: dict[str, Any] = {
        "failed": int((~run.readable).sum()),
        "abstained": int(run.readable.sum()) - accepted,
        "accepted": accepted,
        "right": right,
        "share": right / accepted,
    }
    return LOG.format(
        **facts,
        folds=FOLDS,
        seed=SEED,
        digits=CONFIDENCE_DIGITS,
        threshold=THRESHOLD,
        sklearn=sklearn.__version__,
    )


def main() -> None:
    """Make the bundle and print its snapshot."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else sample.path()
    digits = load_digits()
    truth = digits.target.astype(np.int64)
    run = classify(digits.data, truth)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    snapshot = write_bundle(
        folder,
        to_parts(to_table(digits.data, truth, run)),
        version_id="res_sample_digits_1",
        class_names={"label": CLASS_NAMES, "prediction": CLASS_NAMES},
        required=["pixels", "label"],
        attachments={"logs/run.txt": log_text(run, truth).encode()},
        created_at="2026-11-30T00:00:00Z",
    )
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(snapshot.as_dict(), f"{size} bytes")


if __name__ == "__main__":
    main()
