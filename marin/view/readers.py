"""Who read what: the results that were made from a result, over any number of steps."""

from collections.abc import Sequence

from marin.store import Manifest


def readers(made: Sequence[Manifest], of: Manifest) -> list[Manifest]:
    """Return, of all that was made, what `of` went into, directly or through others; the nearest first."""
    children: dict[tuple[str, str], list[Manifest]] = {}
    for each in made:
        for parent in {(parent.step, parent.fingerprint) for parent in each.parents}:
            children.setdefault(parent, []).append(each)
    found: dict[tuple[str, str], Manifest] = {}
    waiting = [(of.step, of.fingerprint)]
    while waiting:
        for child in children.get(waiting.pop(0), ()):
            key = (child.step, child.fingerprint)
            if key not in found:
                found[key] = child
                waiting.append(key)
    return list(found.values())
