"""The `datasets` builder of bundles, registered as `lithi_bundle`.

With `reading/formatter.py` the only module that knows how `datasets` works inside. It does no I/O
of its
own: `datasets` patches `open`, `os.path` and `pathlib.Path` in a builder's module for the whole
process, so this module imports none of them.

Three things of `datasets` are replaced, each for a reason:

- file resolution (`register`): it lists the folder, takes `[` for a glob and mangles URLs, and
calls an
  empty folder `EmptyDatasetError`, all before a builder could look at the manifest;
- `download_and_prepare`: it wraps the package's errors, and puts shards of a killed run into the
cache;
- the fingerprint and the cache folder: they depend on paths and times, ours on the content digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import datasets
from datasets.fingerprint import Hasher
from datasets.load import DatasetModule, PackagedDatasetModuleFactory
from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES
from datasets.splits import SplitDict, SplitGenerator, SplitInfo
from datasets.table import InMemoryTable, MemoryMappedTable, Table, concat_tables
from datasets.utils.info_utils import VerificationMode

from lithi_datasets import convert, provenance
from lithi_datasets.bundle import Bundle, open_bundle
from lithi_datasets.errors import UsageError
from lithi_datasets.keywords import OPTIONS, Source, one_source, refuse_keywords, refuse_options
from lithi_datasets.selection import Selection, normal_statuses, select_columns

if TYPE_CHECKING:
    from lithi_datasets.cache import CacheEntry
    from lithi_datasets.manifest import Snapshot

__all__ = [
    "NAME",
    "LithiBundle",
    "LithiBundleConfig",
    "StreamView",
    "mark_node",
    "register",
    "rows_of",
    "stream_of_parts",
    "stream_view",
]

NAME = "lithi_bundle"

_NO_PART = -1


@dataclass
class LithiBundleConfig(datasets.BuilderConfig):
    """The keywords of `load_dataset("lithi_bundle", …)`; see `lithi_datasets.load`."""

    snapshot: Snapshot | Mapping[str, Any] | None = None
    allow_partial: bool = False
    statuses: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    credential_ref: str | None = None


class LithiBundle(datasets.ArrowBasedBuilder):
    """Builds the dataset of one bundle.

    Raises, on construction, what `open_bundle` raises, and `UsageError` for keywords that have no
    meaning for a bundle.
    """

    BUILDER_CONFIG_CLASS = LithiBundleConfig

    def __init__(
        self,
        cache_dir: str | None = None,
        dataset_name: str | None = None,
        config_name: str | None = None,
        *,
        data_files: Any = None,
        data_dir: Any = None,
        **keywords: Any,
    ) -> None:
        options = {name: keywords.pop(name) for name in OPTIONS if name in keywords}
        refuse_keywords(keywords)
        source = data_files if isinstance(data_files, Source) else one_source(data_dir, data_files)
        self.options = LithiBundleConfig(**options)
        self.bundle: Bundle = open_bundle(
            source.source,
            snapshot=self.options.snapshot,
            allow_partial=self.options.allow_partial,
            credential_ref=self.options.credential_ref,
        )
        self.selection = Selection(
            statuses=normal_statuses(self.options.statuses),
            columns=select_columns(self.bundle, self.options.columns),
        )
        self._cache_given = cache_dir
        self._entry: CacheEntry | None = None
        super().__init__(cache_dir=cache_dir, dataset_name=NAME, config_name=config_name)

    def _create_builder_config(self, *_: Any, **__: Any) -> tuple[LithiBundleConfig, str]:
        # The stock one hashes keywords and paths into the identity.
        return self.options, self.bundle.snapshot.content_sha256

    def _build_cache_dir(self) -> str:
        root = convert.cache_root(self._cache_given)
        return str(root / convert.entry_key(self.bundle, self.selection.statuses).folder_name)

    def _check_legacy_cache(self) -> None:
        return None

    def _check_legacy_cache2(self, *_: Any) -> None:
        return None

    def _info(self) -> datasets.DatasetInfo:
        features = self.bundle.features
        if self.selection.columns is not None:
            features = datasets.Features({name: features[name] for name in self.selection.columns})
        known = provenance.Provenance.of_bundle(self.bundle, statuses=self.selection.statuses)
        return datasets.DatasetInfo(
            description=f"Lithi Compute result bundle {self.bundle.snapshot.version_id}",
            features=features,
            download_checksums=known.as_checksums(),
        )

    def download_and_prepare(
        self,
        output_dir: Any = None,
        download_config: Any = None,
        download_mode: Any = None,
        verification_mode: Any = None,
        dl_manager: Any = None,
        base_path: str | None = None,
        file_format: str | None = None,
        max_shard_size: Any = None,
        num_proc: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Verify and convert the bundle into the cache, or into `output_dir`.

        Args:
            output_dir: a new or empty local folder; None is the cache.
            download_mode: `"force_redownload"` converts again.
            verification_mode: `"all_checks"` hashes what is cached before it is used.
            num_proc: how many parts are converted at a time.

        Raises:
            BundleError: as itself, the rule that the bundle breaks; nothing is left behind.
            StorageError: the storage failed, or there is no room.
            UsageError: `output_dir` holds anything, or a keyword has no meaning here.
        """
        if file_format not in (None, "arrow"):
            raise UsageError(
                "A bundle is converted to Arrow only.",
                expected="file_format='arrow'",
                found=repr(file_format),
                remedy="Load it, then call to_parquet on the dataset.",
            )
        if storage_options:
            refuse_options("storage_options")
        mode = datasets.DownloadMode(download_mode or "reuse_dataset_if_exists")
        checks = VerificationMode(verification_mode or "basic_checks")
        entry = convert.convert(
            self.bundle,
            self._cache_given,
            statuses=self.selection.statuses,
            num_proc=num_proc,
            full_check=checks is VerificationMode.ALL_CHECKS,
            rebuild=mode is not datasets.DownloadMode.REUSE_DATASET_IF_EXISTS,
        )
        self._use_entry(entry)
        if output_dir is not None:
            info = json.dumps(asdict(self.info)).encode()
            files = {datasets.config.DATASET_INFO_FILENAME: info}
            schema = self.info.features.arrow_schema
            self._entry = None  # a refused output folder leaves the builder unprepared
            self._use_entry(convert.convert_to(str(output_dir), entry, schema, files))

    def _use_entry(self, entry: CacheEntry) -> None:
        """Put what the conversion counted into the info that datasets carry."""
        self._entry = entry
        self._output_dir = str(entry.folder)
        infos = [
            SplitInfo(
                name=split,
                num_bytes=sum(s.bytes for s in entry.shards if s.split == split),
                num_examples=entry.rows(split),
                dataset_name=NAME,
            )
            for split in entry.splits
        ]
        self.info.splits = SplitDict({info.name: info for info in infos}, dataset_name=NAME)
        self.info.download_size = sum(part.bytes for part in self.bundle.parts)
        self.info.dataset_size = sum(info.num_bytes for info in infos)
        self.info.size_in_bytes = self.info.download_size + self.info.dataset_size

    def _as_dataset(self, split: Any = "train", in_memory: bool = False) -> datasets.Dataset:
        if self._entry is None:
            raise UsageError(
                "The bundle is not converted yet.",
                path=str(self.bundle.location),
                remedy="Call download_and_prepare() first, or use load_dataset.",
            )
        entry = self._entry
        rows = {name: entry.rows(name) for name in entry.splits}
        slices = _slices(split, rows)
        columns = self.selection.columns
        table = _table(entry, slices, in_memory=in_memory)
        if table is None:
            table = InMemoryTable(self.info.features.arrow_schema.empty_table())
        elif columns is not None:
            table = table.select(columns)
        digest = entry.key.content_sha256
        return datasets.Dataset(
            arrow_table=table,
            info=self.info,
            split=datasets.NamedSplit(str(split)),
            fingerprint=provenance.fingerprint(digest, slices, self.selection.statuses, columns),
        )

    def as_streaming_dataset(self, split: Any = None, base_path: str | None = None) -> Any:
        """The bundle as a stream of verified parts; see `datasets.DatasetBuilder`.

        Raises:
            UsageError: there is no such split; a stream has no slices.
        """
        try:
            return super().as_streaming_dataset(split, base_path)
        except ValueError as error:
            if isinstance(error, UsageError):
                raise
            _refuse_split(split, list(self.bundle.splits), error)

    def _split_generators(self, dl_manager: Any) -> list[SplitGenerator]:
        del dl_manager  # nothing is downloaded: the verified reader reads the parts
        return [
            # A split without rows has one shard that yields nothing: `datasets` can't have none.
            SplitGenerator(name=split, gen_kwargs={"parts": [*indexes] or [_NO_PART]})
            for split, indexes in self.bundle.splits.items()
        ]

    def _generate_tables(self, parts: Sequence[int]) -> Iterator[tuple[Any, Any]]:
        schema = self.info.features.arrow_schema
        for index in parts:
            batches = () if index == _NO_PART else self.bundle.read_part(index)
            for number, batch in enumerate(batches):
                table = self.selection.table(batch, schema)
                if table.num_rows:
                    yield (index, number), table


