"""The command line, `lithi-datasets`.

What was asked for goes to the output stream: tables for people, with `--json` one JSON document.
Progress and errors go to the error stream. Exit codes: 0 done, 1 refused (any of the package's
errors), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import lithi_datasets
from lithi_datasets import cli_views as views
from lithi_datasets.bundle import open_bundle
from lithi_datasets.cli_conformance import conformance, schema
from lithi_datasets.cli_options import AllowPartial, AsJson, CredentialRef, Pin, Source
from lithi_datasets.cli_progress import diff, outstanding
from lithi_datasets.cli_reconcile import reconcile
from lithi_datasets.demo import EPOCHS, MAX_READERS, run_demo
from lithi_datasets.errors import LithiError

__all__ = ["app", "main"]

REFUSED = 1

# Plain help: the README shows it, and it is the same whatever the terminal.
app = typer.Typer(
    name="lithi-datasets",
    help="Result bundles of Lithi Compute as Hugging Face datasets.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"lithi-datasets {lithi_datasets.__version__}")
        raise typer.Exit


@app.command()
def inspect(
    source: Source,
    as_json: AsJson = False,
    allow_partial: AllowPartial = False,
    credential_ref: CredentialRef = None,
    snapshot: Pin = None,
) -> None:
    """Show what a bundle's manifest says; no other file is read."""
    bundle = open_bundle(source, snapshot, allow_partial, credential_ref)
    if as_json:
        views.print_json(views.describe(source, bundle))
    else:
        views.show_bundle(source, bundle)


@app.command()
def verify(
    source: Source,
    as_json: AsJson = False,
    allow_partial: AllowPartial = False,
    credential_ref: CredentialRef = None,
    snapshot: Pin = None,
) -> None:
    """Read and check every file that a bundle binds."""
    bundle = open_bundle(source, snapshot, allow_partial, credential_ref)
    report = bundle.verify(progress=sys.stderr.isatty())
    if as_json:
        views.print_json(views.describe_verified(source, bundle, report))
    else:
        views.show_verified(source, bundle, report)


@app.command()
def demo(
    as_json: AsJson = False,
    epochs: Annotated[int, typer.Option(min=1, help="How often the rows are read.")] = EPOCHS,
    readers: Annotated[
        int, typer.Option(min=1, max=MAX_READERS, help="How many readers share the rows.")
    ] = 2,
) -> None:
    """Verify the sample, convert it, train on it."""
    report = run_demo(
        epochs=epochs,
        readers=readers,
        say=lambda line: typer.echo(line, err=True),
        progress=sys.stderr.isatty(),
    )
    if as_json:
        views.print_json(report.as_dict())
    else:
        views.show_demo(report)


for command in (reconcile, outstanding, diff, conformance, schema):
    app.command()(command)


def main(arguments: Sequence[str] | None = None) -> Any:
    """The entry point; ends the process with the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this process
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A name in a bundle may hold a letter that the terminal's encoding lacks.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        _run(arguments)
    except OSError as error:
        if isinstance(error, LithiError):
            raise
        # Nobody reads on, or the disk that is printed to is full; the rest of the text with it.
        _end_output()
        if not isinstance(error, BrokenPipeError):
            with contextlib.suppress(OSError):
                typer.echo(f"The output can't be written: {error}", err=True)
        sys.exit(REFUSED)


def _run(arguments: Sequence[str] | None) -> None:
    try:
        app(args=arguments, prog_name="lithi-datasets")
    except LithiError as error:
        if "--json" in (sys.argv[1:] if arguments is None else arguments):
            views.print_json(views.describe_error(error))
        typer.echo(f"{type(error).__name__}: {views.printable(str(error))}", err=True)
        sys.exit(REFUSED)
    finally:
        sys.stdout.flush()


def _end_output() -> None:
    """Let what is still buffered go nowhere: the interpreter would stumble on it at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
