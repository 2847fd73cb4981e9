"""A tokenizer that somebody else trained, from its published files, as `tokenizer.json`, its ends and its template.

Taken: Hugging Face `tokenizer.json` byte for byte; tiktoken rank files and SentencePiece models where the converted
file gives the same ids. Invariant: what is returned depends on the bytes of the files and the options alone.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from marin import fs
from marin.base.errors import ConfigurationError, DataError
from marin.base.json import Json
from marin.data import sentencepiece_model, tiktoken_ranks
from marin.data.encode import probe_texts
from marin.data.tokenizer import control_strings, load_tokenizer, num_ids, special_id
from marin.data.vocabulary import Holes, check_vocabulary
from marin.graph.files import FileRef

TEMPLATE = "chat_template.jinja"

_NAMES = ("tokenizer.json", "tokenizer.model", "tiktoken.model")
_ENDS = ("bos_token", "eos_token", "pad_token", "unk_token")


class LoadedTokenizer(NamedTuple):
    """`data` is a `tokenizer.json`; `template` a Jinja chat template; `meta` has `eos`, and `bos` if there is one."""

    data: bytes
    template: str | None
    meta: dict[str, Json]


def load_files(
    files: Sequence[FileRef],
    *,
    eos: str | None = None,
    bos: str | None = None,
    pattern: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
    holes: Holes = "fail",
) -> LoadedTokenizer:
    """Return the tokenizer of a folder's files, or of one file.

    `eos` and `bos` override what the files say. DataError names what is wrong with the vocabulary (see `vocabulary`),
    `missing_eos` when no file and no option says how a document ends, `inexact` when a conversion is.
    """
    main = _main_file(files)
    config = _config(files)
    data, ends = _converted(fs.read_file(main), main, pattern, special_tokens or {})
    tokenizer = load_tokenizer(data)
    check_vocabulary(data, holes=holes)
    if (json.loads(data).get("model") or {}).get("dropout"):
        raise DataError(
            "the tokenizer drops merges at random (dropout): each text would have other ids every time",
            where=main.path,
            hint='set "dropout" to null in its model',
        )
    config = {**{f"{name}_token": token for name, token in ends.items()}, **config}
    tokens = {name: text for name in _ENDS if (text := _text_of(config.get(name))) is not None}
    if eos is not None:
        tokens["eos_token"] = eos
    if bos is not None:
        tokens["bos_token"] = bos
    if "eos_token" not in tokens:
        known = ", ".join(map(repr, control_strings(tokenizer)[:10])) or "none"
        raise DataError(
            f"nothing says which token ends a document (missing_eos); the special tokens are {known}",
            where=main.path,
            hint="give `eos`, or the folder with its tokenizer_config.json",
        )
    for token in (tokens[name] for name in ("eos_token", "bos_token") if name in tokens):
        special_id(tokenizer, token)
    short = {name.removesuffix("_token"): text for name, text in tokens.items()}
    meta: dict[str, Json] = {**short, "vocab_size": num_ids(tokenizer), "source": main.path}
    return LoadedTokenizer(data, _template(files, config), meta)


def _main_file(files: Sequence[FileRef]) -> FileRef:
    by_name = {file.path.rpartition("/")[2]: file for file in files}
    for name in _NAMES:
        if name in by_name:
            return by_name[name]
    found = [file for file in files if file.path.endswith((".json", ".model", ".tiktoken"))]
    if len(found) == 1 or (found and len(files) == 1):
        return found[0]
    raise DataError(
        f"no tokenizer among {', '.join(sorted(by_name)) or 'no files'} (no_tokenizer)",
        hint="name the file: a tokenizer.json, a rank file (.tiktoken) or a SentencePiece .model",
    )


def _converted(
    data: bytes, file: FileRef, pattern: str | None, special_tokens: Mapping[str, int]
) -> tuple[bytes, dict[str, str]]:
    is_ranks = file.path.endswith(".tiktoken") or tiktoken_ranks.is_rank_file(data)
    if not is_ranks and (pattern or special_tokens):
        raise ConfigurationError(
            f"`pattern` and `special_tokens` belong to a rank file; `{file.path}` has its own",
            where="pattern" if pattern else "special_tokens",
            hint="leave them out",
        )
    if file.path.endswith(".json"):
        return data, {}
    if not is_ranks:
        return sentencepiece_model.convert(data, probes=probe_texts([]))
    if pattern is None:
        raise ConfigurationError(
            f"`{file.path}` holds ranks, not where merges may not cross",
            where="pattern",
            hint="give `pattern`, the regular expression that this tokenizer is published with",
        )
    converted = tiktoken_ranks.convert(
        data, pattern=pattern, special_tokens=special_tokens, probes=probe_texts(list(special_tokens))
    )
    return converted, {}


def _config(files: Sequence[FileRef]) -> dict[str, Any]:  # Any: JSON
    """Return the fields of tokenizer_config.json, over those of special_tokens_map.json."""
    by_name = {file.path.rpartition("/")[2]: file for file in files}
    fields: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if name in by_name:
            try:
                record = json.loads(fs.read_file(by_name[name]))
            except ValueError as error:
                raise DataError(f"`{name}` is no JSON: {error}", where=by_name[name].url, hint="mend it") from error
            if not isinstance(record, dict):
                raise DataError(f"`{name}` holds no JSON object", where=by_name[name].url, hint="mend it")
            fields |= {key: value for key, value in record.items() if value is not None}
    return fields


def _template(files: Sequence[FileRef], config: Mapping[str, Any]) -> str | None:  # Any: JSON
    """Return the chat template: a file of its own first; of several in the configuration the one named `default`."""
    for file in files:
        if file.path.rpartition("/")[2] == TEMPLATE:
            return fs.read_file(file).decode()
    found = config.get("chat_template")
    if isinstance(found, list):
        found = {each["name"]: each["template"] for each in found}.get("default")
    return found if isinstance(found, str) else None


def _text_of(token: Any) -> str | None:  # Any: a string, or an object with `content`
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