def _slices(split: Any, rows: dict[str, int]) -> list[tuple[str, int, int]]:
    """(split, first row, row after the last) of a `datasets` split expression."""
    try:
        if not isinstance(split, datasets.ReadInstruction):
            split = datasets.ReadInstruction.from_spec(str(split))
        found = split.to_absolute(rows)
    except (ValueError, AssertionError) as error:
        _refuse_split(split, list(rows), error)
    return [(one.splitname, one.from_, max(one.from_, one.to)) for one in found]


def _refuse_split(split: Any, known: Sequence[str], error: Exception) -> NoReturn:
    raise UsageError(
        f"No such split: {error}",
        expected=f"one of {', '.join(known)}, or None for all",
        found=repr(str(split)),
    ) from error


def _table(
    entry: CacheEntry, slices: Sequence[tuple[str, int, int]], *, in_memory: bool
) -> Table | None:
    reader = InMemoryTable if in_memory else MemoryMappedTable
    pieces = []
    for split, start, stop in slices:
        first = 0
        for shard in entry.shards:
            if shard.split != split or not shard.rows:
                continue
            low, high = max(start - first, 0), min(stop - first, shard.rows)
            if low < high:
                table = reader.from_file(str(entry.folder / shard.name))
                whole = low == 0 and high == shard.rows
                pieces.append(table if whole else table.slice(low, high - low))
            first += shard.rows
    return concat_tables(pieces) if pieces else None


