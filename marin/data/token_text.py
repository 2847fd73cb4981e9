"""What an id stands for: the bytes of text of each token, and how to show them with their borders.

A token can end inside a character, so its text is bytes. Invariant: the bytes of an encoded text's tokens, one after
another, are that text, where the tokenizer is byte-level and has no normaliser; elsewhere they are their spelling.
"""

import re
from collections.abc import Iterable, Mapping

from tokenizers import Tokenizer

SPACE = "▁"
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def byte_letters() -> list[str]:
    """Return the letter of each byte in a byte-level vocabulary: itself where it is printable, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def token_bytes(tokenizer: Tokenizer) -> dict[int, bytes]:
    """Return the bytes of text of each id; those of a special token are its control string."""
    is_byte_level = "ByteLevel" in str(tokenizer.decoder)
    byte_of = {letter: byte for byte, letter in enumerate(byte_letters())}
    found: dict[int, bytes] = {}
    for text, number in tokenizer.get_vocab(with_added_tokens=False).items():
        if is_byte_level and all(letter in byte_of for letter in text):
            found[number] = bytes(byte_of[letter] for letter in text)
        elif not is_byte_level and (match := _BYTE.fullmatch(text)):
            found[number] = bytes.fromhex(match[1])
        else:
            found[number] = text.replace(SPACE, " ").encode()
    for number, token in tokenizer.get_added_tokens_decoder().items():
        found[number] = token.content.encode()
    return found


def pieces(ids: Iterable[int], texts: Mapping[int, bytes]) -> list[str]:
    r"""Return the text of each id, with what is no whole character as `\xf0`; an id without a token as `<id>`."""
    return [texts.get(number, b"<%d>" % number).decode("utf-8", "backslashreplace") for number in ids]
