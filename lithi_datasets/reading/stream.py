"""The loader of a stream: whole parts for each rank and worker, verified part by part."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch.utils.data as torch_data

from lithi_datasets.builder import StreamView, stream_of_parts, stream_view
from lithi_datasets.errors import LithiError, StateError, UsageError
from lithi_datasets.provenance import provenance_of
from lithi_datasets.reading.batches import Failure, LoaderOptions, in_worker
from lithi_datasets.reading.loader import Loader, as_it_is
from lithi_datasets.reading.order import ORDER_FORMAT, shuffled_parts, whole
from lithi_datasets.reading.plan import assign_parts
from lithi_datasets.reading.rows import joined
from lithi_datasets.reading.state import STATE_VERSION, check_state, taken
from lithi_datasets.reading.tensors import BatchMaker, masked_columns, refuse_mask_collisions

if TYPE_CHECKING:
    import datasets

__all__ = ["StreamLoader"]

Item = tuple[int, dict[str, Any]]
"""The reader that made a batch, and the batch."""

_MAPPED_ROWS = 1024


class _StreamBatches(torch_data.IterableDataset[Any]):
    """The batches of a rank's parts.

    A *reader* is a worker by its place in the round: after a resume the round goes on with another
    worker than the first, so worker 0 takes the place of the reader whose turn it is.
    """

    def __init__(self, ds: datasets.IterableDataset, options: LoaderOptions) -> None:
        view = stream_view(ds)
        known = provenance_of(ds)
        self._ds, self._view, self._options = ds, view, options
        self.key = f"{known.content_sha256}:{view.identity}"
        sizes = [view.builder.bundle.parts[index].rows for index in view.parts]
        owned = assign_parts(sizes, options.world_size, options.num_workers)[options.rank]
        self.readers = [[view.parts[own] for own in worker] for worker in owned]
        self._masks = frozenset(known.nullable)
        self.epoch = self.turn = 0
        self.done = [0] * len(self.readers)

    def rows_of(self, part: int) -> int | None:
        """Rows that the stream yields of a part; None where only reading it tells."""
        return _known_rows(self._view, part)

    def __iter__(self) -> Iterator[Item | Failure]:
        info = torch_data.get_worker_info()
        place = 0 if info is None else info.id
        reader = (place + self.turn) % len(self.readers)
        make = None
        try:
            for rows in self._batches(reader):
                if make is None or rows.schema != make.schema:  # of a mapped stream it may change
                    make = BatchMaker(rows.schema, masks=self._masks)
                yield reader, make(rows)
        except LithiError as error:
            yield in_worker(error)

    def _batches(self, reader: int) -> Iterator[pa.RecordBatch | pa.Table]:
        size = self._options.batch_size
        skip = self.done[reader] * size
        held: list[pa.RecordBatch | pa.Table] = []
        rows = 0
        for table in self._tables(reader, skip):
            held.append(table)
            rows += table.num_rows
            if rows < size:
                continue
            together = joined(held)
            end = rows - rows % size
            yield from (together.slice(first, size) for first in range(0, end, size))
            held, rows = [together.slice(end)], rows - end
        if rows and not self._options.drop_last:
            yield joined(held)

    def _tables(self, reader: int, skip: int) -> Iterator[pa.Table]:
        for part in self._in_order(self.readers[reader]):
            rows = self.rows_of(part)
            if rows is not None and rows <= skip:
                skip -= rows  # read before the state was saved: not even fetched
                continue
            for table in self._part(part):
                cut = min(skip, table.num_rows)
                skip -= cut
                if cut < table.num_rows:
                    yield table.slice(cut)

    def _in_order(self, parts: list[int]) -> list[int]:
        if not self._options.shuffle or self._options.seed is None:
            return parts
        seed = self._options.seed
        return [*shuffled_parts(parts, key=self.key, seed=seed, epoch=self.epoch)]

    def _part(self, part: int) -> Iterator[pa.Table]:
        if self._view.plain:
            return (table for _, table in self._view.builder._generate_tables([part]))
        return self._mapped(part)

    def _mapped(self, part: int) -> Iterator[pa.Table]:
        """The rows of a part after what was done to the stream, typed alike in every table.

        `datasets` passes Python values on and would infer their types batch by batch: a batch of
        nulls would be of another type than the next one.
        """
        features = self._ds.features or self._view.builder.info.features
        types = {field.name: field.type for field in features.arrow_schema}
        one = stream_of_parts(self._ds, [part]).with_format(None)
        for batch in one.iter(batch_size=_MAPPED_ROWS):
            columns = {}
            for name, values in batch.items():
                columns[name] = _typed(name, values, types.get(name))
                types.setdefault(name, columns[name].type)
            yield pa.table(columns)


def _unmarked(items: Iterator[Item]) -> Iterator[tuple[Item, bool]]:
    return ((item, False) for item in items)


def _marked(items: Iterator[Item]) -> Iterator[tuple[Item, bool]]:
    """Each item with whether it is the last; reads one ahead."""
    for item in items:
        held = item
        break
    else:
        return
    for item in items:
        yield held, False
        held = item
    yield held, True


def _typed(name: str, values: list[Any], kind: pa.DataType | None) -> pa.Array:
    try:
        plain = [value.tolist() if hasattr(value, "tolist") else value for value in values]
        return pa.array(plain, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"A map of this stream changed the type of column {name!r}: {error}",
            path=name,
            expected="one type" if kind is None else str(kind),
            remedy="Pass features= to map, so that every batch is of one type.",
        ) from error


def _known_rows(view: StreamView, part: int) -> int | None:
    entry = view.builder.bundle.parts[part]
    statuses = view.builder.selection.statuses
    if entry.rows == 0:
        return 0
    if not view.plain:
        return None
    if statuses is None:
        return entry.rows
    if not view.builder.bundle.manifest.has_status:
        return entry.rows if "accepted" in statuses else 0
    counts = entry.status_counts
    return None if counts is None else sum(getattr(counts, status) for status in statuses)


class StreamLoader(Loader):
    """The loader of a stream; a state needs the same ranks, batch size and workers."""

    def __init__(self, ds: datasets.IterableDataset, options: LoaderOptions) -> None:
        self.known = provenance_of(ds)
        self.options = options
        self._batches = _StreamBatches(ds, options)
        self._finished = False
        if ds.features is not None:
            schema = ds.features.arrow_schema
            masks = masked_columns(schema, self.known.nullable)
            refuse_mask_collisions(schema.names, masks)
        super().__init__(
            self._batches,
            batch_size=None,
            num_workers=options.num_workers,
            collate_fn=as_it_is,
        )

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch that the next batch is of, or that was just read to its end."""
        return self._batches.epoch

    def _rows(self) -> list[int] | None:
        """Rows of each reader, None where a part's are not known."""
        totals = []
        for parts in self._batches.readers:
            rows = [self._batches.rows_of(part) for part in parts]
            if None in rows:
                return None
            totals.append(sum(row for row in rows if row is not None))
        return totals

    def _steps(self) -> list[int] | None:
        rows = self._rows()
        if rows is None:
            return None
        size = self.options.batch_size
        return [row // size if self.options.drop_last else -(-row // size) for row in rows]

    def __len__(self) -> int:
        """The number of batches that the next `iter()` yields on this rank.

        Raises:
            TypeError: only reading tells how many rows a filter leaves.
        """
        steps = self._steps()
        if steps is None:
            raise TypeError("A stream that filters rows has no length before it is read.")
        done = [0] * len(steps) if self._at_end(steps) else self._batches.done
        return sum(steps) - sum(done)

    def _at_end(self, steps: list[int] | None) -> bool:
        if steps is None:
            return self._finished
        return sum(self._batches.done) > 0 and self._batches.done == steps

    @property
    def dropped(self) -> int:
        """Rows of this rank that `drop_last` leaves out; 0 where only reading would tell."""
        rows = self._rows() if self.options.drop_last else None
        return 0 if rows is None else sum(row % self.options.batch_size for row in rows)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batches = self._batches
        steps = self._steps()
        if self._at_end(steps):
            self._go_to(batches.epoch + 1)
        items = self._delivered()
        # Where no length is known, the state of the last batch has to say that it is the last.
        for (reader, batch), last in _marked(items) if steps is None else _unmarked(items):
            batches.done[reader] += 1
            batches.turn = (reader + 1) % len(batches.readers)
            self._finished = last
            yield batch
        self._finished = True

    def _go_to(self, epoch: int) -> None:
        batches = self._batches
        batches.epoch, batches.turn = epoch, 0
        batches.done = [0] * len(batches.readers)
        self._finished = False

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; the current one keeps its position."""
        if whole("epoch", epoch, least=0) != self._batches.epoch:
            self._go_to(int(epoch))

    def _identity(self) -> dict[str, Any]:
        options = self.options
        return {
            "version": STATE_VERSION,
            "kind": "stream",
            "snapshot": self.known.snapshot.as_dict(),
            "view": self._batches.key,
            "shuffle": options.shuffle,
            "seed": options.seed,
            "world_size": options.world_size,
            "rank": options.rank,
            "batch_size": options.batch_size,
            "num_workers": options.num_workers,
            "drop_last": options.drop_last,
            "order": ORDER_FORMAT,
        }

    def state_dict(self) -> dict[str, Any]:
        """The position as plain JSON; the same ranks, batch size and workers continue it."""
        batches = self._batches
        return {
            **self._identity(),
            "epoch": batches.epoch,
            "done": list(batches.done),
            "turn": batches.turn,
            "finished": self._finished,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where this rank was when its state was saved."""
        check_state(state_dict, self._identity(), supersedes=self.known.supersedes)
        batches = self._batches
        epoch = taken(state_dict, "epoch", int, least=0)
        turn = taken(state_dict, "turn", int, least=0)
        finished = taken(state_dict, "finished", bool)
        done = taken(state_dict, "done", list)
        steps = self._steps() or [sys.maxsize] * len(batches.readers)
        whole_counts = [type(n) is int for n in done]
        fits = len(done) == len(steps) and all(whole_counts) and turn < len(steps)
        if not fits or any(not 0 <= n <= most for n, most in zip(done, steps, strict=True)):
            raise StateError(
                "This is not the state of this loader: its position is broken.",
                path="done",
                expected=f"batches read by each of {len(steps)} readers, at most {steps}",
                found=f"done={done!r}, turn={turn!r}",
            )
        batches.epoch, batches.turn, batches.done = epoch, turn, list(done)
        self._finished = finished
