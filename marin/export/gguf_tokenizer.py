"""A byte-level BPE tokenizer as GGUF describes it: tokens, their kinds, merges, and the name of the way text is cut.

GGUF does not hold the regular expression that cuts text before merging; it names one that its reader knows. So a
tokenizer that cuts in no known way is refused, because its ids would be others there.
Source of names and expressions: https://github.com/ggml-org/llama.cpp, `src/llama-vocab.cpp`.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from marin.base.errors import DataError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Kinds of tokens in GGUF: of the vocabulary, special, added and not special, a row without a token."""

_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"


def _split(numbers: str) -> list[dict[str, Any]]:  # Any: JSON
    pattern = {"Regex": f"{_ENDINGS}{_WORDS}|{numbers}{_REST}"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return [split, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]


_GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_CUTS: dict[str, list[dict[str, Any]]] = {  # Any: JSON
    "gpt-2": [_GPT2],
    "smollm": [{"type": "Digits", "individual_digits": True}, _GPT2],
    "qwen2": _split(r"\p{N}"),
    "dbrx": _split(r"\p{N}{1,3}"),
    "llama-bpe": _split(r"\p{N}{1,3}"),
}
_SAME = {"smaug-bpe": "dbrx", "llama3": "llama-bpe", "llama-v3": "llama-bpe", "starcoder": "smollm"}
_WHOLE_WORDS = {"llama-bpe"}
"""Those that take a word of the vocabulary as it is, merges or not."""


class Vocabulary(NamedTuple):
    """What a GGUF file says of a tokenizer; lists are in order of id."""

    cut: str
    tokens: list[str]
    kinds: list[int]
    merges: list[str]


def vocabulary(tokenizer_json: bytes, rows: int) -> Vocabulary:
    """Return a tokenizer's vocabulary, filled up to the rows of the embedding; DataError where GGUF has no words."""
    record = json.loads(tokenizer_json)
    model = record["model"]
    cut = cut_name(record)
    tokens = [f"[PAD{number}]" for number in range(rows)]
    kinds = [UNUSED] * rows
    for token, number in model["vocab"].items():
        tokens[number], kinds[number] = token, NORMAL
    for added in record.get("added_tokens") or []:
        number = added["id"]
        tokens[number], kinds[number] = added["content"], CONTROL if added["special"] else USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return Vocabulary(cut, tokens, kinds, merges)


def cut_name(record: Mapping[str, Any]) -> str:  # Any: tokenizer.json
    """Return GGUF's name for how a tokenizer cuts text; DataError where it has none, or the model is no such BPE."""
    model = record["model"]
    if model.get("type", "BPE") != "BPE" or model.get("byte_fallback") or "merges" not in model:
        raise _unknown("a tokenizer that is no byte-level BPE")
    normalizer = (record.get("normalizer") or {}).get("type")
    wanted, whole = _plain(record.get("pre_tokenizer")), bool(model.get("ignore_merges"))
    for name, cut in _CUTS.items():
        normalizers = {None, "NFC"} if name == "qwen2" else {None}
        if wanted == cut and whole == (name in _WHOLE_WORDS) and normalizer in normalizers:
            return name
    raise _unknown("the way in which this tokenizer cuts text")


def with_cut(tokenizer_json: bytes, name: str) -> bytes | None:
    """Return a tokenizer that cuts text as GGUF's name says; None for a name that is not known here."""
    name = _SAME.get(name, name)
    if name not in _CUTS:
        return None
    steps = [{**step, "trim_offsets": True} if step["type"] == "ByteLevel" else step for step in _CUTS[name]]
    record = json.loads(tokenizer_json)
    record["pre_tokenizer"] = steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}
    record["model"]["ignore_merges"] = name in _WHOLE_WORDS
    return json.dumps(record, ensure_ascii=False).encode()


def _plain(step: Mapping[str, Any] | None) -> list[dict[str, Any]]:  # Any: JSON
    """Return the steps of a pre-tokenizer without what changes no id."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [plain for each in step["pretokenizers"] for plain in _plain(each)]
    return [{name: value for name, value in step.items() if name != "trim_offsets"}]


def _unknown(what: str) -> DataError:
    return DataError(
        f"GGUF has no name for {what}",
        where="tokenizer.json",
        hint="export safetensors; GGUF takes tokenizers that cut text as GPT-2, SmolLM, Llama 3, Qwen2 or marin's own",
    )
