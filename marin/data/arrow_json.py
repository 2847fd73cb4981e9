"""Arrow types as what JSON can hold.

Invariant: what a value becomes does not depend on the machine: times are UTC to the microsecond, so that neither pandas
nor a database of time zones is asked.
"""

from typing import Any

import pyarrow as pa

DataType = Any  # pyarrow has no types

_AS_THEY_ARE = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_null,
    pa.types.is_date,
    pa.types.is_decimal,
)


def json_type(kind: DataType) -> DataType | None:
    """Return the Arrow type to cast to, whose values JSON can hold; None when there is none, as for bytes."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if any(is_kind(kind) for is_kind in _AS_THEY_ARE):
        return kind
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_dictionary(kind):
        return json_type(kind.value_type)
    if pa.types.is_struct(kind):
        fields = [(field.name, json_type(field.type)) for field in kind]
        return None if any(inner is None for _, inner in fields) else pa.struct(fields)
    if any(is_list(kind) for is_list in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)):
        inner = json_type(kind.value_type)
        return None if inner is None else pa.large_list(inner)
    if pa.types.is_map(kind):
        key, item = json_type(kind.key_type), json_type(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return None
