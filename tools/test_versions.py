"""Runs the suite's core on other versions of what it stands on, each in its own environment.

    python tools/test_versions.py              # all of them
    python tools/test_versions.py 3.6          # one
    python tools/test_versions.py --fill 3.6   # only fill its environment

Environments lie under .venvs/ and are filled again only when what they are made from changes.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".venvs"

# Quick, and without the extras: what is loaded, under which identity, in which types.
CORE = (
    "tests/test_open_bundle.py",
    "tests/test_load_dataset.py",
    "tests/test_identity.py",
    "tests/test_loading_scripts.py",
)
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")

# What a version decides about other packages; all else is held where constraints.txt has it.
FREE = {"datasets", "pyarrow", "fsspec", "huggingface-hub", "hf-xet", "dill", "multiprocess"}


def oldest(package: str) -> str:
    """`package==` the oldest version that pyproject.toml admits."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(rf'"{package}>=([0-9.]+)', text)
    if found is None:
        raise SystemExit(f"pyproject.toml names no oldest version of {package}")
    release = found[1].split(".")
    return f"{package}=={'.'.join([*release, '0', '0'][:3])}"


def environments() -> dict[str, tuple[str, ...]]:
    """Name → what is installed beside the package."""
    return {
        "3.6": ("datasets==3.6.0",),
        "4": ("datasets>=4,<5",),
        "5": ("datasets>=5,<6",),
        "oldest": ("datasets==3.6.0", oldest("pyarrow"), oldest("fsspec")),
    }


def constraints(text: str) -> str:
    """`constraints.txt` without the packages that differ here."""
    lines = text.splitlines()
    kept = [line for line in lines if line.partition("==")[0].strip().lower() not in FREE]
    return "\n".join(kept) + "\n"


def fill(name: str, packages: Sequence[str]) -> Path:
    """Make the environment unless it is there already; its interpreter."""
    folder = FOLDER / name
    python = folder / "bin" / "python"
    held = constraints((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    recipe = "\n".join([sys.version, held, project, *packages, *TOOLS])
    stamp, digest = folder / ".made-from", hashlib.sha256(recipe.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text(encoding="ascii") == digest:
        return python
    venv.create(folder, clear=True, with_pip=True)
    pins = folder / "constraints.txt"
    pins.write_text(held, encoding="utf-8")
    options = ("--quiet", "--disable-pip-version-check", "--no-input", "-c", str(pins))
    install = [str(python), "-m", "pip", "install", *options, "-e", str(ROOT)]
    subprocess.run([*install, *packages, *TOOLS], check=True)  # noqa: S603 - arguments are ours
    stamp.write_text(digest, encoding="ascii")
    return python


def test(name: str, python: Path, workers: str) -> bool:
    """Run the core; whether it passed."""
    show = (
        "import datasets, fsspec, pyarrow; print('datasets', datasets.__version__, "
        "'pyarrow', pyarrow.__version__, 'fsspec', fsspec.__version__)"
    )
    print(f"== {name}", flush=True)
    subprocess.run([str(python), "-c", show], check=True)  # noqa: S603
    command = [str(python), "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider", *CORE]
    # The examples start processes of their own; they are run by `make test`.
    chosen = ("-m", "not soak", "-k", "not training and not predictions")
    return subprocess.run([*command, *chosen], check=False, cwd=ROOT).returncode == 0  # noqa: S603


def main(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Test the named environments, by default all; 1 where one failed."""
    known = environments()
    given = [name for name in arguments if name != "--fill"]
    unknown = [name for name in given if name not in known]
    if unknown:
        print(f"no such environment: {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    names = given or list(known)
    pythons = {name: fill(name, known[name]) for name in names}
    if "--fill" in arguments:
        return 0
    workers = environ.get("WORKERS", "2")
    failed = [name for name, python in pythons.items() if not test(name, python, workers)]
    print(f"failed: {', '.join(failed)}" if failed else f"passed: {', '.join(names)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
