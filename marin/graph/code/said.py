"""What a piece says where it is loaded: its form, and what each name in it means."""

from collections.abc import Collection, Iterable
from types import ModuleType

from marin.base.json import Json
from marin.graph.code.loaded import Globals, Place
from marin.graph.code.meaning import Meaning, binding, meaning_of
from marin.graph.code.node import Description, Key, Reach
from marin.graph.code.piece import Chain, Piece, import_of
from marin.graph.code.readers import reads_hints


def say(
    places: Iterable[Place],
    space: Globals,
    shown: str,
    description: Description,
    reach: Reach,
    own: Collection[str] = (),
) -> list[Json]:
    """Return what pieces of a module say; names in `own` are their own, such as the variables of a closure."""
    said: list[Json] = []
    for place in places:
        piece = place.piece
        description.places.append((space, place))
        description.untracked += [f"{shown}: {text}" for text in piece.untracked]
        description.attributes.update(piece.attributes)
        description.reads.update(piece.reads)
        if piece.docs:
            description.docs.append(piece.docs)
        names = [chain for chain in piece.names if chain[0] not in own]
        imports = [[name, _imported(head, space, shown, description, reach)] for name, head in piece.imports]
        said.append([piece.form, imports, _named(names, space, shown, description, reach)])
        said += _hints(piece, space, shown, description, reach)
        if piece.kind not in {"statement", "condition"}:  # those ran at import
            _changes([chain for chain in piece.changes if chain[0] not in own], space, description)
    return said


def key_of_constant(space: Globals, name: str) -> Key:
    """Return the key of the node of a value that a module binds to a name."""
    return ("constant", id(space), name)


def key_of_attribute(kind: type, name: str) -> Key:
    """Return the key of the node of a class attribute."""
    return ("attribute", id(kind), name)


def _named(names: Iterable[Chain], space: Globals, shown: str, description: Description, reach: Reach) -> list[Json]:
    said: list[Json] = []
    for chain in names:
        found = _meaning(chain, space, shown, description)
        if found is None:
            continue
        places = [description.edge(node) for node in reach.reference(found)]
        if places or found.libraries:
            label = "import" if import_of(chain[0]) else chain[0]
            said.append([".".join((label, *chain[1:])), places, list(found.libraries)])
    return said


def _imported(head: str, space: Globals, shown: str, description: Description, reach: Reach) -> Json:
    """Return what an import inside a definition binds; a module says nothing until something of it is named."""
    named = _meaning((head,), space, shown, description)
    if named is None:
        return []
    if isinstance(named.value, ModuleType):
        return list(named.libraries)
    return [[description.edge(node) for node in reach.reference(named)], *named.libraries]


def _meaning(chain: Chain, space: Globals, shown: str, description: Description) -> Meaning | None:
    try:
        return meaning_of(chain, space, description.look)
    except ImportError:
        found = import_of(chain[0])
        description.untracked.append(f"{shown}: import of {found.module if found else chain[0]}")
        return None


def _hints(piece: Piece, space: Globals, shown: str, description: Description, reach: Reach) -> list[Json]:
    said: list[Json] = []
    for hint in piece.hints:
        if any(reads_hints(reader, space, description.look) for reader in hint.readers):
            said.append([hint.form, _named(hint.names, space, shown, description, reach)])
        else:
            description.hints.append((space, hint))
    return said


def _changes(changes: Iterable[Chain], space: Globals, description: Description) -> None:
    """Note the nodes of the values that these chains change."""
    for chain in changes:
        try:
            found = meaning_of(chain, space, description.look)
        except ImportError:
            continue
        if isinstance(found.value, type) and found.rest:
            description.changes.append(key_of_attribute(found.value, found.rest[0]))
        bound = binding(found.space, found.name)
        if bound is not None:
            description.changes.append(key_of_constant(*bound))
