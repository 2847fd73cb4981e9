"""Models from elsewhere: which reader takes what was pinned."""

from collections.abc import Sequence

from marin import fs
from marin.base.json import Json
from marin.export.import_folder import import_folder
from marin.export.import_gguf import import_gguf
from marin.graph.files import FileRef, Output


def import_model(url: str, files: Sequence[FileRef], output: Output) -> Json:
    """Write the checkpoint that pinned files hold to `output` and return its summary; raises DataError."""
    reader = fs.FileReader()
    if url.endswith(".gguf"):
        return import_gguf(files[0], reader, output)
    where = fs.normalise(url)
    return import_folder(files, reader, output, url=where, listed=fs.list_folder(where))
