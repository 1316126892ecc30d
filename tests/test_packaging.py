"""What `pip install` brings, looked up in a wheel that is built here, without a network."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import lithi_datasets
from lithi_datasets import sample

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.iterdir()
    assert path.name == f"lithi_datasets-{lithi_datasets.__version__}-py3-none-any.whl"
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_sample_byte_for_byte(wheel: zipfile.ZipFile) -> None:
    paths = [path for path in sample.path().rglob("*") if path.is_file()]
    assert len(paths) == 8
    for path in paths:
        name = f"lithi_datasets/sample/digits/{path.relative_to(sample.path()).as_posix()}"
        assert wheel.read(name) == path.read_bytes()


def test_the_wheel_is_typed_licensed_and_brings_the_command(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    info = f"lithi_datasets-{lithi_datasets.__version__}.dist-info"
    assert "lithi_datasets/py.typed" in names
    assert f"{info}/licenses/LICENSE" in names
    assert b"lithi-datasets = lithi_datasets.cli:main" in wheel.read(f"{info}/entry_points.txt")


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    assert {name.split("/")[0] for name in wheel.namelist()} == {
        "lithi_datasets",
        f"lithi_datasets-{lithi_datasets.__version__}.dist-info",
    }
    assert not [name for name in wheel.namelist() if "__pycache__" in name]
