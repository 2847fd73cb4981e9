"""The tokenizer that came with an artifact, and whether two artifacts have the same one."""

from marin.base.errors import DataError
from marin.data.tokenizer import load_tokenizer
from marin.graph.artifact import Checkpoint, Sequences


def check_tokenizer(data: Sequences, other: Checkpoint | Sequences, *, where: str, of: str) -> None:
    """Raise DataError if the data were tokenized with ids that mean something else to `other`; `of` names it."""
    ours, theirs = tokenizer_bytes(data), tokenizer_bytes(other)
    if ours is None or theirs is None or ours == theirs:
        return
    own, given = load_tokenizer(ours).get_vocab(), load_tokenizer(theirs).get_vocab()
    if differing := sorted(token for token in own.keys() | given.keys() if own.get(token) != given.get(token)):
        raise DataError(
            f"the data were tokenized with another vocabulary than {of}: {len(differing):,} "
            f"tokens differ, such as {differing[0]!r}",
            where=where,
            hint="tokenize both with the same tokenizer",
        )


def tokenizer_bytes(artifact: Checkpoint | Sequences) -> bytes | None:
    """Return the artifact's `tokenizer.json`; None where there is none."""
    files = [file for file in artifact.contents.files if file.path == "tokenizer.json"]
    return artifact.contents.reader.read(files[0]) if files else None
