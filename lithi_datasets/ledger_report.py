"""What a ledger is compared with, and what comes of it: a `Reconciliation`, or an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lithi_datasets.errors import ReconcileError
from lithi_datasets.ledger_index import MOST_SEEN, Tally
from lithi_datasets.manifest import STATUSES
from lithi_datasets.provenance import Provenance

__all__ = ["NAMED", "Expected", "Faults", "Reconciliation", "problems", "reconciled"]

NAMED = 5
"""Ids of each kind that are named."""


@dataclass(frozen=True)
class Reconciliation:
    """An epoch that adds up: every expected row was read once.

    `rows + dropped + sum(excluded.values())` are the rows of the split in the manifest.

    Attributes:
        rows: rows that were read, each once.
        accepted: those of them with this status.
        failed: those of them with this status.
        abstained: those of them with this status.
        dropped: rows that no rank read because of `drop_last`.
        excluded: status → rows that `statuses=` left out when the dataset was loaded. Where the
            manifest does not say how many are of which, one entry, such as `"abstained+failed"`.
        outside: rows of the split that are not in the ledgers' datasets, by filter or slice; not
            0 only with `Ledger(ds, subset=True)`, and unknown (0) where the dataset is a slice.
    """

    rows: int
    accepted: int
    failed: int
    abstained: int
    dropped: int
    excluded: dict[str, int] = field(default_factory=dict)
    outside: int = 0

    def as_dict(self) -> dict[str, Any]:
        """`rows`, `accepted`, `failed`, `abstained`, `dropped`, `excluded`, as plain JSON."""
        return {name: value for name, value in asdict(self).items() if name != "outside"}


@dataclass(frozen=True)
class Expected:
    """What the manifest says of the rows that a dataset should have.

    Attributes:
        rows: how many; None where only the dataset itself can be the measure.
        statuses: how many by status; None where the manifest does not say.
        excluded: see `Reconciliation`.
    """

    rows: int | None = None
    statuses: dict[str, int] | None = None
    excluded: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, known: Provenance, split: str | None, held: int | None) -> Expected:
        """What `known` says of a split.

        Args:
            known: what a dataset knows about its bundle.
            split: a split, several joined by `+`, or anything else: then nothing is known.
            held: rows that `statuses=` left of it, as they were counted when the bundle was read;
                it serves where the manifest does not give the statuses of one of several splits.
        """
        names = (split or "").split("+")
        if len(set(names)) != len(names) or not set(names) <= set(known.splits):
            return cls()
        rows = sum(known.splits[name] for name in names)
        every = _by_status(known, names)
        kept = known.statuses or STATUSES
        left_out = [status for status in STATUSES if status not in kept]
        if every is not None:
            return cls(
                sum(every[status] for status in kept),
                {status: every[status] if status in kept else 0 for status in STATUSES},
                {status: every[status] for status in left_out},
            )
        if not left_out:
            return cls(rows)
        if held is None:
            return cls()
        return cls(held, excluded={"+".join(sorted(left_out)): rows - held})


def _by_status(known: Provenance, names: Sequence[str]) -> dict[str, int] | None:
    """Rows of some splits by status; None where the manifest does not say."""
    stated = _stated(known, names)
    if stated is not None:
        return stated
    others = _stated(known, [name for name in known.splits if name not in names])
    return others and {status: known.counts[status] - others[status] for status in STATUSES}


def _stated(known: Provenance, names: Sequence[str]) -> dict[str, int] | None:
    stated = [counts for name in names if (counts := known.status_counts[name]) is not None]
    if len(stated) < len(names):
        return None
    return {status: sum(counts[status] for counts in stated) for status in STATUSES}


@dataclass(frozen=True)
class Faults:
    """Ids that are named, in row order or as they came, at most five of each, and how often."""

    missing: tuple[str, ...] = ()
    repeated: tuple[tuple[str, int], ...] = ()
    foreign: tuple[str, ...] = ()


def problems(
    tally: Tally, expected: Expected, dropped: int, foreign: int, *, subset: bool
) -> dict[str, int]:
    """What does not add up: the name of the fault → how many; empty where all does.

    Args:
        tally: of the union of the ledgers.
        expected: of the manifest.
        dropped: rows that `drop_last` left out.
        foreign: how often an id came that is not expected.
        subset: whether rows of the split may be in no ledger's dataset.
    """
    outside = 0 if expected.rows is None else expected.rows - sum(tally.expected)
    found = {
        "missing": tally.missing if tally.missing != dropped else 0,
        "repeated": tally.repeated,
        "foreign": foreign,
        "not dropped": max(0, dropped - tally.missing),
        "outside": min(0, outside) if subset else outside,
    }
    if outside == 0 and expected.statuses is not None:
        by_status = zip(STATUSES, tally.expected, strict=True)
        gained = (max(0, count - expected.statuses[status]) for status, count in by_status)
        found["of another status"] = sum(gained)
    return {name: count for name, count in found.items() if count}


def reconciled(
    tally: Tally, expected: Expected, dropped: int, wrong: Mapping[str, int], faults: Faults
) -> Reconciliation:
    """The reconciliation of what adds up.

    Args:
        tally: of the union of the ledgers.
        expected: of the manifest.
        dropped: rows that `drop_last` left out.
        wrong: what does not add up, as `problems` gives it.
        faults: the ids to name.

    Raises:
        ReconcileError: `wrong` is not empty.
    """
    if wrong:
        raise _error(tally, expected, dropped, wrong, faults)
    outside = 0 if expected.rows is None else expected.rows - sum(tally.expected)
    accepted, failed, abstained = tally.seen
    return Reconciliation(
        rows=sum(tally.seen),
        accepted=accepted,
        failed=failed,
        abstained=abstained,
        dropped=dropped,
        excluded=dict(expected.excluded),
        outside=outside,
    )


def _error(
    tally: Tally, expected: Expected, dropped: int, wrong: Mapping[str, int], faults: Faults
) -> ReconcileError:
    held = sum(tally.expected)
    rows = held if expected.rows is None else expected.rows
    counts = zip(STATUSES, tally.expected, strict=True)
    named = expected.statuses or dict(counts)
    wanted = f"{rows} rows once each: {_listed(named)}"
    if dropped:
        wanted += f"; but for {dropped} that drop_last left out"
    return ReconcileError(
        f"What was iterated is not what the manifest counts: {'; '.join(_said(wrong, dropped))}.",
        expected=wanted,
        found="; ".join(_found(tally, wrong, faults)),
        missing=faults.missing,
        repeated=tuple(item for item, _ in faults.repeated),
        foreign=faults.foreign,
        totals=dict(wrong),
    )


def _said(wrong: Mapping[str, int], dropped: int) -> list[str]:
    but = f", where drop_last left out {dropped}" if dropped else ""
    texts = {
        "missing": f"{{}} not read{but}",
        "repeated": "{} read more than once",
        "foreign": "{} that the ledger does not expect",
        "not dropped": "{} read that drop_last is said to have left out",
        "outside": "{} of the split in no ledger's dataset",
        "of another status": "{} or more of another status than the manifest counts",
    }
    said = {name: texts[name].format(_rows(count)) for name, count in wrong.items()}
    if wrong.get("outside", 0) < 0:
        said["outside"] = f"{_rows(-wrong['outside'])} that the split does not have"
    return list(said.values())


def _found(tally: Tally, wrong: Mapping[str, int], faults: Faults) -> list[str]:
    found = [f"{sum(tally.seen)} rows: {_listed(dict(zip(STATUSES, tally.seen, strict=True)))}"]
    if "missing" in wrong:
        found.append(_named("missing", map(repr, faults.missing), wrong["missing"]))
    if "repeated" in wrong:
        times = (
            f"{item!r} {count}{' or more' * (count >= MOST_SEEN)} times"
            for item, count in faults.repeated
        )
        found.append(_named("repeated", times, wrong["repeated"]))
    if "foreign" in wrong:
        found.append(_named("foreign", map(repr, faults.foreign), wrong["foreign"]))
    return found


def _named(label: str, ids: Any, total: int) -> str:
    names = list(ids)
    more = f" and {total - len(names)} more" if total > len(names) else ""
    return f"{label} {', '.join(names)}{more}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"
