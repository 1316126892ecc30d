"""The type grammar of a manifest (spec, section 3) as pure models, without Arrow and without I/O.

A type is the name of a primitive (`"int8"`, `"timestamp[us, tz=UTC]"`) or one of `ListOf`,
`LargeListOf`, `StructOf`. The models are built from the manifest's own member names
(`ListOf(list="int8")`, `StructOf(struct=(…,))`), are frozen, compare by structure, and keep members
that the format does not name in `model_extra`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    FailFast,
    Strict,
    Tag,
    model_validator,
)
from pydantic import Field as Member
from pydantic_core import PydanticCustomError

__all__ = [
    "INTEGER_TYPES",
    "MAX_LIST_LENGTH",
    "Field",
    "FieldList",
    "LargeListOf",
    "ListOf",
    "Model",
    "Primitive",
    "StructOf",
    "Type",
    "null_is",
    "unique",
    "violation",
]

MAX_LIST_LENGTH = 2**31 - 1
INTEGER_TYPES = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))

_PRIMITIVE_PATTERN = (
    r"^(bool|u?int(8|16|32|64)|float(16|32|64)|(large_)?(string|binary)|date(32|64)"
    r"|time32\[(s|ms)\]|time64\[(us|ns)\]|duration\[(s|ms|us|ns)\]"
    r"|timestamp\[(s|ms|us|ns)(, tz=[A-Za-z0-9/_+:-]+)?\]"
    r"|decimal128\(([1-9]|[12][0-9]|3[0-8]), (0|[1-9][0-9]?)\)"
    r"|decimal256\(([1-9]|[1-6][0-9]|7[0-6]), (0|[1-9][0-9]?)\))$"
)
_PRIMITIVE = re.compile(_PRIMITIVE_PATTERN.strip("^$"))
_DECIMAL = re.compile(r"decimal(?:128|256)\(([0-9]+), ([0-9]+)\)")
_KINDS = ("list", "large_list", "struct")
_T = TypeVar("_T")


def violation(expected: str, found: object, at: Iterable[str | int] = ()) -> PydanticCustomError:
    """A broken rule, for a validator to raise; the strict parse turns it into `ManifestInvalid`.

    Args:
        expected: the rule.
        found: what stands there instead.
        at: the JSON path to it, below the member that is being validated.
    """
    return PydanticCustomError(
        "manifest_rule", "{expected}", {"expected": expected, "found": found, "at": tuple(at)}
    )


def null_is(default: object, input_type: Any) -> BeforeValidator:
    """A validator by which `null` means absent (spec, section 1), so it becomes the default."""

    def fill(value: object) -> object:
        return default if value is None else value

    return BeforeValidator(fill, json_schema_input_type=input_type | None)


class Model(BaseModel):
    """Base of every model of the format: strict, frozen, unknown members kept in `model_extra`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


def _is_primitive(name: str) -> str:
    if _PRIMITIVE.fullmatch(name) is None:
        examples = "int64, timestamp[us, tz=UTC] or decimal128(10, 2)"
        raise violation(f"the name of a type of the format, such as {examples}", name)
    match = _DECIMAL.fullmatch(name)
    if match is not None and int(match[2]) > int(match[1]):
        raise violation("a decimal whose scale is at most its precision", name)
    return name


def unique(values: tuple[_T, ...], what: str, at: tuple[str, ...] = ()) -> None:
    """Raise a `violation` that names the first value that stands twice."""
    seen: set[_T] = set()
    for index, value in enumerate(values):
        if value in seen:
            raise violation(f"{what} that stands once", value, (index, *at))
        seen.add(value)


def _unique_field_names(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    unique(tuple(field.name for field in fields), "a field name", ("name",))
    return fields


def _unique_class_names(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if names is not None:
        unique(names, "a class name")
    return names


def _kind_of_type(value: object) -> str | None:
    """The tag of the type's grammar rule; tags start with "<", so no member's name equals one."""
    if isinstance(value, str):
        return "<name>"
    if isinstance(value, Mapping):
        kinds = [kind for kind in _KINDS if kind in value]
        return f"<{kinds[0]}>" if len(kinds) == 1 else None
    models = {ListOf: "<list>", LargeListOf: "<large_list>", StructOf: "<struct>"}
    return next((tag for model, tag in models.items() if isinstance(value, model)), None)


Primitive: TypeAlias = Annotated[
    str,
    Member(
        description="Name of a primitive type; for decimals precision and scale, 0 <= s <= p.",
        json_schema_extra={"pattern": _PRIMITIVE_PATTERN},
        examples=["int64", "timestamp[us, tz=UTC]", "decimal128(10, 2)"],
    ),
    AfterValidator(_is_primitive),
]
Type: TypeAlias = Annotated[
    Annotated[Primitive, Tag("<name>")]
    | Annotated["ListOf", Tag("<list>")]
    | Annotated["LargeListOf", Tag("<large_list>")]
    | Annotated["StructOf", Tag("<struct>")],
    Discriminator(
        _kind_of_type,
        custom_error_type="manifest_type",
        custom_error_message="the name of a type, or an object with one of "
        '"list", "large_list", "struct"',
    ),
]


class ListOf(Model):
    """`list<T>`, or `fixed_size_list<T>[n]` where `length` is given; elements may be null."""

    item: Type = Member(alias="list", description="Type of the elements; they may be null.")
    length: Annotated[int, Member(ge=1, le=MAX_LIST_LENGTH)] | None = Member(
        default=None, description="Number of elements in each list; absent or null: it varies."
    )


class _WithoutLength(Model):
    @model_validator(mode="after")
    def _has_no_length(self) -> _WithoutLength:
        length = (self.model_extra or {}).get("length")
        if length is not None:
            # Passing over it would read a list that was meant to be fixed as one that varies.
            raise violation('a "length" beside "list" only', length, ("length",))
        return self


class LargeListOf(_WithoutLength):
    """`large_list<T>`: offsets of 64 bits; elements may be null."""

    item: Type = Member(alias="large_list", description="Type of the elements; they may be null.")


class StructOf(_WithoutLength):
    """`struct<…>` with its fields in this order."""

    fields: FieldList = Member(alias="struct", description="The fields, names unique, in order.")


class Field(Model):
    """A named, typed column or struct member (spec, section 3)."""

    name: str = Member(min_length=1, description="Name, unique among its siblings.")
    type: Type = Member(description="It alone decides the Arrow type and the datasets feature.")
    nullable: Annotated[bool, null_is(default=True, input_type=bool)] = Member(
        default=True, description="Whether a value may be missing; absent or null: true."
    )
    class_names: Annotated[
        Annotated[tuple[str, ...], Strict(strict=False), Member(min_length=1)] | None,
        AfterValidator(_unique_class_names),
    ] = Member(
        default=None,
        description="Only on an integer type: unique names; values are in [0, their number).",
    )

    @model_validator(mode="after")
    def _classes_are_integers(self) -> Field:
        if self.class_names is not None and not (
            isinstance(self.type, str) and self.type in INTEGER_TYPES
        ):
            raise violation("class_names on an integer type only", self.type, ("class_names",))
        return self


# Declared last, with the class itself: another module that uses it cannot resolve the name.
FieldList: TypeAlias = Annotated[
    tuple[Field, ...],
    Strict(strict=False),
    FailFast(),
    Member(min_length=1),
    AfterValidator(_unique_field_names),
]

for _model in (ListOf, LargeListOf, StructOf, Field):
    _model.model_rebuild()
