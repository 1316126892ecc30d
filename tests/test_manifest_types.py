"""The type grammar (spec, section 3)."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from lithi_datasets.types import INTEGER_TYPES, Field, LargeListOf, ListOf, StructOf

PRIMITIVES = [
    *["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
    *["float16", "float32", "float64", "string", "large_string", "binary", "large_binary"],
    *["date32", "date64", "time32[s]", "time32[ms]", "time64[us]", "time64[ns]"],
    *[f"duration[{unit}]" for unit in ("s", "ms", "us", "ns")],
    *[f"timestamp[{unit}]" for unit in ("s", "ms", "us", "ns")],
    *[f"timestamp[{unit}, tz=UTC]" for unit in ("s", "ms", "us", "ns")],
    *["timestamp[us, tz=+05:30]", "timestamp[us, tz=-00:00]", "timestamp[s, tz=Europe/Berlin]"],
    *["timestamp[ns, tz=Etc/GMT+3]", "timestamp[s, tz=No/Such_Zone]"],
    *["decimal128(1, 0)", "decimal128(1, 1)", "decimal128(38, 0)", "decimal128(38, 38)"],
    *["decimal128(10, 2)", "decimal256(1, 0)", "decimal256(39, 10)", "decimal256(76, 76)"],
]
NO_TYPES = [
    *["", " ", "int", "int4", "int128", "uint", "float", "float8", "float128", "double", "half"],
    *["Int8", "INT8", " int8", "int8 ", "int8\n", "int64\0", "bool8", "str", "utf8", "bytes"],
    *["null", "object", "large_bool", "large_int8", "string_view", "fixed_size_binary[4]"],
    *["date", "date32[day]", "date128", "time32", "time64", "time32[us]", "time32[ns]"],
    *["time64[s]", "time64[ms]", "time32[s, tz=UTC]", "duration", "duration[m]", "duration[US]"],
    *["timestamp", "timestamp[]", "timestamp[m]", "timestamp[us,tz=UTC]", "timestamp[us, tz=]"],
    *["timestamp[us,  tz=UTC]", "timestamp[us, tz=UTC ]", "timestamp[us, TZ=UTC]"],
    *["timestamp[us, tz=U\u0422C]", "timestamp[us, tz=UTC\n]", "timestamp[us, tz=a b]"],
    *["timestamp[us, tz=UTC]]", "timestamp[us, tz=UTC]x", "timestamp(us)"],
    *["decimal", "decimal128", "decimal128(10)", "decimal128(10,2)", "decimal128( 10, 2)"],
    *["decimal128(0, 0)", "decimal128(39, 0)", "decimal128(010, 2)", "decimal128(10, 02)"],
    *["decimal128(10, -2)", "decimal128(3, 4)", "decimal128(38, 39)", "decimal256(77, 0)"],
    *["decimal256(0, 0)", "decimal256(76, 77)", "decimal32(5, 2)", "decimal64(5, 2)"],
    *["decimal128(1\u0661, 2)", "list", "struct", "map", "list<int8>", "list<item: int8>"],
    *["dictionary<int8, string>", "any"],
]


def field(kind: object, **members: object) -> Field:
    return Field.model_validate({"name": "x", "type": kind, **members})


@pytest.mark.parametrize("name", PRIMITIVES)
def test_each_primitive_of_the_table_is_a_type(name: str) -> None:
    assert field(name).type == name
    nested = field({"list": {"struct": [{"name": "a", "type": {"large_list": name}}]}}).type
    assert isinstance(nested, ListOf)
    assert isinstance(nested.item, StructOf)
    inner = nested.item.fields[0].type
    assert isinstance(inner, LargeListOf)
    assert inner.item == name


@pytest.mark.parametrize("name", NO_TYPES)
def test_nothing_but_the_table_is_a_type(name: str) -> None:
    for kind in (name, {"list": name}, {"struct": [{"name": "a", "type": name}]}):
        with pytest.raises(ValidationError):
            field(kind)


@pytest.mark.parametrize(
    "kind",
    [
        None,
        1,
        True,
        [],
        ["int8"],
        {},
        {"name": "a"},
        {"map": ["string", "int8"]},
        {"List": "int8"},
        {"list": None},
        {"list": ["int8"]},
        {"list": "int8", "large_list": "int8"},
        {"list": "int8", "struct": []},
        {"list": "int8", "large_list": None},
        {"item": "int8"},
        {"list": "int8", "length": 0},
        {"list": "int8", "length": -1},
        {"list": "int8", "length": 2**31},
        {"list": "int8", "length": 3.0},
        {"list": "int8", "length": True},
        {"list": "int8", "length": "3"},
        {"large_list": "int8", "length": 3},
        {"struct": [{"name": "a", "type": "int8"}], "length": 3},
        {"struct": []},
        {"struct": None},
        {"struct": {"a": "int8"}},
        {"struct": "int8"},
        {"struct": [{"name": "a"}]},
        {"struct": [{"type": "int8"}]},
        {"struct": [{"name": "", "type": "int8"}]},
        {"struct": [{"name": None, "type": "int8"}]},
        {"struct": [{"name": "a", "type": "int8"}, {"name": "a", "type": "int16"}]},
        {"list": {"struct": [{"name": "a", "type": "string", "class_names": ["x"]}]}},
    ],
    ids=repr,
)
def test_a_type_of_another_form_is_refused(kind: object) -> None:
    with pytest.raises(ValidationError):
        field(kind)


def test_lists_and_structs_keep_what_they_declare() -> None:
    assert field({"list": "int8", "length": 2**31 - 1}).type == ListOf(
        list="int8", length=2**31 - 1
    )
    assert field({"list": "int8", "length": None}).type == ListOf(list="int8")
    assert field({"large_list": "int8", "length": None}).type == LargeListOf.model_validate(
        {"large_list": "int8", "length": None}
    )
    struct = field({"struct": [{"name": "b", "type": "int8"}, {"name": "a", "type": "bool"}]}).type
    assert isinstance(struct, StructOf)
    assert [each.name for each in struct.fields] == ["b", "a"]
    # Names are compared as they are: neither case nor normal form makes two equal.
    assert field({"struct": [{"name": name, "type": "bool"} for name in ("é", "e\u0301", "É")]})


@pytest.mark.parametrize("name", sorted(INTEGER_TYPES))
def test_class_names_stand_on_each_integer_type_at_any_depth(name: str) -> None:
    assert field(name, class_names=["b", "a", ""]).class_names == ("b", "a", "")
    inner = {"name": "a", "type": name, "class_names": ["x"]}
    struct = field({"list": {"struct": [inner]}}).type
    assert isinstance(struct, ListOf)
    assert isinstance(struct.item, StructOf)
    assert struct.item.fields[0].class_names == ("x",)
    assert field(name, class_names=None).class_names is None


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("int8", []),
        ("int8", ["a", "b", "a"]),
        ("int8", ["a", 1]),
        ("int8", ["a", None]),
        ("int8", "ab"),
        ("int8", {"a": 0}),
        ("string", ["a"]),
        ("float32", ["a"]),
        ("bool", ["a"]),
        ("decimal128(1, 0)", ["a"]),
        ({"list": "int8"}, ["a"]),
    ],
    ids=repr,
)
def test_class_names_are_unique_strings_of_an_integer(kind: object, names: object) -> None:
    with pytest.raises(ValidationError):
        field(kind, class_names=names)


@pytest.mark.parametrize("nullable", [0, 1, "true", "false", [], 1.0])
def test_nullable_is_a_boolean(nullable: object) -> None:
    with pytest.raises(ValidationError):
        field("int8", nullable=nullable)


def test_nullable_is_true_where_it_is_not_said() -> None:
    assert field("int8").nullable
    assert field("int8", nullable=None).nullable
    assert not field("int8", nullable=False).nullable


def test_fields_are_frozen_hashable_structural_and_picklable() -> None:
    members: dict[str, Any] = {
        "name": "x",
        "type": {"struct": [{"name": "a", "type": {"list": "int8", "length": 3}, "x_note": 1}]},
        "x_note": {"deep": [1]},
    }
    one, other = Field.model_validate(members), Field.model_validate(members)
    assert one == other == pickle.loads(pickle.dumps(one))
    assert len({one, other}) == 1
    assert one != Field.model_validate(members | {"nullable": False})
    assert one.model_extra == {"x_note": {"deep": [1]}}
    with pytest.raises(ValidationError):
        one.name = "y"  # type: ignore[misc]
