"""Where a bundle lives, and the only way to its bytes.

A `Location` is a local folder or a prefix in an fsspec filesystem. It holds no secret: credentials
are named by a reference and asked for at the moment of use, so that a location can be pickled,
printed and sent to a worker.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast
from urllib.parse import quote, urlsplit

from lithi_datasets.errors import (
    CredentialError,
    FileMissing,
    LithiError,
    StorageError,
    UsageError,
)

__all__ = ["Location", "OpenedFile", "register_credential", "storage_options"]

Provider = Callable[[], Mapping[str, Any]]

_PROVIDERS: dict[str, Provider] = {}
_REMOTE_BLOCK_BYTES = 16 * 2**20
_HTTP = frozenset({"http", "https"})
# What may stand unencoded in the part of an HTTP address that the user typed.
_URL_SAFE = "%/:=&~+!$,;'@()*[]"


def register_credential(ref: str, provider: Provider) -> None:
    """Name a source of fsspec storage options, so that no secret has to be passed around.

    Args:
        ref: the name that `credential_ref=` takes.
        provider: called without arguments each time storage is opened; returns the storage options
            of the filesystem, for example `{"key": …, "secret": …}` for `s3://`.

    Raises:
        UsageError: where `ref` is empty or `provider` cannot be called.

    A worker process that was spawned has to register the reference itself, in code that it imports.
    """
    if not isinstance(ref, str) or not ref:
        raise UsageError(
            "A credential reference is a non-empty string.", expected="a name", found=repr(ref)
        )
    if not callable(provider):
        raise UsageError(
            f"The provider of credential reference {ref!r} cannot be called.",
            expected="a callable without arguments that returns fsspec storage options",
            found=type(provider).__name__,
        )
    _PROVIDERS[ref] = provider


def storage_options(ref: str | None) -> dict[str, Any]:
    """Ask the provider of `ref` for its storage options.

    Raises:
        CredentialError: where nothing is registered under `ref`, or the provider fails.
    """
    if ref is None:
        return {}
    provider = _PROVIDERS.get(ref)
    if provider is None:
        known = ", ".join(sorted(_PROVIDERS)) or "none"
        raise CredentialError(
            f"No credentials are registered under {ref!r} in this process.",
            expected=f"one of the registered references ({known})",
            found=repr(ref),
        )
    try:
        options = provider()
    except Exception as error:  # noqa: BLE001 - a provider is anybody's code
        # The provider's own message may hold what it was reading: only its type is shown.
        raise CredentialError(
            f"The provider of credential reference {ref!r} failed with {type(error).__name__}.",
            remedy="Call the provider on its own to see why.",
        ) from None
    if not isinstance(options, Mapping):
        raise CredentialError(
            f"The provider of credential reference {ref!r} did not return storage options.",
            expected="a mapping of fsspec storage options",
            found=type(options).__name__,
        )
    return dict(options)


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


@dataclass(frozen=True)
class OpenedFile:
    """An open bound file.

    Attributes:
        stream: binary, at the first byte.
        size: bytes that the storage states, None where it states nothing.
    """

    stream: _Readable
    size: int | None

    def readinto(self, target: memoryview) -> int:
        """Fill `target` from the stream; returns the bytes read, 0 at the end."""
        read_into = getattr(self.stream, "readinto", None)
        if read_into is not None:
            return int(read_into(target))
        data = self.stream.read(len(target))
        target[: len(data)] = data
        return len(data)


@dataclass(frozen=True)
class Location:
    """A folder, local or in an fsspec filesystem.

    Attributes:
        root: absolute local path, or a URL; without a trailing slash and without secrets.
        is_local: True where `root` is a path of this machine.
        credential_ref: name of the registered credentials, asked for at the moment of use.
    """

    root: str
    is_local: bool
    credential_ref: str | None = None

    def __str__(self) -> str:
        return self.root

    @classmethod
    def resolve(
        cls,
        source: str | os.PathLike[str],
        *,
        manifest_name: str,
        credential_ref: str | None = None,
    ) -> Location:
        """Find the folder that `source` names: a folder, the manifest in it, or a URL of either.

        Raises:
            UsageError: where `source` is not a path.
            CredentialError: where `source` carries a secret.
        """
        if not isinstance(source, (str, os.PathLike)):
            raise UsageError(
                "A bundle is named by its folder, its manifest or a URL.",
                expected="str or os.PathLike",
                found=type(source).__name__,
            )
        text = os.fspath(source)
        if not isinstance(text, str) or not text or "\0" in text:
            raise UsageError(
                "A bundle is named by its folder, its manifest or a URL.",
                expected="a non-empty path",
                found=repr(text),
            )
        if "://" not in text and "::" not in text:
            return cls(_local_folder(text, manifest_name), True, credential_ref)
        if text.startswith(("file://", "local://")) and "::" not in text:
            return cls(
                _local_folder(text.split("://", 1)[1] or "/", manifest_name), True, credential_ref
            )
        _refuse_secrets(text)
        return cls(_url_folder(text, manifest_name), False, credential_ref)

    def join(self, path: str) -> str:
        """The address of a bound file, for messages and for the filesystem."""
        if self.is_local:
            return os.path.join(self.root, *path.split("/"))
        head, chain, tail = self.root.partition("::")
        return f"{head.rstrip('/')}/{self._encoded(path)}{chain}{tail}"

    def _encoded(self, path: str) -> str:
        if _scheme(self.root) not in _HTTP:
            return path
        return "/".join(quote(segment, safe="") for segment in path.split("/"))

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[OpenedFile]:
        """Open one file below the location, for reading from its start to its end.

        Raises:
            FileMissing: where nothing is there, or no regular file.
            StorageError: where the storage fails, then or while it is read.
        """
        with self._translated(path):
            context = self._open_local(path) if self.is_local else self._open_remote(path)
            with context as opened:
                yield opened

    @contextlib.contextmanager
    def _open_local(self, path: str) -> Iterator[OpenedFile]:
        # O_NONBLOCK: a FIFO would otherwise hold the open until somebody writes to it.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(self.join(path), flags | getattr(os, "O_CLOEXEC", 0))
        with open(descriptor, "rb", buffering=0) as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _not_a_file(self.join(path), _kind(status.st_mode))
            yield OpenedFile(stream, status.st_size)

    @contextlib.contextmanager
    def _open_remote(self, path: str) -> Iterator[OpenedFile]:
        filesystem, address = self.filesystem(path)
        with filesystem.open(address, "rb", block_size=_REMOTE_BLOCK_BYTES) as stream:
            size = getattr(stream, "size", None)
            if size is None:
                size = filesystem.info(address).get("size")
            yield OpenedFile(cast("BinaryIO", stream), size)

    def filesystem(self, path: str = "") -> tuple[Any, str]:
        """The fsspec filesystem, with credentials asked for now, and the address in it of `path`.

        Raises:
            UsageError: where fsspec knows no such protocol, or its library is missing.
        """
        from fsspec.core import url_to_fs

        options = storage_options(self.credential_ref)
        if _scheme(self.root) in _HTTP:
            # The address is encoded already; yarl would otherwise decode and encode it again.
            options.setdefault("encoded", True)
        try:
            # A name with "?" or "#" must not reach the parsers of URLs: it is appended afterwards.
            anchor, rest = _plain_head(self.root)
            filesystem, address = url_to_fs(anchor, **options)
        except (ValueError, ImportError) as error:
            raise UsageError(
                f"No filesystem for this address: {self._scrub(error, options)}",
                path=self.root,
                remedy="Install the fsspec implementation of the protocol (for s3:// s3fs, for "
                "https:// aiohttp, for sftp:// paramiko), or correct the address.",
            ) from None
        # fsspec keeps instances, and those keep listings: what was true minutes ago is no answer.
        filesystem.invalidate_cache()
        if rest or path:
            below = "/".join(piece for piece in (rest, self._encoded(path)) if piece)
            address = f"{address.rstrip('/')}/{below}"
        return filesystem, address

    def list_files(self) -> Iterator[str]:
        """Relative POSIX paths of all files below the location.

        None is opened, no link is followed. Yields nothing over HTTP, which has no listing.
        """
        if self.is_local:
            yield from _walk(self.root, "")
        elif _scheme(self.root) not in _HTTP:
            with self._translated(""):
                filesystem, address = self.filesystem()
                prefix = address.rstrip("/") + "/"
                for found in filesystem.find(address):
                    yield found.removeprefix(prefix)

    @contextlib.contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        where = self.join(path) if path else self.root
        try:
            yield
        except LithiError:
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            refusal = _http_refusal(error) if _scheme(self.root) in _HTTP else None
            if refusal is not None:
                raise self._failed(where, refusal) from self._cause(error)
            raise FileMissing(
                "A file that the manifest binds is not there.",
                path=where,
                expected="a regular file",
                found="nothing",
            ) from self._cause(error)
        except IsADirectoryError as error:
            raise _not_a_file(where, "a folder") from self._cause(error)
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise _not_a_file(where, "a socket") from self._cause(error)
            if error.errno == errno.ELOOP:
                raise _not_a_file(where, "links that lead in a circle") from self._cause(error)
            raise self._failed(where, error) from self._cause(error)
        except Exception as error:  # noqa: BLE001
            # fsspec's implementations raise whatever their libraries raise; none of it is a bug
            # here.
            raise self._failed(where, error) from self._cause(error)

    def _failed(self, where: str, error: BaseException) -> StorageError:
        return StorageError(
            f"The storage failed: {type(error).__name__}: {self._scrub(error)}", path=where
        )

    def _cause(self, error: BaseException) -> BaseException | None:
        # A chained traceback would print what the message leaves out.
        return error if self.credential_ref is None else None

    def _scrub(self, error: BaseException, options: Mapping[str, Any] | None = None) -> str:
        text = str(error)
        if self.credential_ref is None:
            return text
        if options is None:
            with contextlib.suppress(LithiError):
                options = storage_options(self.credential_ref)
        for secret in _strings(options or {}):
            text = text.replace(secret, "***")
        return text


def _http_refusal(error: BaseException) -> BaseException | None:
    """The HTTP error behind a FileNotFoundError, where it does not mean that nothing is there.

    fsspec says FileNotFoundError of any failed HEAD, of "401 Unauthorized" and a refused connection
    too.
    """
    cause = error.__cause__
    return None if cause is None or getattr(cause, "status", None) in (404, 410) else cause


def _local_folder(text: str, manifest_name: str) -> str:
    path = os.path.abspath(os.path.expanduser(text))
    if os.path.basename(path) == manifest_name and not os.path.isdir(path):
        return os.path.dirname(path)
    return path


def _url_folder(url: str, manifest_name: str) -> str:
    head, chain, tail = url.partition("::")
    if not chain:
        stripped = head.rstrip("/")
        if stripped.rsplit("/", 1)[-1] == manifest_name:
            stripped = stripped[: -len(manifest_name)].rstrip("/")
        if _scheme(stripped) in _HTTP:
            stripped = quote(stripped, safe=_URL_SAFE)
        # "memory://" alone keeps its slashes: it is the root.
        return stripped if "://" in stripped else head
    if head.rstrip("/").rsplit("/", 1)[-1] == manifest_name:
        head = head.rstrip("/")[: -len(manifest_name)].rstrip("/")
    return f"{head}{chain}{tail}"


def _plain_head(url: str) -> tuple[str, str]:
    """Split a URL in front of the first segment that holds "?" or "#"."""
    if "::" in url or not any(sign in url for sign in "?#"):
        return url, ""
    cut = url.rfind("/", 0, min(url.find(sign) for sign in "?#" if sign in url))
    return url[:cut], url[cut + 1 :]


def _scheme(url: str) -> str:
    return url.split("://", 1)[0].lower()


def _refuse_secrets(url: str) -> None:
    for hop in url.split("::"):
        scheme = _scheme(hop)
        parts = urlsplit(hop) if scheme in _HTTP else None
        userinfo = hop.split("://", 1)[-1].split("/", 1)[0].rpartition("@")[0]
        if ":" in userinfo or (userinfo and scheme in _HTTP):
            raise CredentialError(
                "The address carries a user name and password.",
                path=f"{scheme}://***@…",
                expected="an address without secrets",
            )
        if parts is not None and (parts.query or parts.fragment):
            raise CredentialError(
                "The address carries a query, where signatures and tokens travel.",
                path=f"{scheme}://{parts.netloc}{parts.path}?***",
                expected="an address without query and fragment",
            )


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if len(value) >= 4:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")


def _not_a_file(where: str, found: str) -> FileMissing:
    return FileMissing(
        "A file that the manifest binds is not a regular file.",
        path=where,
        expected="a regular file",
        found=found,
    )


def _walk(folder: str, prefix: str) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise StorageError(f"The folder cannot be listed: {error}", path=folder) from error
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}"
