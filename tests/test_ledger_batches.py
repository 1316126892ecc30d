"""What a ledger takes for ids; any sequence of batches is counted as a plain counter does."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch.utils.data as torch_data
from hypothesis import given, settings
from hypothesis import strategies as st

import lithi_datasets as lithi
from lithi_datasets import ledger_waiting
from lithi_datasets.ledger_ids import ids_of
from lithi_datasets.ledger_index import id_keys
from lithi_datasets.ledger_lines import Lines
from lithi_datasets.testing import write_bundle

STATUSES = ("accepted", "accepted", "failed", "abstained")
FAMILIES: dict[str, list[str]] = {
    "padded": [f"item-{n:04d}" for n in range(40)],
    "numbers": [str(n) for n in range(40)],
    "prefixes of each other": ["a" * n for n in range(1, 41)],
    "one character": [chr(0x30 + n) for n in range(40)],
    "eight bytes": [f"{n:08d}" for n in range(40)],
    "sixteen bytes": [f"{n:016d}" for n in range(40)],
    "digests": [f"{n * 0x9E3779B97F4A7C15 % 2**256:064x}" for n in range(1, 41)],
    "not ASCII": [f"é{n}\u2028🙂"[: 1 + n % 4] + f"ü{n}" for n in range(40)],
    "trailing zeros": ["x" + "\0" * n for n in range(40)],
    "all sorts": ["x", "x ", " x", "x\t", "é", "e\u0301", '"x"', "x,y", "NA", "\x85", "null", "X"],
}


def colliding(count: int) -> list[str]:
    """Pairs of which about half have one number under the first hash, whatever its seed is.

    Bit 62 of the first eight bytes moves bits 62 and 33 of what the second eight are mixed with, if
    no carry comes in between; the second id makes up for it.
    """
    ids = []
    for n in range(count):
        first, second = f"{n:07d}a", "cdef0123"
        ids.append(first + second)
        ids.append(f"{n:07d}!" + "cdef2" + second[5:7] + "s")
    return ids


FAMILIES["colliding"] = colliding(20)


def in_bundle(folder: Path, ids: Sequence[str], parts: int = 3) -> Path:
    tables = []
    size = -(-len(ids) // parts)
    for start in range(0, len(ids), size):
        some = ids[start : start + size]
        statuses = [STATUSES[(start + n) % 4] for n in range(len(some))]
        tables.append(pa.table({"item_id": some, "lithi_status": statuses}))
    write_bundle(folder, tables)
    return folder


@pytest.fixture(scope="module")
def datasets_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Family → the same rows in order, by an index of rows, and as a stream."""
    found = {}
    for name, ids in FAMILIES.items():
        folder = tmp_path_factory.mktemp("family")
        in_bundle(folder / "b", ids)
        ds = lithi.load(folder / "b", cache_dir=folder / "c")
        found[name] = {
            "in order": ds,
            "by index": ds.select([*range(1, len(ids)), 0]),
            "stream": lithi.load(folder / "b", streaming=True),
        }
    return found


Batches = list[list[int]]
"""Batches of rows; -1 and less is no row's id."""


@st.composite
def sequences(draw: st.DrawFn, rows: int) -> Batches:
    """Batches of consecutive rows, of a rank among others, shuffled, repeated, and of strangers."""
    found: Batches = []
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 7))
        kind = draw(st.sampled_from(["run", "rank", "any", "few"]))
        if kind == "any":
            order = draw(st.permutations(range(rows)))
            found += [list(order[at : at + size]) for at in range(0, rows, size)]
        elif kind == "few":
            found += draw(st.lists(st.lists(st.integers(-3, rows - 1), max_size=4), max_size=3))
        else:
            ranks = draw(st.integers(1, 3)) if kind == "rank" else 1
            first = draw(st.integers(0, rows - 1)) if kind == "run" else 0
            for at in range(first + draw(st.integers(0, ranks - 1)) * size, rows, ranks * size):
                found.append(list(range(at, min(at + size, rows))))
    return found


