"""The paths that a manifest may bind (spec, section 5), each refusal named after the attack."""

from __future__ import annotations

import re
import unicodedata

import pytest
from cpu_time import least_seconds
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lithi_datasets import paths
from lithi_datasets.paths import MANIFEST_NAME, PATH_PATTERN, first_fault, path_fault

ATTACKS = {
    "empty": ["", "1 to 1024 bytes"],
    "absolute": ["/etc/passwd", "relative"],
    "absolute, two slashes": ["//host/share", "relative"],
    "the root": ["/", "relative"],
    "parent": ["..", '".."'],
    "parent at the start": ["../secret", '".."'],
    "parent in the middle": ["a/../../secret", '".."'],
    "parent at the end": ["a/..", '".."'],
    "here": [".", '".."'],
    "here at the start": ["./a", '".."'],
    "here in the middle": ["a/./b", '".."'],
    "empty segment": ["a//b", "empty segments"],
    "folder": ["a/", "empty segments"],
    "backslash": ["a\\b", "backslashes"],
    "parent by backslash": ["..\\secret", "backslashes"],
    "network share": ["\\\\host\\share", "backslashes"],
    "drive": ["C:/a", "colons"],
    "drive, relative": ["c:a", "colons"],
    "stream of NTFS": ["a.parquet:zone", "colons"],
    "URL": ["https://host/a", "colons"],
    "file URL": ["file:///etc/passwd", "colons"],
    "chained URL of fsspec": ["zip://a::file.zip", "colons"],
    "NUL": ["a\0b", "control"],
    "newline": ["a\nb", "control"],
    "newline at the end": ["parts/a.parquet\n", "control"],
    "tab": ["a\tb", "control"],
    "escape": ["\x1b[31m", "control"],
    "DEL": ["a\x7f", "control"],
    "C1": ["a\x85b", "control"],
    "last of C1": ["a\x9f", "control"],
    "lone surrogate": ["a\ud800", "control"],
    "not NFC": ["e\u0301.parquet", "NFC"],
    "not NFC: Kelvin": ["\u212a", "NFC"],
    "not NFC: Hangul jamo": ["\u1112\u1161\u11ab", "NFC"],
    "ends in a dot": ["a.", "dot or a space"],
    "ends in a space": ["a ", "dot or a space"],
    "only a space": [" ", "dot or a space"],
    "three dots": ["...", "dot or a space"],
    "folder ends in a dot": ["a./b", "dot or a space"],
    "folder ends in a space": ["a /b", "dot or a space"],
    "parent and a space": [".. /b", "dot or a space"],
    "1,025 bytes": ["a" * 1025, "1 to 1024 bytes"],
    "1,025 bytes in 342 characters": ["€" * 341 + "ab", "1 to 1024 bytes"],
    "1,025 bytes in many segments": ["a/" * 512 + "b", "1 to 1024 bytes"],
}
DEVICES = [
    *["CON", "PRN", "AUX", "NUL", "con", "Nul", "CONIN$", "conout$", "COM¹", "com²", "LPT³"],
    *[f"{name}{digit}" for name in ("COM", "lpt") for digit in range(10)],
]

