"""Why a step will run: two recipes compared field by field."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from marin.base.json import Json, dumps

ChangeKind = Literal["config", "code", "version", "input", "parent", "missing"]
_NAMED_FILES = 5
MORE_FILES = "more files"


@dataclass(frozen=True)
class Change:
    """One difference: `path` such as `optimizer.lr`, and both values as plain JSON; None where there was none."""

    kind: ChangeKind
    path: str
    old: Json
    new: Json
    lines: tuple[str, ...] = ()
    """Of changed code: the lines that went and came, after `-` and `+`, where both texts are known."""

    def to_json(self) -> dict[str, Json]:
        """Return the object that `--json` shows."""
        record: dict[str, Json] = {"kind": self.kind, "path": self.path, "old": self.old, "new": self.new}
        return record | ({"lines": list(self.lines)} if self.lines else {})


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:  # Any: recipe records
    """Return all differences of two recipes of one step, configuration first."""
    found = list(_fields(old.get("config", {}), new.get("config", {}), ""))
    found += _code(old, new)
    found += _inputs(old.get("inputs", []), new.get("inputs", []))
    for name in sorted({*old.get("requires", {}), *new.get("requires", {})}):
        versions = old.get("requires", {}).get(name), new.get("requires", {}).get(name)
        if versions[0] != versions[1]:
            found.append(Change("version", name, *versions))
    if old.get("artifact") != new.get("artifact"):
        found.append(Change("config", "artifact", old.get("artifact"), new.get("artifact")))
    return tuple(found)


def _fields(old: Json, new: Json, path: str) -> Iterator[Change]:
    if dumps(old) == dumps(new):
        return
    before, after = _children(old), _children(new)
    if _is_parent(old) or _is_parent(new):
        yield Change("parent", path, plain(old), plain(new))
    elif before is None or after is None or _tag(old) != _tag(new):
        yield Change("config", path, plain(old), plain(new))
    else:
        for name in dict.fromkeys([*before, *after]):
            below = name if name.startswith("[") else f".{name}" if path else name
            if name not in before or name not in after:
                yield Change("config", f"{path}{below}", plain(before.get(name)), plain(after.get(name)))
            else:
                yield from _fields(before[name], after[name], f"{path}{below}")


def _children(value: Json) -> dict[str, Json] | None:
    """Return members by what follows the path: `lr` of a configuration, `[0]`, `['web']`; None for one value."""
    if isinstance(value, list | tuple):
        return {f"[{index}]": member for index, member in enumerate(value)}
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("fields"), Mapping):
        return dict(value["fields"])  # type: ignore[arg-type]
    if isinstance(value.get("$tuple"), list):
        return _children(value["$tuple"])
    if isinstance(value.get("$dict"), list):
        return {f"[{plain(pair[0])!r}]": pair[1] for pair in value["$dict"]}  # type: ignore[union-attr,index]
    return None if any(key.startswith("$") for key in value) else dict(value)


def _tag(value: Json) -> str:
    if not isinstance(value, Mapping):
        return type(value).__name__
    return str(value.get("$config") or next((key for key in value if key.startswith("$")), ""))


def _is_parent(value: Json) -> bool:
    return isinstance(value, Mapping) and "$step" in value


def plain(value: Json) -> Json:
    """Return canonical JSON as people read it: `{"$float": "0x1p-1"}` is 0.5 again."""
    if isinstance(value, list | tuple):
        return [plain(member) for member in value]
    if not isinstance(value, Mapping):
        return value
    if "$float" in value:
        number = float.fromhex(str(value["$float"]))
        return number if abs(number) < float("inf") else str(number)
    if "$step" in value:
        return str(value["$step"])[:8]
    if "$config" in value or "$dataclass" in value:
        name, members = value.get("$config") or value.get("$dataclass"), value["fields"]
        assert isinstance(members, Mapping)
        return f"{name}({', '.join(f'{key}={plain(member)!r}' for key, member in members.items())})"
    if "$dict" in value:
        pairs: Any = value["$dict"]
        return {str(plain(key)): plain(member) for key, member in pairs}
    if "$function" in value or "$class" in value:
        return str(value.get("$function") or value.get("$class"))
    if len(value) == 1:
        return plain(next(iter(value.values())))
    return {key: plain(member) for key, member in value.items()}


def _code(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    before, after = old.get("code", {}), new.get("code", {})
    if before == after:
        return []
    if "version" in before or "version" in after:
        return [Change("version", "version", before.get("version"), after.get("version"))]
    names = [*old.get("definitions", {}), *new.get("definitions", {})]
    digests = {name: (old.get("definitions", {}).get(name), new.get("definitions", {}).get(name)) for name in names}
    changed = [Change("code", name, _short(a), _short(b)) for name, (a, b) in sorted(digests.items()) if a != b]
    return changed or [Change("code", "code", _short(before.get("digest")), _short(after.get("digest")))]


def _inputs(old: Sequence[Any], new: Sequence[Any]) -> list[Change]:
    before, after = ({path: (size, digest) for path, size, digest in files} for files in (old, new))
    differing = [path for path in sorted({*before, *after}) if before.get(path) != after.get(path)]
    found = [
        Change("input", path, _size(before.get(path)), _size(after.get(path))) for path in differing[:_NAMED_FILES]
    ]
    if len(differing) > _NAMED_FILES:
        found.append(Change("input", MORE_FILES, None, len(differing) - _NAMED_FILES))
    return found


def _size(file: tuple[int, str] | None) -> Json:
    return None if file is None else f"{file[0]:,} bytes ({file[1][:8]})"


def _short(digest: str | None) -> str | None:
    return None if digest is None else digest[:8]
