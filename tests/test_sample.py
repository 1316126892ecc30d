"""The sample is what its documentation says, checked from the files that ship."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lithi_datasets as lithi
from lithi_datasets import sample

CLASS_NAMES = tuple("0123456789")


@pytest.fixture(scope="module")
def bundle() -> lithi.Bundle:
    return lithi.open_bundle(sample.path())


@pytest.fixture(scope="module")
def table(bundle: lithi.Bundle) -> pa.Table:
    batches = [batch for index in range(len(bundle.parts)) for batch in bundle.read_part(index)]
    return pa.Table.from_batches(batches).combine_chunks()


def _numbers(table: pa.Table, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    column = table.column(name).to_numpy()
    return np.asarray(column, np.float64)


def test_it_verifies_whole_and_nothing_else_lies_in_its_folder(bundle: lithi.Bundle) -> None:
    report = bundle.verify()
    assert (report.files, report.rows, report.unbound) == (7, 1797, ())
    assert report.statuses == {"accepted": 1642, "failed": 32, "abstained": 123}


def test_it_is_complete_and_uses_two_formats_and_two_splits(bundle: lithi.Bundle) -> None:
    assert bundle.manifest.status == "COMPLETE"
    assert {part.format for part in bundle.parts} == {"parquet", "arrow"}
    rows = {split: [bundle.parts[i].rows for i in parts] for split, parts in bundle.splits.items()}
    assert rows == {"train": [520, 417, 300, 200], "test": [220, 140]}


def test_one_arrow_part_is_a_stream_and_the_others_are_files(bundle: lithi.Bundle) -> None:
    arrow = [part.path for part in bundle.parts if part.format == "arrow"]
    heads = [(sample.path() / path).read_bytes()[:6] == b"ARROW1" for path in arrow]
    assert sorted(heads) == [False, True, True]


def test_it_is_smaller_than_300_kilobytes() -> None:
    sizes = [path.stat().st_size for path in sample.path().rglob("*") if path.is_file()]
    assert sum(sizes) < 300_000


def test_its_columns_are_the_documented_ones(bundle: lithi.Bundle) -> None:
    assert bundle.arrow_schema == pa.schema(
        [
            pa.field("item_id", pa.string(), nullable=False),
            pa.field("pixels", pa.list_(pa.uint8(), 64), nullable=False),
            pa.field("label", pa.int64(), nullable=False),
            pa.field("prediction", pa.int64()),
            pa.field("lithi_status", pa.string(), nullable=False),
            pa.field("lithi_confidence", pa.float64()),
            pa.field("lithi_verification", pa.string()),
        ]
    )
    named = {field.name: field.class_names for field in bundle.manifest.table.fields}
    assert named["label"] == named["prediction"] == CLASS_NAMES


def test_the_ids_number_the_scans(table: pa.Table) -> None:
    assert table.column("item_id").to_pylist() == [f"digit-{n:04}" for n in range(1797)]


def test_the_scans_are_handwritten_digits_and_no_noise(table: pa.Table) -> None:
    pixels = table.column("pixels").combine_chunks().flatten().to_numpy().reshape(-1, 8, 8)
    assert (pixels.min(), pixels.max()) == (0, 16)
    # Digits leave the left and right edge nearly blank, and scans of one digit look alike.
    assert pixels[:, :, [0, 7]].mean() < 0.2
    assert pixels[:, :, 3:5].mean() > 8
    labels = _numbers(table, "label")
    means = np.stack([pixels[labels == digit].mean(axis=0) for digit in range(10)])
    distance = ((pixels[:, None] - means[None]) ** 2).sum(axis=(2, 3))
    assert (distance.argmin(axis=1) == labels).mean() > 0.85


def test_failed_rows_are_the_faint_scans_and_have_no_results(table: pa.Table) -> None:
    pixels = table.column("pixels").combine_chunks().flatten().to_numpy().reshape(-1, 64)
    failed = np.array(table.column("lithi_status").to_pylist()) == "failed"
    assert (failed == (pixels.max(axis=1) < 16)).all()
    for name in ("prediction", "lithi_confidence", "lithi_verification"):
        assert table.column(name).filter(pa.array(failed)).null_count == failed.sum() > 0


def test_abstained_rows_are_those_under_the_threshold_and_have_no_prediction(
    table: pa.Table,
) -> None:
    status = np.array(table.column("lithi_status").to_pylist())
    confidence = _numbers(table, "lithi_confidence")
    assert confidence[status == "abstained"].max() < 0.6 <= confidence[status == "accepted"].min()
    assert np.nanmin(confidence) > 0.1
    assert np.nanmax(confidence) <= 1
    abstained = table.filter(pa.array(status == "abstained"))
    assert abstained.column("prediction").null_count == len(abstained) == 123
    assert abstained.column("lithi_verification").null_count == 0


def test_accepted_predictions_are_good_and_not_perfect(table: pa.Table) -> None:
    accepted = table.filter(pa.array(_accepted(table)))
    right = _numbers(accepted, "prediction") == _numbers(accepted, "label")
    assert 0.98 < right.mean() < 1
    agrees = np.array(accepted.column("lithi_verification").to_pylist()) == "agrees"
    # The second model is worth asking: where it differs, the answer is wrong far more often.
    assert (~right)[~agrees].mean() > 10 * (~right)[agrees].mean()


def _accepted(table: pa.Table) -> list[bool]:
    return [status == "accepted" for status in table.column("lithi_status").to_pylist()]


def test_the_log_tells_the_counts_that_the_files_hold() -> None:
    log = (sample.path() / "logs" / "run.txt").read_text(encoding="utf-8")
    for fact in ("32 scans", "123 scans", "1642 accepted, of which 1623 (98.84%)"):
        assert fact in log


@pytest.mark.soak
def test_the_tool_makes_the_same_rows_again(tmp_path: Path, table: pa.Table) -> None:
    pytest.importorskip("sklearn")
    tool = Path(__file__).parent.parent / "tools" / "make_sample.py"
    subprocess.run([sys.executable, str(tool), str(tmp_path / "again")], check=True)
    bundle = lithi.open_bundle(tmp_path / "again")
    batches = [batch for index in range(len(bundle.parts)) for batch in bundle.read_part(index)]
    again = pa.Table.from_batches(batches).combine_chunks()
    # Another machine's arithmetic may move the last decimal that is kept.
    name = "lithi_confidence"
    assert again.drop_columns([name]) == table.drop_columns([name])
    np.testing.assert_allclose(_numbers(again, name), _numbers(table, name), atol=1e-4)