class _ModuleFactory(PackagedDatasetModuleFactory):
    """Hands what the caller named to our builder, without looking for files."""

    def get_module(self) -> DatasetModule:
        if self.name != NAME:
            return super().get_module()
        module, code_hash = _PACKAGED_DATASETS_MODULES[NAME]
        source = one_source(self.data_dir, self.data_files)
        return DatasetModule(
            module, code_hash, {"data_files": source, "data_dir": None, "dataset_name": NAME}
        )


def register() -> None:
    """Make `load_dataset("lithi_bundle", …)` find this builder; safe to call again."""
    _PACKAGED_DATASETS_MODULES[NAME] = (__name__, f"{provenance.FINGERPRINT_FORMAT}")
    current = datasets.load.PackagedDatasetModuleFactory
    if not getattr(current, "serves_lithi_bundle", False):
        _ModuleFactory.serves_lithi_bundle = True
        datasets.load.PackagedDatasetModuleFactory = _ModuleFactory


def rows_of(ds: datasets.Dataset) -> tuple[Any, Any]:
    """The Arrow table of a map-style dataset, and the `uint64[n]` rows of it that the dataset is.

    The second is None where the dataset is the table as it is.
    """
    indices = ds._indices
    return ds.data.table, None if indices is None else indices.column(0)