ALLOWED = [
    "a",
    "parts/part-00000.parquet",
    "x.bin",
    "..a",
    ".hidden/.file",
    "a..b",
    "a b/c d",
    " a",
    "50% off?#1&x=y+z.parquet",
    "[a]*{b}|<c>\"d'",
    "~/a",
    "é/ü/€/漢字/😀",
    "\u00a0x\u00a0",
    "CONSOLE",
    "CON1",
    "COM",
    "COM10",
    "com",
    "LPT",
    "NULL.txt",
    "xCON",
    "a-con.txt",
    "CON-1.txt",
    " CON",
    "CONIN",
    "AUXILIARY/aux_1",
    "result-manifest.json.bak",
    "a/result-manifest.json",
    "a" * 1024,
    "€" * 341 + "a",
    "a/" * 511 + "bc",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_path_that_is_not_safe_everywhere_is_refused(attack: str) -> None:
    path, word = ATTACKS[attack]
    fault = first_fault(["ok", path])
    assert fault is not None
    assert fault.index == 1
    assert word in fault.expected
    assert fault.found == path


@pytest.mark.parametrize("device", DEVICES)
def test_a_name_that_windows_reserves_is_refused(device: str) -> None:
    for form in ("{}", "{}.txt", "{}.tar.gz", "a/{}", "{}/a", "a/{}.x/b", "{} .txt"):
        fault = first_fault([form.format(device)])
        assert fault is not None
        assert "Windows" in fault.expected


@pytest.mark.parametrize("path", ALLOWED)
def test_any_other_path_is_allowed(path: str) -> None:
    assert first_fault([path]) is None
    assert re.match(PATH_PATTERN, path)


@pytest.mark.parametrize(
    ("bound", "rule"),
    [
        (["a", "a"], "case-folding"),
        (["a", "b", "A"], "case-folding"),
        (["x/Part.bin", "X/pART.BIN"], "case-folding"),
        (["Straße", "STRASSE"], "case-folding"),
        (["é", "É"], "case-folding"),
        (["ſ", "s"], "case-folding"),
        (["σ", "ς"], "case-folding"),
        (["\ufb00", "ff"], "case-folding"),
        (["a", "a/b"], "folder of another"),
        (["a/b", "a"], "folder of another"),
        (["A", "b", "a/b/c"], "folder of another"),
        (["a/b", "A/B/c", "z"], "folder of another"),
        (["a", "a-b", "a.c", "a b", "a!", "a/b"], "folder of another"),
        (["É", "é/x"], "folder of another"),
    ],
)
def test_two_paths_that_collide_somewhere_are_refused(bound: list[str], rule: str) -> None:
    fault = first_fault(bound)
    assert fault is not None
    assert rule in fault.expected
    assert all(path in fault.found for path in (bound[0], bound[fault.index]))
    assert fault.index > 0


@pytest.mark.parametrize(
    "path",
    [
        "result-manifest.json",
        "Result-Manifest.JSON",
        "re\u017fult-manife\u017ft.json",
        "result-manifest.json/a",
        "RESULT-MANIFEST.json/a/b",
    ],
)
def test_the_manifest_binds_neither_itself_nor_its_place(path: str) -> None:
    fault = first_fault(["a", path])
    assert fault is not None
    assert (fault.index, fault.found) == (1, path)
    assert MANIFEST_NAME in fault.expected


def test_siblings_and_equal_names_in_other_folders_go_together() -> None:
    assert first_fault([]) is None
    assert first_fault(["a/b", "a/c", "b/a", "ab", "a-b", "a.b", "c/a/b", "a/bc", "a/b.c"]) is None


def collides(one: str, other: str) -> bool:
    """The rules as the spec words them, for two paths."""
    first, second = (
        unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
        for path in (one, other)
    )
    return first == second or first.startswith(second + "/") or second.startswith(first + "/")


segments = st.text(st.sampled_from("aAbéÉßSſ-. !"), min_size=1, max_size=3)
some_paths = st.lists(segments, min_size=1, max_size=3).map("/".join)


@settings(deadline=None, max_examples=200)
@given(st.lists(some_paths, max_size=8))
@example(["a", "a!", "a/b"])
def test_collisions_are_those_that_comparing_all_pairs_finds(bound: list[str]) -> None:
    bound = [path for path in bound if path_fault(path) is None]
    brute = any(collides(one, two) for i, one in enumerate(bound) for two in bound[:i])
    fault = first_fault(bound)
    assert (fault is not None) == brute
    if fault is not None:
        assert any(collides(bound[fault.index], bound[i]) for i in range(fault.index))


devices = st.sampled_from(["CON", "nul", "com1", "LPT0", "aux", "prn", "clock", "co", "xcon"])
pieces = devices | st.sampled_from(["/", ".", "..", " ", "-", "_", "\\", ":"]) | st.text(max_size=2)


@settings(deadline=None, max_examples=250)
@given(st.lists(pieces, max_size=7).map("".join))
def test_the_fast_check_lets_nothing_through_that_the_rules_refuse(path: str) -> None:
    if paths._PLAIN.fullmatch(path) is not None:
        assert path_fault(path) is None


@settings(deadline=None, max_examples=250)
@given(st.lists(pieces, max_size=7).map("".join) | st.text())
def test_an_accepted_path_means_the_same_on_every_system(path: str) -> None:
    if first_fault([path]) is not None:
        return
    segments = path.split("/")
    assert all(segments)
    assert not {".", ".."} & set(segments)
    assert not any(each.endswith((".", " ")) for each in segments)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\\:]", path)
    assert unicodedata.normalize("NFC", path) == path
    assert len(path.encode()) <= 1024
    assert re.match(PATH_PATTERN, path)


@settings(deadline=None, max_examples=250)
@given(st.text(st.sampled_from("a.: /\\\n\x7f\x80é"), max_size=6))
def test_the_published_pattern_is_the_rules_but_for_names_and_unicode(path: str) -> None:
    assert (re.match(PATH_PATTERN, path) is None) == (path_fault(path) is not None)


@pytest.mark.parametrize(
    "bound",
    [
        [f"parts/part-{n:05d}.parquet" for n in range(100_000)],
        [f"Teil-ä/{n}/x" for n in range(100_000)],
        ["/".join("abcdefghij"[int(digit)] * 30 for digit in f"{n:05d}") for n in range(100_000)],
        [f"{'a/' * 490}{n}" for n in range(10_000)],
    ],
    ids=["plain", "not ASCII", "many folders", "deep"],
)
def test_many_paths_are_checked_in_near_linear_time(bound: list[str]) -> None:
    def seconds(some: list[str]) -> float:
        assert first_fault(some) is None
        return least_seconds(lambda: first_fault(some))

    # Quadratic time would be 100 times as much.
    assert seconds(bound) < 40 * seconds(bound[: len(bound) // 10]) + 0.1
