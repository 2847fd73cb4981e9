"""Bytes at URLs: the only room that knows fsspec."""

from marin.fs.bulk import ask_each, decode_many, exists_many, list_folders, read_many
from marin.fs.faults import NotFound, Unavailable
from marin.fs.listing import glob, list_files, list_folder, matcher
from marin.fs.location import is_local, join, local_path, normalise
from marin.fs.output import FolderOutput
from marin.fs.patience import be_patient
from marin.fs.probe import probe
from marin.fs.read import (
    FileReader,
    check_file,
    digest_file,
    exists,
    open_file,
    open_read,
    read,
    read_file,
    read_range,
)
from marin.fs.write import create, delete, delete_folder, delete_unchanged, replace, unique, write, write_stream

__all__ = [
    "FileReader",
    "FolderOutput",
    "NotFound",
    "Unavailable",
    "ask_each",
    "be_patient",
    "check_file",
    "create",
    "decode_many",
    "delete",
    "delete_folder",
    "delete_unchanged",
    "digest_file",
    "exists",
    "exists_many",
    "glob",
    "is_local",
    "join",
    "list_files",
    "list_folder",
    "list_folders",
    "local_path",
    "matcher",
    "normalise",
    "open_file",
    "open_read",
    "probe",
    "read",
    "read_file",
    "read_many",
    "read_range",
    "replace",
    "unique",
    "write",
    "write_stream",
]
