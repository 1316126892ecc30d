"""The types of a manifest as Arrow types and as `datasets` features (spec, section 3), and back.

There are two schemas to one manifest. The *declared* schema is what the parts are read into: the
declared types, nullability included. The *output* schema is what a dataset holds: the same types,
except that a field with `class_names` is int64 (a `ClassLabel` is stored as that) and that every
field is nullable, at any depth, because `datasets.Features` know no other. `lithi_datasets.checks`
stands between the two, so the nullability that the output schema can't say has been checked.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as patypes

from lithi_datasets.errors import UsageError
from lithi_datasets.types import INTEGER_TYPES, Field, LargeListOf, ListOf, Type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from datasets import Features

__all__ = [
    "arrow_type",
    "declared_schema",
    "features",
    "manifest_fields",
    "manifest_type",
    "output_schema",
]

_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "bool": pa.bool_(),
    **{name: getattr(pa, name)() for name in sorted(INTEGER_TYPES)},
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32": pa.date32(),
    "date64": pa.date64(),
}
_NAME_OF: Final[Mapping[pa.DataType, str]] = {type_: name for name, type_ in _PLAIN.items()}
_UNITS: Final = {"time32": pa.time32, "time64": pa.time64, "duration": pa.duration}
_WITH_UNIT = re.compile(r"(time32|time64|duration)\[(s|ms|us|ns)\]")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]")
_DECIMAL = re.compile(r"(decimal128|decimal256)\(([0-9]+), ([0-9]+)\)")
_ZONE = re.compile(r"[A-Za-z0-9/_+:-]+")


def arrow_type(type: Type) -> pa.DataType:
    """The declared Arrow type of a manifest type, with the nullability of its struct fields."""
    return _arrow(type, output=False)


def declared_schema(fields: Iterable[Field]) -> pa.Schema:
    """What a part is read into: the declared Arrow types and nullability, in column order."""
    return pa.schema([_arrow_field(field, output=False) for field in fields])


def output_schema(fields: Iterable[Field]) -> pa.Schema:
    """What a dataset holds: int64 for class labels and everything nullable, at any depth.

    Its types are those of `features(fields).arrow_schema`.
    """
    return pa.schema([_arrow_field(field, output=True) for field in fields])


def features(fields: Iterable[Field]) -> Features:
    """The `datasets` features of a schema; needs a second for `import datasets` the first time.

    Raises:
        UsageError: the installed `datasets` has no feature for a field, named by its dotted path:
            before 4.0 for a fixed-size list of structs, and for a list of structs called `_type`;
            on any version for a field with a NUL in its name.
    """
    import datasets

    return datasets.Features({field.name: _feature_of(field, field.name) for field in fields})


def manifest_type(type: pa.DataType) -> str | dict[str, Any]:
    """The manifest type of an Arrow type, for writers: `arrow_type` the other way round.

    An encoding is not a type: dictionary and run-end encoded values, `string_view` and
    `binary_view` are declared as the values that they encode, which is what a reader delivers.

    Raises:
        UsageError: the type has no declaration (null, map, list_view, decimal32, fixed-size binary,
            intervals, extensions, a decimal with a negative scale, an empty struct, …).
    """
    return _declaration(type, "")


def manifest_fields(
    schema: pa.Schema, class_names: Mapping[str, Sequence[str]] | None = None
) -> list[dict[str, Any]]:
    """The manifest's `schema.fields` of an Arrow schema, for writers. Metadata is passed over.

    Args:
        schema: its nullability is declared as it is.
        class_names: names of the classes of an integer field, by its dotted path from the column,
            with `[]` for the elements of a list: `label`, `meta.label`, `boxes[].label`.

    Raises:
        UsageError: a type has no declaration, a name is empty or stands twice, `class_names` name
            no integer field or are not unique strings; the field is named by its dotted path.
    """
    classes = dict(class_names or {})
    declared = _declared_fields(list(schema), "", classes)
    if classes:
        raise UsageError(
            "class names are given for a field that the schema does not have",
            expected=", ".join(schema.names),
            found=", ".join(classes),
        )
    return declared


def _arrow_field(field: Field, *, output: bool) -> pa.Field:
    if output and field.class_names is not None:
        return pa.field(field.name, pa.int64())
    type_ = _arrow(field.type, output=output)
    return pa.field(field.name, type_, nullable=output or field.nullable)


def _arrow(type: Type, *, output: bool) -> pa.DataType:
    if isinstance(type, str):
        return _primitive(type)
    if isinstance(type, ListOf):
        return pa.list_(_arrow(type.item, output=output), type.length or -1)
    if isinstance(type, LargeListOf):
        return pa.large_list(_arrow(type.item, output=output))
    return pa.struct([_arrow_field(field, output=output) for field in type.fields])


@cache
def _primitive(name: str) -> pa.DataType:
    if name in _PLAIN:
        return _PLAIN[name]
    if match := _WITH_UNIT.fullmatch(name):
        return _UNITS[match[1]](match[2])
    if match := _TIMESTAMP.fullmatch(name):
        return pa.timestamp(match[1], match[2])
    if match := _DECIMAL.fullmatch(name):
        return getattr(pa, match[1])(int(match[2]), int(match[3]))
    raise UsageError("this is not the name of a type of the bundle format", found=repr(name))


def _feature_of(field: Field, at: str) -> Any:
    import datasets

    if "\0" in field.name:
        # pyarrow hands a schema on by C strings: `datasets` would end the name there, in silence.
        raise _no_feature(at, "a field with a NUL in its name", remedy="Rename the field.")
    if field.class_names is not None:
        return datasets.ClassLabel(names=list(field.class_names))
    feature = _feature(field.type, at)
    if field.name == "_type" and isinstance(feature, list):
        # The features are stored as JSON in which "_type" marks a feature, unless a dict is there.
        raise _no_feature(at, "a list of structs in a field called _type")
    return feature


def _feature(type: Type, at: str) -> Any:
    import datasets

    if isinstance(type, str):
        return datasets.Value(type)
    if isinstance(type, LargeListOf):
        return datasets.LargeList(_feature(type.item, f"{at}[]"))
    if not isinstance(type, ListOf):
        return {field.name: _feature_of(field, f"{at}.{field.name}") for field in type.fields}
    item, length = _feature(type.item, f"{at}[]"), type.length or -1
    if hasattr(datasets, "List"):
        return datasets.List(item, length=length)
    if not isinstance(item, dict):
        return datasets.Sequence(item, length=length)
    if type.length is not None:
        raise _no_feature(at, "a fixed-size list of structs")
    # Before 4.0 a Sequence of a dict is a dict of lists; a plain list is the list of structs.
    return [item]


def _no_feature(
    at: str, what: str, *, remedy: str = "Read this bundle with datasets 4.0 or newer."
) -> UsageError:
    import datasets

    return UsageError(
        f"datasets {datasets.__version__} has no feature for {what}",
        path=at,
        remedy=remedy,
    )


def _declared_fields(
    fields: Sequence[pa.Field], at: str, classes: dict[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """The declarations of sibling fields; takes the names that it used out of `classes`."""
    declared: dict[str, dict[str, Any]] = {}
    for field in fields:
        path = f"{at}.{field.name}" if at else field.name
        if not field.name or field.name in declared:
            problem = "a field's name stands twice" if field.name else "a field has no name"
            raise UsageError(problem, path=path or None)
        declaration = {"name": field.name, "type": _declaration(field.type, path, classes)}
        if not field.nullable:
            declaration["nullable"] = False
        if path in classes:
            declaration["class_names"] = _classes(classes.pop(path), declaration["type"], path)
        declared[field.name] = declaration
    return list(declared.values())


def _classes(names: Sequence[str], type: object, at: str) -> list[str]:
    if not isinstance(type, str) or type not in INTEGER_TYPES:
        raise UsageError("class names are for integer fields", path=at, found=type)
    listed = [names] if isinstance(names, str) else list(names)
    strings = all(isinstance(name, str) for name in listed)
    if isinstance(names, str) or not listed or not strings or len({*listed}) < len(listed):
        raise UsageError(
            "the class names are not what the format allows",
            path=at,
            expected="a list of unique strings, at least one",
            found=repr(names),
        )
    return listed


def _declaration(
    type: pa.DataType, at: str, classes: dict[str, Sequence[str]] | None = None
) -> str | dict[str, Any]:
    classes = {} if classes is None else classes
    if patypes.is_dictionary(type) or patypes.is_run_end_encoded(type):
        return _declaration(type.value_type, at, classes)
    if patypes.is_fixed_size_list(type) and type.list_size > 0:
        return {"list": _declaration(type.value_type, f"{at}[]", classes), "length": type.list_size}
    if patypes.is_list(type):
        return {"list": _declaration(type.value_type, f"{at}[]", classes)}
    if patypes.is_large_list(type):
        return {"large_list": _declaration(type.value_type, f"{at}[]", classes)}
    if patypes.is_struct(type) and type.num_fields:
        return {"struct": _declared_fields(list(type), at, classes)}
    name = _declared_name(type)
    if name is None:
        raise UsageError(
            "the bundle format has no declaration for this Arrow type",
            path=at or None,
            found=type,
            remedy="Cast the column to a type of the bundle format (its section on types).",
        )
    return name


def _declared_name(type: pa.DataType) -> str | None:
    if type in _NAME_OF:
        return _NAME_OF[type]
    if patypes.is_string_view(type) or patypes.is_binary_view(type):
        return "string" if patypes.is_string_view(type) else "binary"
    if patypes.is_time(type) or patypes.is_duration(type):
        return str(type)
    if patypes.is_timestamp(type) and (type.tz is None or _ZONE.fullmatch(type.tz)):
        return str(type)
    if patypes.is_decimal128(type) or patypes.is_decimal256(type):
        return str(type) if 0 <= type.scale <= type.precision else None
    return None