@pytest.mark.parametrize("kind", ["in order", "by index", "stream"])
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_sequence_of_batches_is_counted_as_a_counter_does(
    datasets_of: dict[str, dict[str, Any]], family: str, kind: str, data: st.DataObject
) -> None:
    ids, ds = FAMILIES[family], datasets_of[family][kind]
    batches = data.draw(sequences(len(ids)))
    flush = data.draw(st.sampled_from([1, 150, 2**20]))
    saved = data.draw(st.integers(0, len(batches)))
    ledger = lithi.Ledger(ds)
    model: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_waiting, "FLUSH_BYTES", flush)
        for number, batch in enumerate(batches):
            named = [ids[row] if row >= 0 else f"stranger {row}" for row in batch]
            model.update(named)
            ledger.observe({"item_id": named if number % 3 else pa.array(named, pa.string())})
            if number == saved:
                state = json.loads(json.dumps(ledger.state_dict()))
                ledger = lithi.Ledger(ds)
                ledger.load_state_dict(state)
        check(ledger, model, [*ids[1:], ids[0]] if kind == "by index" else ids)


def check(ledger: lithi.Ledger, model: Counter[str], ids: Sequence[str]) -> None:
    missing = [item for item in ids if not model[item]]
    repeated = [item for item in ids if model[item] > 1]
    strangers = [item for item in model if item not in set(ids)]
    totals = {
        "missing": len(missing),
        "repeated": len(repeated),
        "foreign": sum(model[item] for item in strangers),
    }
    if not any(totals.values()):
        assert ledger.reconcile().rows == len(ids)
        return
    with pytest.raises(lithi.ReconcileError) as caught:
        ledger.reconcile()
    error = caught.value
    assert error.totals == {name: count for name, count in totals.items() if count}
    assert error.missing == tuple(missing[:5])
    assert error.repeated == tuple(repeated[:5])
    assert error.foreign == tuple(strangers[:5])
    for item in repeated[:5]:
        assert f"{item!r} {model[item]} times" in str(error)


