"""`with_format("lithi_torch")`: the exact torch format of `datasets`, map-style and streaming.

What a batch and a row hold is said in `lithi_datasets.reading.tensors`; it is decided by the Arrow
types of the table, which are the manifest's. This module only connects it. With
`lithi_datasets.builder` it is the one that knows how `datasets` works inside, and it rests on this:

- `_register_formatter` and the two tables behind it;
- `Formatter.format_row`, `format_column` and `format_batch` get the Arrow table of a query;
- streams take rows apart in Python wherever they can't pass Arrow on: after `map`, and before 5.0
  after nearly everything. There a `FormattedExamplesIterable` turns batches into rows, or rows of
  Python values into formatted ones, and it alone names a token when it asks for a formatter;
  `IterableDataset.iter` and batched `map` join formatted rows with `recursive_tensorize`. So with a
  token named, a batch is given as rows, and what `recursive_tensorize` gets is a row; without, the
  rows of a batch;
- for old versions, `IterableDataset._prepare_ex_iterable_for_iteration`; see `_keep_types_of_rows`.

Features that decode (`Image`, `Audio`) are given as what is stored.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from datasets.formatting import _FORMAT_TYPES, _register_formatter
from datasets.formatting.formatting import TensorFormatter
from datasets.iterable_dataset import (
    ExamplesIterable,
    IterableDataset,
    RebatchedArrowExamplesIterable,
)

from lithi_datasets.errors import UsageError

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

__all__ = ["FORMAT", "LithiFormatName", "TorchExactFormatter", "register"]


class LithiFormatName(str):
    """The name of a format of this package, equal to the plain string.

    A dataset keeps the name of its format. Since this one is of a class of this package, unpickling
    a dataset in a spawned worker imports the package, which registers the format.
    """

    __slots__ = ()


FORMAT: Final = LithiFormatName("lithi_torch")
_NO_TOKEN: Final = object()


class TorchExactFormatter(TensorFormatter):
    """Rows, columns and batches as torch tensors of exactly the table's types.

    Args:
        features: of the dataset; used only where `datasets` passes on Python values without types.
        token_per_repo_id: named by streams that take batches apart into rows; not used otherwise.
        **unknown: format keywords, all refused: `to_iterable_dataset` would refuse the dataset.

    Raises:
        UsageError: a format keyword is given.
    """

    def __init__(
        self,
        features: datasets.Features | None = None,
        token_per_repo_id: Any = _NO_TOKEN,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise UsageError(
                f"The format {FORMAT!s} takes no keywords.",
                expected=f"with_format({str(FORMAT)!r})",
                found=", ".join(sorted(unknown)),
                remedy="The dtypes are the manifest's; convert tensors where you use them.",
            )
        super().__init__(features=features)
        # Not at the top: `import lithi_datasets` registers the format, and must not import torch.
        from lithi_datasets.reading import examples, tensors

        self._examples, self._tensors = examples, tensors
        self._by_row = token_per_repo_id is not _NO_TOKEN
        self._schema: pa.Schema = None if features is None else features.arrow_schema

    def format_row(self, pa_table: pa.Table) -> dict[str, Any]:
        """The first row; a null is None."""
        row = pa_table.slice(0, 1)
        return {
            name: self._tensors.row_values(name, column)[0]
            for name, column in zip(row.column_names, row.columns, strict=True)
        }

    def format_column(self, pa_table: pa.Table) -> Any:
        """The first column, as it stands in a batch."""
        return self._tensors.batch_values(pa_table.column_names[0], pa_table.column(0))

    def format_batch(self, pa_table: pa.Table) -> dict[str, Any]:
        """All rows; as lists of rows where a stream is going to take them apart."""
        if not self._by_row:
            return self._tensors.to_tensors(pa_table, masks=None)
        return {
            name: self._tensors.row_values(name, column)
            for name, column in zip(pa_table.column_names, pa_table.columns, strict=True)
        }

    def recursive_tensorize(self, data_struct: dict[str, Any]) -> dict[str, Any]:
        """A row of Python values, or the joined rows of a batch; see the module."""
        change = self._examples.to_row_value if self._by_row else self._examples.to_batch_values
        return {name: change(name, value, self._kind(name)) for name, value in data_struct.items()}

    def _kind(self, name: str) -> pa.DataType | None:
        if self._schema is None or name not in self._schema.names:
            return None
        return self._schema.field(name).type


class _Rows(RebatchedArrowExamplesIterable):
    """Batches of Arrow tables where there are any; else the rows as they are."""

    @property
    def iter_arrow(self) -> Any:
        return self._iter_arrow if self.ex_iterable.iter_arrow else None

    def shuffle_data_sources(self, *args: Any, **keywords: Any) -> Any:
        return _keeping_rows(super().shuffle_data_sources(*args, **keywords))

    def shard_data_sources(self, *args: Any, **keywords: Any) -> Any:
        return _keeping_rows(super().shard_data_sources(*args, **keywords))


def _keeping_rows(iterable: Any) -> Any:
    iterable.__class__ = _Rows
    return iterable


def _keep_types_of_rows() -> None:
    """Keep old versions of `datasets` (3.6) from guessing the types of a stream's rows anew.

    There every stream whose features are known ends in Arrow tables: rows that are no longer Arrow,
    after `shuffle`, `take`, `skip` or `filter`, are inferred from their values and then cast. That
    fails on times and on numbers over 2^63, and where one row is null and the next isn't. Streams
    of other formats are left as they are; newer versions need no change, and get none.
    """
    plain = ExamplesIterable(iter, {})
    stock = IterableDataset._prepare_ex_iterable_for_iteration
    if RebatchedArrowExamplesIterable(plain, 1).iter_arrow is None or hasattr(
        stock, "serves_lithi"
    ):
        return

    @wraps(stock)
    def prepare(self: Any, *args: Any, **keywords: Any) -> Any:
        iterable = stock(self, *args, **keywords)
        if self._formatting is not None and self._formatting.format_type == FORMAT:
            batches = iterable.ex_iterable
            if type(batches) is RebatchedArrowExamplesIterable:
                _keeping_rows(batches)
        return iterable

    prepare.serves_lithi = True  # type: ignore[attr-defined]
    IterableDataset._prepare_ex_iterable_for_iteration = prepare


def register() -> None:
    """Make `with_format("lithi_torch")` find this format; safe to call again."""
    if _FORMAT_TYPES.get(FORMAT) is not TorchExactFormatter:
        _register_formatter(TorchExactFormatter, FORMAT)
    _keep_types_of_rows()


register()
