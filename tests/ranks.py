"""Runs a function of a test module in several real processes, one for each rank.

    python ranks.py MODULE:FUNCTION ARGUMENTS OUTPUT

is one rank of it: the environment says which, as torchrun does. What the function returns is JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lithi_datasets.testing import write_bundle

HERE = Path(__file__).parent
TIMEOUT_SECONDS = 240


def write_rows(
    folder: Path, sizes: Sequence[int] = (13,), *, version_id: str = "res_ranks_1", **more: Any
) -> list[str]:
    """A bundle in parts of these rows: an id, `x: float32[4]`, a class; returns the ids."""
    tables, first = [], 0
    for size in sizes:
        numbers = np.arange(first, first + size)
        columns = {
            "item_id": pa.array([f"item-{n:04d}" for n in numbers]),
            "x": pa.FixedSizeListArray.from_arrays(
                pa.array(np.repeat(numbers, 4).astype(np.float32) / 100), 4
            ),
            "labels": pa.array(numbers % 3, pa.int64()),
            "lithi_status": pa.array(["accepted" if n % 5 else "failed" for n in numbers]),
        }
        tables.append(pa.table(columns))
        first += size
    required = ["x", "labels"]
    write_bundle(folder, tables, required=required, version_id=version_id, **more)
    return [f"item-{n:04d}" for n in range(first)]


def run_ranks(
    function: Callable[..., Any], folder: Path, world_size: int = 2, **arguments: Any
) -> list[Any]:
    """What `function(**arguments)` returns in each of `world_size` processes, in rank order."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    running = []
    for rank in range(world_size):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
        command = [sys.executable, *_command(function, folder, arguments)]
        running.append(_start(command, {**place, **own}))
    try:
        texts = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in running]
    finally:
        for process in running:
            process.kill()  # one that failed leaves the others waiting for it
    assert [process.returncode for process in running] == [0] * world_size, "\n".join(texts)
    return _results(folder, world_size)


def torchrun(
    function: Callable[..., Any], folder: Path, world_size: int = 2, **arguments: Any
) -> list[Any]:
    """The same under torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    options = [f"--nproc-per-node={world_size}", f"--master-port={_free_port()}"]
    command = [*launcher, *options, *_command(function, folder, arguments)]
    process = _start(command, {})
    text, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, text
    return _results(folder, world_size)


def _command(function: Callable[..., Any], folder: Path, arguments: dict[str, Any]) -> list[str]:
    name = f"{Path(function.__code__.co_filename).stem}:{function.__name__}"
    return [str(HERE / "ranks.py"), name, json.dumps(arguments, default=str), str(folder)]


def _start(command: list[str], more: dict[str, str]) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        **more,
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _results(folder: Path, world_size: int) -> list[Any]:
    paths = [folder / f"rank-{rank}.json" for rank in range(world_size)]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def refused(call: Callable[[], Any]) -> list[str]:
    """The class and the text of the exception that a call ends with; none is an empty list."""
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


def main() -> None:
    name, arguments, folder = sys.argv[1:]
    module, _, function = name.partition(":")
    result = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    path = Path(folder) / f"rank-{os.environ['RANK']}.json"
    path.write_text(json.dumps(result), encoding="utf-8")
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