@pytest.mark.parametrize("family", FAMILIES)
def test_statuses_stay_with_their_ids(datasets_of: dict[str, dict[str, Any]], family: str) -> None:
    ids = FAMILIES[family]
    half = Counter(STATUSES[n % 4] for n in range(len(ids) // 2))
    for ds in datasets_of[family].values():
        ledger = lithi.Ledger(ds)
        ledger.observe({"item_id": ids[: len(ids) // 2][::-1]})
        tally = ledger._counted().tally()
        assert tally.seen == (half["accepted"], half["failed"], half["abstained"])


def test_ids_with_one_hash_are_told_apart(tmp_path: Path) -> None:
    """The ids are made so that some collide under any seed; they are then hashed another way."""
    ids = FAMILIES["colliding"]
    in_bundle(tmp_path / "b", ids)
    ds = lithi.load(tmp_path / "b", cache_dir=tmp_path / "c")
    digest = lithi.snapshot_of(ds).content_sha256
    equal = len(ids) - len(set(id_keys(pa.array(ids), digest, 0).tolist()))
    assert equal > 2, "the case is of ids that collide"
    assert len(set(id_keys(pa.array(ids), digest, 1).tolist())) == len(ids)
    ledger = lithi.Ledger(ds)
    ledger.observe({"item_id": ids[::-1]})
    assert ledger.reconcile().rows == len(ids)
    assert ledger._account.attempt == 1
    ledger.reset()
    ledger.observe({"item_id": [*ids[2::2], ids[0], *ids[::2]]})
    with pytest.raises(lithi.ReconcileError) as caught:
        ledger.reconcile()
    assert caught.value.totals == {"missing": 20, "repeated": 20}
    assert caught.value.missing == tuple(ids[1:10:2])


@pytest.mark.parametrize("family", FAMILIES)
def test_lines_of_many_batches_are_what_the_batches_held(family: str) -> None:
    ids = FAMILIES[family]
    batches: list[Any] = [ids[:1], ids[1:7], tuple(ids[7:9]), pa.array(ids[9:])]
    taken = [ids_of({"id": batch}, "id") for batch in batches]
    lines = Lines([text for text, _, _ in taken], [count for _, count, _ in taken])
    assert lines.count == len(ids)
    assert lines.array().to_pylist() == ids
    digest = "0123456789abcdef" * 4
    for attempt in (0, 1):
        keys = id_keys(pa.array(ids), digest, attempt)
        assert lines.keys(digest, attempt).tolist() == keys.tolist()
    for kind in (pa.string(), pa.large_string()):
        column = pa.array(["before", *ids], kind)
        assert lines.same([column[1:4], column[4:]])
        assert lines.same([column[row : row + 1] for row in range(1, len(column))])
        other = pa.array([*ids[:-1], ids[-1][:-1] + "?"], kind)
        assert not lines.same([other])
        assert not lines.same([column[1:-1]])


def test_pieces_of_ids_are_compared_each_with_its_own_lengths() -> None:
    """Pieces of one size: what is laid out for the first must not serve for the others."""
    pieces = [["abc", "def", "ghi"], ["jk", "lm", "no", "pq"], ["rstuv", "wxyz1"], ["2", "3456789"]]
    ids = [item for piece in pieces for item in piece]
    lines = Lines(["\n".join(ids).encode()], [len(ids)])
    assert lines.same(map(pa.array, pieces))


@pytest.fixture(scope="module")
def padded(datasets_of: dict[str, dict[str, Any]]) -> Any:
    return datasets_of["padded"]["in order"]


def test_a_batch_without_ids_is_refused_with_the_way_out(padded: Any) -> None:
    ledger = lithi.Ledger(padded)
    for batch, found in (
        ({"x": [1], "y": [2]}, "dict of x, y"),
        ([{"x": 1}], "list"),
        (([1, 2], [3, 4]), "tuple"),
        (3, "int"),
        ("item-0000", "str"),
        (None, "NoneType"),
    ):
        with pytest.raises(lithi.UsageError, match="does not carry the item ids") as caught:
            ledger.observe(batch)
        assert caught.value.found == found
        assert "remove_unused_columns=False" in str(caught.value)


def test_ids_that_have_no_utf_8_are_foreign(padded: Any) -> None:
    ledger = lithi.Ledger(padded)
    ledger.observe({"item_id": [*FAMILIES["padded"], "\ud800"]})
    with pytest.raises(lithi.ReconcileError) as caught:
        ledger.reconcile()
    assert caught.value.foreign == ("\ud800",)
    assert caught.value.totals == {"foreign": 1}


def test_ids_with_a_line_feed_are_never_taken_for_two(padded: Any) -> None:
    ids = FAMILIES["padded"]
    ledger = lithi.Ledger(padded)
    ledger.observe({"item_id": [f"{ids[0]}\n{ids[1]}"]})
    ledger.observe({"item_id": ids[2:]})
    with pytest.raises(lithi.UsageError, match="line feed") as caught:
        ledger.reconcile()
    assert caught.value.found == repr(f"{ids[0]}\n{ids[1]}")


class _Observing(torch_data.Dataset[Any]):
    def __init__(self, ledger: lithi.Ledger) -> None:
        self.ledger = ledger

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        try:
            self.ledger.observe({"item_id": ["item-0000"]})
        except lithi.UsageError as error:
            return error.problem
        return "counted"


def test_a_ledger_in_a_worker_is_refused(padded: Any) -> None:
    loader = torch_data.DataLoader(_Observing(lithi.Ledger(padded)), num_workers=1)
    assert list(loader) == [
        ["A ledger in a DataLoader worker counts for nobody: its counts end with the worker."]
    ]


def test_a_dataset_that_tells_nothing_about_its_rows_is_refused(padded: Any) -> None:
    import datasets

    for ds, match in (
        (datasets.Dataset.from_dict({"item_id": ["a"]}), "does not know which bundle"),
        (datasets.DatasetDict({"train": padded}), "A ledger is of one dataset"),
        (padded.remove_columns(["item_id"]), "lost columns"),
        (padded.remove_columns(["lithi_status"]), "lost columns"),
    ):
        with pytest.raises(lithi.UsageError, match=match):
            lithi.Ledger(ds)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("column", "value"),
    [("lithi_status", "done"), ("lithi_status", None), ("item_id", None), ("item_id", 3)],
)
def test_a_dataset_whose_ids_or_statuses_were_changed_is_refused(
    datasets_of: dict[str, dict[str, Any]], column: str, value: Any, streaming: bool
) -> None:
    ds = datasets_of["padded"]["stream" if streaming else "in order"].with_format(None)
    changed = (
        ds.map(lambda row: {column: value if row["item_id"].endswith("7") else row[column]})
        if value != 3
        else ds.map(lambda row: {column: 3}, remove_columns=[column])
    )
    ledger = lithi.Ledger(changed, subset=True)
    ledger.observe({"item_id": ["item-0000"]})
    with pytest.raises(lithi.UsageError, match="is not what the bundle holds") as caught:
        ledger.reconcile()
    assert caught.value.path == column


def test_a_dataset_that_holds_a_row_twice_is_refused(padded: Any) -> None:
    for order in ([3, 4, 3], [7, 0, 0, 7, 1, 1]):
        twice = padded.select(order)
        ledger = lithi.Ledger(twice, subset=True)
        ledger.observe({"item_id": ["item-0000"]})
        with pytest.raises(lithi.UsageError, match="more than once") as caught:
            ledger.reconcile()
        assert "'item-000" in str(caught.value.found)


def test_a_bundle_that_holds_an_id_twice_is_refused_where_it_streams(tmp_path: Path) -> None:
    tables = [pa.table({"item_id": ids}) for ids in (["a", "b"], ["c", "b"])]
    write_bundle(tmp_path / "b", tables, kind="staged_input", mutate=lambda document: None)
    ledger = lithi.Ledger(lithi.load(tmp_path / "b", streaming=True))
    ledger.observe({"item_id": ["a", "b", "c", "b"]})
    with pytest.raises(lithi.DuplicateItemId) as caught:
        ledger.reconcile()
    assert caught.value.found == "'b'"


def _mixed(state: int, word: int) -> int:
    state = (state ^ word) * 0x9E3779B97F4A7C15 % 2**64
    return state ^ state >> 29


def _hash(item: str, seed: int) -> int:
    """The hash of an id, written out."""
    data = item.encode()
    state = seed ^ len(data)
    for at in range(0, len(data), 8):
        state = _mixed(state, int.from_bytes(data[at : at + 8], "little"))
    state = state * 0xC2B2AE3D27D4EB4F % 2**64
    return state ^ state >> 32


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_number_of_an_id_is_its_hash_wherever_it_lies(family: str, kind: pa.DataType) -> None:
    """States keep digests of these numbers: they must never change."""
    digest = f"{zlib.crc32(family.encode()):08x}" * 8
    ids = FAMILIES[family]
    expected = [_hash(item, int(digest[:16], 16)) & ~3 for item in ids]
    column = pa.array(ids, kind)
    assert id_keys(column, digest, 0).tolist() == expected
    assert id_keys(column.slice(3), digest, 0).tolist() == expected[3:]
    assert id_keys(column.slice(3, 4), digest, 0).tolist() == expected[3:7]
    assert id_keys(column.slice(3, 0), digest, 0).tolist() == []
