"""Manifest types as Arrow types and features, and back (spec, section 3)."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import datasets
import pyarrow as pa
import pytest
from cpu_time import least_seconds

import lithi_datasets as lithi
from lithi_datasets.errors import UsageError
from lithi_datasets.schema import (
    arrow_type,
    declared_schema,
    features,
    manifest_fields,
    manifest_type,
    output_schema,
)
from lithi_datasets.testing import write_bundle
from lithi_datasets.types import Field

if TYPE_CHECKING:
    from pathlib import Path

HAS_LIST = hasattr(datasets, "List")

PRIMITIVES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32": pa.date32(),
    "date64": pa.date64(),
    "time32[s]": pa.time32("s"),
    "time32[ms]": pa.time32("ms"),
    "time64[us]": pa.time64("us"),
    "time64[ns]": pa.time64("ns"),
    **{f"duration[{unit}]": pa.duration(unit) for unit in ("s", "ms", "us", "ns")},
    **{f"timestamp[{unit}]": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")},
    "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"),
    "timestamp[s, tz=+05:30]": pa.timestamp("s", "+05:30"),
    "timestamp[ns, tz=America/Argentina/Buenos_Aires]": pa.timestamp(
        "ns", "America/Argentina/Buenos_Aires"
    ),
    "timestamp[ms, tz=Etc/GMT+5]": pa.timestamp("ms", "Etc/GMT+5"),
    "decimal128(1, 0)": pa.decimal128(1, 0),
    "decimal128(10, 2)": pa.decimal128(10, 2),
    "decimal128(38, 38)": pa.decimal128(38, 38),
    "decimal256(76, 3)": pa.decimal256(76, 3),
}
STRUCT = {
    "struct": [
        {"name": "a", "type": "int16", "nullable": False},
        {"name": "label", "type": "uint8", "class_names": ["no", "yes"]},
    ]
}
REQUIRED_A = pa.field("a", pa.int16(), nullable=False)
DECLARED_STRUCT = pa.struct([REQUIRED_A, pa.field("label", pa.uint8())])
OUTPUT_STRUCT = pa.struct([("a", pa.int16()), ("label", pa.int64())])
NESTED: dict[str, tuple[Any, pa.DataType, pa.DataType]] = {
    "struct": (STRUCT, DECLARED_STRUCT, OUTPUT_STRUCT),
    "list of struct": ({"list": STRUCT}, pa.list_(DECLARED_STRUCT), pa.list_(OUTPUT_STRUCT)),
    "large list of struct": (
        {"large_list": STRUCT},
        pa.large_list(DECLARED_STRUCT),
        pa.large_list(OUTPUT_STRUCT),
    ),
    "list of list of struct": (
        {"list": {"list": STRUCT}},
        pa.list_(pa.list_(DECLARED_STRUCT)),
        pa.list_(pa.list_(OUTPUT_STRUCT)),
    ),
    "fixed-size list of list of struct": (
        {"list": {"list": STRUCT}, "length": 2},
        pa.list_(pa.list_(DECLARED_STRUCT), 2),
        pa.list_(pa.list_(OUTPUT_STRUCT), 2),
    ),
    "large list of list of struct": (
        {"large_list": {"list": STRUCT}},
        pa.large_list(pa.list_(DECLARED_STRUCT)),
        pa.large_list(pa.list_(OUTPUT_STRUCT)),
    ),
    "struct of struct": (
        {"struct": [{"name": "s", "type": {"list": STRUCT}}, {"name": "t", "type": STRUCT}]},
        pa.struct([("s", pa.list_(DECLARED_STRUCT)), ("t", DECLARED_STRUCT)]),
        pa.struct([("s", pa.list_(OUTPUT_STRUCT)), ("t", OUTPUT_STRUCT)]),
    ),
}
FIXED_STRUCTS = {"list": STRUCT, "length": 3}


def field(name: str, type: Any, **members: Any) -> Field:
    return Field.model_validate({"name": name, "type": type, **members})


def every_type() -> list[Field]:
    """Each type on its own, in each kind of list and in a struct."""
    fields = []
    for name in PRIMITIVES:
        fields += [
            field(name, name),
            field(f"list {name}", {"list": name}),
            field(f"fixed {name}", {"list": name, "length": 3}),
            field(f"large {name}", {"large_list": name}),
            field(f"struct {name}", {"struct": [{"name": "f", "type": name}]}),
        ]
    fields += [field(name, declared) for name, (declared, _, _) in NESTED.items()]
    fields.append(field("label", "uint64", class_names=["a", "b"]))
    if HAS_LIST:
        fields.append(field("fixed structs", FIXED_STRUCTS))
    return fields


def null_table(schema: pa.Schema) -> pa.Table:
    return pa.table([pa.nulls(2, kind) for kind in schema.types], names=schema.names)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_primitive_type_is_the_arrow_type_of_that_name(name: str) -> None:
    assert arrow_type(field("x", name).type) == PRIMITIVES[name]


@pytest.mark.parametrize("name", NESTED)
def test_nested_types_keep_nullability_when_declared_and_class_labels_are_int64_in_the_output(
    name: str,
) -> None:
    fields = [field("x", NESTED[name][0], nullable=False)]
    assert declared_schema(fields) == pa.schema([pa.field("x", NESTED[name][1], nullable=False)])
    assert output_schema(fields) == pa.schema([pa.field("x", NESTED[name][2])])


def test_lists_differ_by_kind_and_length() -> None:
    assert arrow_type(field("x", {"list": "int8"}).type) == pa.list_(pa.int8())
    assert arrow_type(field("x", {"list": "int8", "length": 7}).type) == pa.list_(pa.int8(), 7)
    assert arrow_type(field("x", {"large_list": "int8"}).type) == pa.large_list(pa.int8())


def test_features_have_exactly_the_output_types() -> None:
    fields = every_type()
    assert features(fields).arrow_schema.remove_metadata() == output_schema(fields)


def test_features_come_back_from_json_and_from_the_schema_metadata() -> None:
    made = features(every_type())
    again = datasets.Features.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again == made
    assert again.arrow_schema == made.arrow_schema
    assert datasets.Features.from_arrow_schema(made.arrow_schema) == made


def test_a_dataset_with_the_features_keeps_types_over_disk_and_rows(tmp_path: Path) -> None:
    # Before 4.0 a null in a large list of structs can't be saved: `datasets` mixes up two widths.
    fields = [f for f in every_type() if HAS_LIST or not f.name.startswith("large list of")]
    made = features(fields)
    info = datasets.DatasetInfo(features=made)
    dataset = datasets.Dataset(null_table(output_schema(fields)), info=info)
    assert dataset.data.schema.types == output_schema(fields).types
    assert dataset[1] == dict.fromkeys(made)
    dataset.save_to_disk(str(tmp_path))
    loaded = datasets.load_from_disk(str(tmp_path))
    assert loaded.features == made
    assert loaded.data.schema.types == output_schema(fields).types


def test_class_names_become_a_class_label_at_any_depth() -> None:
    made = features([field("x", {"large_list": STRUCT}), field("y", "uint64", class_names=["a"])])
    assert made["y"] == datasets.ClassLabel(names=["a"])
    assert made["x"].feature["label"] == datasets.ClassLabel(names=["no", "yes"])


@pytest.mark.skipif(HAS_LIST, reason="datasets 4.0 and newer have a feature for it")
@pytest.mark.parametrize(
    ("declared", "path"),
    [
        (FIXED_STRUCTS, "x"),
        ({"struct": [{"name": "inner", "type": {"list": FIXED_STRUCTS}}]}, "x.inner[]"),
    ],
)
def test_a_fixed_size_list_of_structs_names_its_field_before_datasets_4(
    declared: Any, path: str
) -> None:
    with pytest.raises(UsageError, match=r"datasets 4\.0") as caught:
        features([field("x", declared)])
    assert caught.value.path == path


CONFUSING = [
    *("_type", "dtype", "feature", "length", "id", "names", "self", "cls", "args", "kwargs"),
    *("a.b", ".", "info", "features", "huggingface", "_index", "__index_level_0__", "bytes"),
    *("path", "keys", "items", "pop", "décodé", "a b", "decode", "num_classes", "pa_type"),
    *("list", "struct", "sequence", "large_list", "class_label", "__class__", "_data", "\n"),
]


@pytest.mark.parametrize("name", CONFUSING)
@pytest.mark.parametrize("depth", ["column", "struct", "list of struct", "large list of struct"])
def test_names_that_datasets_uses_itself_are_only_names(name: str, depth: str) -> None:
    members = [
        *("int8", {"list": "int8"}, {"struct": [{"name": name, "type": "string"}]}),
        *({"large_list": STRUCT}, {"list": {"list": STRUCT}}),
    ]
    if HAS_LIST or name != "_type":
        members.append({"list": STRUCT})
    for member in members:
        inner = {"struct": [{"name": name, "type": member}, {"name": "other", "type": "int8"}]}
        kinds = {"struct": inner, "list of struct": {"list": inner}}
        kinds["large list of struct"] = {"large_list": inner}
        fields = [field(name, member) if depth == "column" else field("x", kinds[depth])]
        made = features(fields)
        assert made.arrow_schema.remove_metadata() == output_schema(fields)
        assert datasets.Features.from_dict(json.loads(json.dumps(made.to_dict()))) == made
        info = datasets.DatasetInfo(features=made)
        dataset = datasets.Dataset(null_table(output_schema(fields)), info=info)
        assert dataset[0] == dict.fromkeys(made)


@pytest.mark.skipif(HAS_LIST, reason="datasets 4.0 and newer have a feature for it")
def test_a_list_of_structs_called_type_is_refused_before_datasets_4() -> None:
    inner = {"struct": [{"name": "_type", "type": {"list": STRUCT}}]}
    for fields, path in (
        ([field("_type", {"list": STRUCT})], "_type"),
        ([field("x", {"list": inner})], "x[]._type"),
    ):
        with pytest.raises(UsageError, match="_type") as caught:
            features(fields)
        assert caught.value.path == path


@pytest.mark.parametrize("name", ["\0", "a\0b", "a\0"])
def test_a_nul_in_a_name_is_refused_by_name_and_not_cut_there(
    name: str, tmp_path: Path, cache_dir: Path
) -> None:
    ids = pa.array(["a", "b"])
    columns = {
        name: pa.table({"item_id": ids, name: [1, 2]}),
        f"x[].{name}": pa.table({"item_id": ids, "x": [[{name: 1}], None]}),
    }
    for number, (path, table) in enumerate(columns.items()):
        folder = tmp_path / str(number)
        write_bundle(folder, table, kind="staged_input")
        bundle = lithi.open_bundle(folder)
        assert bundle.verify().rows == 2
        for streaming in (False, True):
            with pytest.raises(UsageError, match="NUL in its name") as caught:
                lithi.load(folder, streaming=streaming, cache_dir=cache_dir)
            assert caught.value.path == path
        with pytest.raises(UsageError, match="NUL in its name") as caught:
            datasets.load_dataset("lithi_bundle", data_dir=str(folder), cache_dir=str(cache_dir))
        assert caught.value.path == path
    assert not list(cache_dir.rglob("*.arrow"))


def test_two_thousand_columns_take_near_linear_time() -> None:
    def seconds(columns: int) -> float:
        fields = [field(f"c{n}", {"list": "float32", "length": 4}) for n in range(columns)]
        assert len(features(fields)) == len(output_schema(fields)) == columns
        return least_seconds(lambda: (features(fields), output_schema(fields)))

    # Quadratic time would be 100 times as much.
    assert seconds(2000) < 40 * seconds(200) + 0.1


def test_the_declaration_of_every_type_leads_back_to_it() -> None:
    fields = every_type()
    names = {
        "struct.label": ["no", "yes"],
        "list of struct[].label": ["no", "yes"],
        "large list of struct[].label": ["no", "yes"],
        "list of list of struct[][].label": ["no", "yes"],
        "fixed-size list of list of struct[][].label": ["no", "yes"],
        "large list of list of struct[][].label": ["no", "yes"],
        "struct of struct.s[].label": ["no", "yes"],
        "struct of struct.t.label": ["no", "yes"],
        "label": ["a", "b"],
    }
    if HAS_LIST:
        names["fixed structs[].label"] = ["no", "yes"]
    declared = manifest_fields(declared_schema(fields), names)
    assert json.loads(json.dumps(declared)) == declared
    assert [Field.model_validate(member) for member in declared] == fields


def test_required_fields_are_declared_so_and_nullable_ones_need_no_word() -> None:
    schema = pa.schema([pa.field("x", pa.int8(), nullable=False), pa.field("y", pa.int8())])
    assert manifest_fields(schema.with_metadata({"huggingface": "{}"})) == [
        {"name": "x", "type": "int8", "nullable": False},
        {"name": "y", "type": "int8"},
    ]


@pytest.mark.parametrize(
    ("encoded", "declared"),
    [
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.dictionary(pa.int8(), pa.decimal128(3, 1)), "decimal128(3, 1)"),
        (pa.run_end_encoded(pa.int32(), pa.dictionary(pa.int8(), pa.int8())), "int8"),
        (pa.string_view(), "string"),
        (pa.binary_view(), "binary"),
        (pa.list_(pa.dictionary(pa.int8(), pa.string()), 2), {"list": "string", "length": 2}),
        (pa.list_(pa.field("element", pa.int8(), nullable=False)), {"list": "int8"}),
    ],
)
def test_an_encoding_is_declared_as_what_it_encodes(encoded: pa.DataType, declared: Any) -> None:
    assert manifest_type(encoded) == declared


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.map_(pa.string(), pa.int8()),
        pa.list_view(pa.int8()),
        pa.large_list_view(pa.int8()),
        pa.decimal128(3, -1),
        pa.decimal128(3, 4),
        pa.binary(4),
        pa.list_(pa.int8(), 0),
        pa.struct([]),
        pa.month_day_nano_interval(),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.timestamp("us", "Central European"),
        *([pa.json_()] if hasattr(pa, "json_") else []),
        *([pa.decimal32(3, 1), pa.decimal64(3, 1)] if hasattr(pa, "decimal32") else []),
    ],
    ids=str,
)
def test_a_type_without_a_declaration_names_its_field(kind: pa.DataType) -> None:
    with pytest.raises(UsageError, match="no declaration"):
        manifest_type(kind)
    schema = pa.schema([("x", pa.list_(pa.struct([("y", kind)])))])
    with pytest.raises(UsageError) as caught:
        manifest_fields(schema)
    assert caught.value.path == "x[].y"


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (pa.schema([("x", pa.int8()), ("x", pa.int8())]), "x"),
        (pa.schema([("", pa.int8())]), None),
        (pa.schema([("x", pa.struct([("a", pa.int8()), ("a", pa.int8())]))]), "x.a"),
    ],
)
def test_names_that_are_empty_or_stand_twice_are_refused(schema: pa.Schema, path: str) -> None:
    with pytest.raises(UsageError) as caught:
        manifest_fields(schema)
    assert caught.value.path == path


@pytest.mark.parametrize(
    "class_names",
    [
        {"z": ["a"]},
        {"y": ["a"]},
        {"s": ["a"]},
        {"s.y": ["a"]},
        {"x": []},
        {"x": "ab"},
        {"x": ["a", "a"]},
        {"x": ["a", 1]},
    ],
    ids=str,
)
def test_class_names_that_fit_no_integer_field_are_refused(class_names: Any) -> None:
    schema = pa.schema(
        [("x", pa.int8()), ("y", pa.float32()), ("s", pa.struct([("x", pa.int8())]))]
    )
    with pytest.raises(UsageError):
        manifest_fields(schema, class_names)


def test_what_features_say_of_a_dataset_survives_its_info_file(tmp_path: Path) -> None:
    made = features(every_type())
    datasets.DatasetInfo(features=made).write_to_directory(str(tmp_path))
    loaded = datasets.DatasetInfo.from_directory(str(tmp_path))
    assert loaded.features == made
    assert dataclasses.is_dataclass(loaded)
