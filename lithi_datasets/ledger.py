"""Exactly-once accounting: which rows an epoch read, how often, and whether that is all of them.

    ledger = lithi.Ledger(ds)
    for batch in ledger.watch(loader):
        train_on(batch)
    ledger.gather().reconcile()     # on several ranks; on one, ledger.reconcile()

A ledger takes down the item ids of each batch and looks at nothing else, so any loader will do
whose batches carry the id column. It keeps 12 bytes for each row of its dataset and no ids, but for
the last few: those wait to be counted together.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lithi_datasets.errors import LithiError, StateError, UsageError
from lithi_datasets.ledger_account import Account, first_named
from lithi_datasets.ledger_drops import dropped_rows
from lithi_datasets.ledger_report import Expected, Faults, Reconciliation, problems, reconciled
from lithi_datasets.ledger_source import IdSource, rows_loaded, source_of
from lithi_datasets.ledger_state import Holding, check_index, check_scope
from lithi_datasets.ledger_waiting import Waiting
from lithi_datasets.ledger_watch import Watched
from lithi_datasets.provenance import Provenance, provenance_of
from lithi_datasets.reading.origins import want_origins

__all__ = ["Ledger", "Reconciliation", "Watched"]

Exchange = Callable[[Any], list[Any]]
"""Gives every rank what each rank gave, in rank order."""


class Ledger:
    """Counts how often each row of a dataset was read, and reconciles that with the manifest.

    The ids that it expects are those of the dataset, with their statuses. They are read when the
    first ids are counted (or when anything is asked of the ledger), and once more to name ids where
    something is wrong. Of a map-style dataset that reads two columns. Of a stream it reads and
    checks its parts again, whole, so an epoch with a new ledger fetches a stream twice; what was
    mapped or filtered on the way does not count. Without `lithi_status` each row is an accepted
    one.

    Args:
        ds: a dataset of `load` or `load_dataset("lithi_bundle", …)`, map-style or streaming, with
            the id column and `lithi_status`. The loader may read a mapped one.
        subset: the dataset was narrowed on purpose: rows of the split that are in no ledger's
            dataset are no fault. By default they are: a filter that nobody remembers is what a
            ledger is to find.

    Raises:
        UsageError: the dataset is not of a bundle, or lost the columns.
    """

    def __init__(self, ds: Any, *, subset: bool = False) -> None:
        known = provenance_of(ds)
        source = source_of(ds, known, subset=subset)
        split = getattr(ds, "split", None)
        name = None if split is None else str(split)
        self._begin(known, name, source, subset=subset, held=rows_loaded(ds, name))

    @classmethod
    def of_rows(
        cls, known: Provenance, split: str | None, source: IdSource, *, held: int | None = None
    ) -> Ledger:
        """A ledger of rows that are not a dataset, such as parts of a bundle.

        Args:
            known: the bundle, and the statuses that are kept.
            split: as `datasets` names it.
            source: the rows.
            held: rows of these statuses in the split; None where the rows are all of them.
        """
        ledger = cls.__new__(cls)
        ledger._begin(known, split, source, subset=False, held=held)
        return ledger

    def _begin(
        self,
        known: Provenance,
        split: str | None,
        source: IdSource,
        *,
        subset: bool,
        held: int | None,
    ) -> None:
        self._known, self._split, self._subset, self._held = known, split, subset, held
        self._kind, self._field = type(source).__name__, known.item_id_field
        self._account, self._waiting = Account(known.content_sha256, source), Waiting(self._field)
        want_origins(self)
        self._born = (os.getpid(), uuid.uuid4().hex)
        self.reset()

    def __repr__(self) -> str:
        snapshot = self._known.snapshot
        return f"Ledger(version_id={snapshot.version_id!r}, split={self._split!r})"

    @property
    def _token(self) -> str:
        """This ledger's name among those of all ranks; its copy in another process has another."""
        if self._born[0] != os.getpid():
            self._born = (os.getpid(), uuid.uuid4().hex)
        return self._born[1]

    def reset(self) -> None:
        """Begin the next epoch: nothing was read, nothing dropped, no other ledger joined."""
        self._waiting.clear()
        self._dropped: dict[str, int] = {}
        self._named: Faults | None = None
        self._joined = False
        self._account.clear()

    def watch(self, loader: Any) -> Watched:
        """The batches of a loader, counted as they come; its length and attributes are kept.

        A batch counts before the loop gets it, so a state of the ledger and one of the loader that
        are saved in the loop are of the same step. At the end of the loader the rows that
        `drop_last` left out are accounted for, see `account_dropped`.

        Args:
            loader: anything whose iteration gives batches that `observe` takes.
        """
        return Watched(self, loader)

    def observe(self, batch: Any) -> None:
        """Count the ids of one batch, or of one row, as they are now.

        They are copied: what is done to the batch later changes nothing.

        Args:
            batch: has the ids under the name of the id column, as a list, an array or a string; or
                is a list of rows that have.

        Raises:
            UsageError: it has no ids, they are no strings, or this is a worker of a DataLoader,
                whose counts would be lost with it.
        """
        if self._waiting.add(batch):
            lone = self._waiting.lone
            self._account.note_foreign(lone, len(lone))
            self._counted(last=False)

    def account_dropped(self, loader: Any) -> None:
        """Account for the rows that a loader's `drop_last` leaves out of the epoch.

        `watch` does it at the loader's end; call it where batches are given to `observe` only.
        Known are loaders of `torch_loader`, and a map-style `DataLoader`, with a
        `DistributedSampler` or prepared by accelerate. What another loader leaves out is reported
        as missing.
        """
        self._dropped.update(dropped_rows(loader, f"{self._token}:{len(self._dropped)}"))

    def _counted(self, *, last: bool = True) -> Account:
        """The account, with no ids waiting, but perhaps for the last ones."""
        for some in self._waiting.taken(last=last):
            self._account.count(some)
        return self._account

    def reconcile(self) -> Reconciliation:
        """Compare what was read with what the manifest counts.

        Compared are rows, and rows by status. For one of several splits the manifest may not give
        the statuses; then rows are compared, with `statuses=` as many as were loaded, but of the
        share that a rank has of a stream. Of a slice such as `train[:10%]` only the dataset itself
        can be the measure. Each row has to be read once, but for as many as `drop_last` left out.

        Returns:
            `rows`, `accepted`, `failed`, `abstained` (read), `dropped`, `excluded`.

        Raises:
            ReconcileError: it does not add up; up to five ids of each kind are named.
            BundleError: a part that is read again broke a rule.
        """
        account = self._counted()
        tally = account.tally()
        held = self._held
        if held is None and self._kind == "PartRows" and self._known.node is None:
            held = sum(tally.expected)  # all parts were read
        expected = Expected.of(self._known, self._split, held)
        dropped = sum(self._dropped.values())
        wrong = problems(tally, expected, dropped, account.foreign_total, subset=self._subset)
        faults = (self._named or account.named()) if wrong else Faults()
        return reconciled(tally, expected, dropped, wrong, faults)

    @property
    def _scope(self) -> dict[str, Any]:
        statuses = self._known.statuses
        return {
            "snapshot": self._known.snapshot.as_dict(),
            "split": self._split,
            "statuses": None if statuses is None else list(statuses),
            "subset": self._subset,
        }

    def merge(self, *others: Ledger) -> Ledger:
        """Join the ledgers of other ranks or loaders into this one.

        The datasets may be the same or shares of one; the union of them is then what is expected.

        Returns:
            This ledger.

        Raises:
            StateError: one is of another snapshot, split or statuses; both values are shown.
            UsageError: one is this one, is given twice, or is joined on all ranks already.
        """
        for other in others:
            if not isinstance(other, Ledger):
                raise UsageError("Only ledgers can be joined.", found=type(other).__name__)
            check_scope(other._scope, self._scope, "The other ledger")
        every = [self, *others]
        _refuse_twice([one._token for one in every], joined=any(one._joined for one in every))
        for other in others:
            self._counted().absorb_account(other._counted(), self._scope)
            self._take_drops(other._dropped)
        return self

    def _take_drops(self, dropped: Mapping[str, int]) -> None:
        for name, count in dropped.items():
            self._dropped[name] = max(count, self._dropped.get(name, 0))

    def merge_states(self, *states: Mapping[str, Any]) -> Ledger:
        """Join what other ranks' ledgers of the same rows counted, from their states.

        With it a checkpoint of several ranks goes on at any number of ranks: one of them loads the
        first state and joins the others, the rest begin with new ledgers.

        Returns:
            This ledger.

        Raises:
            StateError: one is broken, or of another snapshot, split, statuses or rows.
            UsageError: one is given twice, or is of this ledger.
        """
        every = [Holding.of_state(state) for state in states]
        account = self._counted()
        for held in every:
            check_scope(held.scope, self._scope, "The state")
            check_index(held.digest, account.index.digest())  # states are by id
        _refuse_twice([self._token, *(_token_of(state) for state in states)], joined=self._joined)
        for held in every:
            account.absorb(held)
            self._take_drops(held.dropped)
        return self

    def gather(self, group: Any = None) -> Ledger:
        """Join the ledgers of all ranks, on all ranks: each has the same one afterwards.

        Every rank has to call it. The ids are not sent, only how often each was read.

        Args:
            group: of `torch.distributed`; None is the default group.

        Returns:
            This ledger.

        Raises:
            UsageError: `torch.distributed` is not initialised, or the ledger is joined already.
            StateError: a rank has another snapshot, split or statuses, or failed; on every rank.
        """
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise UsageError(
                "There is no group of ranks to gather from.",
                expected="an initialised torch.distributed group",
                remedy="Call torch.distributed.init_process_group first; with one process, or with "
                "the ledgers at hand, use merge().",
            )

        def exchange(mine: Any) -> list[Any]:
            theirs = [None] * dist.get_world_size(group)
            dist.all_gather_object(theirs, mine, group=group)
            return theirs

        self._join(exchange)
        return self

    def _join(self, exchange: Exchange) -> None:
        heads = self._agreed(exchange)
        alike = len({head.digest for head in heads}) == 1
        account = self._account
        holdings = exchange(account.holding(self._scope, self._dropped, entries=not alike))
        account.begin_with(holdings[0])
        self._dropped = {}
        for number, held in enumerate(holdings):
            if number:
                account.absorb(held)
            self._take_drops(held.dropped)
        self._joined = True
        tally = account.tally()
        wrong = tally.repeated or tally.missing != sum(self._dropped.values())
        if wrong and any(head.rows < account.rows for head in heads):
            # No rank can read all ids: each names those of its own share.
            self._named = first_named(exchange(_named_if_readable(account)))

    def _agreed(self, exchange: Exchange) -> list[_Head]:
        """What every rank has, once all fit together.

        A rank that fails says so instead of leaving the others to wait for it.
        """
        attempt: int | None = None  # at first as they are: perhaps all count by row alike
        while True:
            failed: Exception | None = None
            head: _Head | str
            try:
                head = self._head(attempt)
            except (LithiError, OSError, ValueError, MemoryError) as error:
                failed, head = error, f"{type(error).__name__}: {getattr(error, 'problem', error)}"
            heads = exchange(head)
            if failed is not None:
                raise failed
            for rank, theirs in enumerate(heads):
                if isinstance(theirs, str):
                    raise StateError(f"The ledger of rank {rank} can't be joined: {theirs}")
            for rank, theirs in enumerate(heads):
                check_scope(theirs.scope, heads[0].scope, f"The ledger of rank {rank}")
            _refuse_twice([theirs.token for theirs in heads])
            if len({theirs.digest for theirs in heads}) == 1:
                return heads
            highest = max(theirs.attempt for theirs in heads)
            if attempt is not None and all(theirs.attempt == highest for theirs in heads):
                return heads
            attempt = highest

    def _head(self, attempt: int | None) -> _Head:
        if self._joined:
            raise UsageError(
                "The ledger is joined already.",
                remedy="Gather once an epoch; reset() begins the next one.",
            )
        account = self._counted()
        if attempt is not None:
            account.rehash(attempt)
        return _Head(self._scope, self._token, account.attempt, account.digest, account.rows)

    def state_dict(self) -> dict[str, Any]:
        """What was counted, as plain JSON: a byte a row before it is deflated.

        Save it on each rank, at the same step as the loader's state. The state of a joined ledger
        goes on on one rank only.
        """
        account = self._counted()
        _ = account.index  # by id: a state may go on where rows have another order
        held = account.holding(self._scope, self._dropped)
        return {
            **held.as_state(),
            "node": None if self._account.united else self._known.node,
            "source": self._kind,
            "token": self._token,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was saved; what was counted before is forgotten.

        Raises:
            StateError: it is broken, or of another snapshot, split, statuses or rows; both values
                are shown.
        """
        held = Holding.of_state(state_dict)
        check_scope(held.scope, self._scope, "The state")
        self._account.restore(held)
        self._waiting.clear()
        self._dropped = dict(held.dropped)
        self._named, self._joined = None, False
        self._born = (os.getpid(), _token_of(state_dict))


@dataclass(frozen=True)
class _Head:
    """What ranks tell each other before they join."""

    scope: dict[str, Any]
    token: str
    attempt: int
    digest: str
    rows: int


def _token_of(state: Mapping[str, Any]) -> str:
    token = state.get("token")
    return token if isinstance(token, str) else uuid.uuid4().hex


def _refuse_twice(tokens: Sequence[str], *, joined: bool = False) -> None:
    if joined or len(set(tokens)) < len(tokens):
        raise UsageError(
            "A ledger would be counted twice.",
            expected="different ledgers, none of them joined by gather()",
            found="one that is joined"
            if joined
            else "one of them twice, or its state loaded twice",
            remedy="Join each ledger once; of a joined one, load the state on one rank only.",
        )


def _named_if_readable(account: Account) -> Faults:
    try:
        return account.named()
    except LithiError:  # the other ranks wait; ids that can't be read again go without a name
        return Faults()
