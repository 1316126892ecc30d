"""Arguments and options that several commands of `lithi-datasets` have."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AllowPartial", "AsJson", "CredentialRef", "Pin", "Source"]

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="The bundle's folder, the manifest in it, or an fsspec URL of either.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
AllowPartial = Annotated[
    bool, typer.Option("--allow-partial", help="Take a PARTIAL bundle for what it holds.")
]
CredentialRef = Annotated[
    str | None,
    typer.Option(help="Name that the credentials are registered under; never a secret itself."),
]


def _parse_pin(text: str) -> dict[str, str]:
    # A version id may hold an @; a digest never does.
    version_id, at, digest = text.rpartition("@")
    if not (at and version_id and len(digest) == 64 and set(digest) <= set("0123456789abcdef")):
        raise typer.BadParameter(
            "expected VERSION_ID@SHA256, the digest in 64 lower-case hex digits"
        )
    return {"version_id": version_id, "content_sha256": digest}


Pin = Annotated[
    dict[str, str] | None,
    typer.Option(
        "--snapshot",
        metavar="VERSION_ID@SHA256",
        parser=_parse_pin,
        help="The pinned snapshot; any other bundle is refused.",
    ),
]