def _shallow(one: Any) -> Any:
    """A shallow copy; of a stream `copy.copy` would share the attributes (its `__setstate__`)."""
    new = object.__new__(type(one))
    new.__dict__.update(one.__dict__)
    return new


def mark_node(ds: Any, rank: int, world_size: int) -> Any:
    """The same dataset, knowing that it is the share of one rank."""
    marked = _shallow(ds)
    marked._info = ds.info.copy()
    known = replace(provenance.provenance_of(ds), node={"rank": rank, "world_size": world_size})
    marked._info.download_checksums = known.as_checksums()
    return marked


@dataclass(frozen=True)
class StreamView:
    """What a stream reads.

    Attributes:
        builder: of its bundle.
        parts: indexes of its parts, in its order.
        plain: nothing was done to its rows: no map, no filter.
        identity: digest of the parts and of all that was done on the way.
    """

    builder: LithiBundle
    parts: tuple[int, ...]
    plain: bool
    identity: str


_ROW_BY_ROW = ("Mapped", "Filtered", "Formatted", "SelectColumns", "RebatchedArrow")
_WHAT_WAS_DONE = (
    *("function", "batched", "batch_size", "remove_columns", "input_columns", "with_indices"),
    *("fn_kwargs", "drop_last_batch", "column_names", "mask_column_name"),
)


def stream_view(ds: datasets.IterableDataset) -> StreamView:
    """Look through a stream down to the parts that it reads.

    Raises:
        UsageError: it was shuffled, shortened, joined or split by `datasets`, so that whole parts
            can no longer be given to readers; or it is not of a bundle.
    """
    if ds._distributed is not None:
        _refuse_stream(ds, "split_dataset_by_node", "Split it with lithi_datasets.split_by_node.")
    done = []
    inner = ds._ex_iterable
    while hasattr(inner, "ex_iterable"):
        name = type(inner).__name__
        if not name.startswith(_ROW_BY_ROW):
            _refuse_stream(ds, name, "Shuffle with torch_loader; leave take and skip out.")
        kept = {key: vars(inner)[key] for key in _WHAT_WAS_DONE if key in vars(inner)}
        done.append((name, Hasher.hash(kept)))
        inner = inner.ex_iterable
    builder = getattr(getattr(inner, "generate_tables_fn", None), "__self__", None)
    if not isinstance(builder, LithiBundle):
        _refuse_stream(ds, type(inner).__name__, "Pass a stream from lithi_datasets.load.")
    parts = tuple(index for index in inner.kwargs["parts"] if index != _NO_PART)
    selection = builder.selection
    view = [list(parts), selection.statuses, selection.columns, done]
    identity = hashlib.sha256(json.dumps(view).encode()).hexdigest()
    return StreamView(builder, parts, not done, identity)


def stream_of_parts(ds: datasets.IterableDataset, parts: Sequence[int]) -> datasets.IterableDataset:
    """The same stream, with all that was done to it, over some of its parts."""
    narrowed = _shallow(ds)
    holder, name = narrowed, "_ex_iterable"
    while True:
        inner = _shallow(getattr(holder, name))
        setattr(holder, name, inner)
        if not hasattr(inner, "ex_iterable"):
            break
        holder, name = inner, "ex_iterable"
    inner.kwargs = {"parts": [*parts] or [_NO_PART]}
    return narrowed


def _refuse_stream(ds: Any, what: str, remedy: str) -> NoReturn:
    raise UsageError(
        "Whole parts of this stream can't be given to readers any more.",
        expected="a stream of a bundle; map, filter and select_columns are fine",
        found=f"{type(ds).__name__} after {what}",
        remedy=remedy,
    )
