"""How many bytes of text each token stands for, so that losses of different tokenizers compare.

Shape letter: V vocabulary.
"""

import re

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, pre_tokenizers

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_ALPHABET = frozenset(pre_tokenizers.ByteLevel.alphabet())


def token_sizes(tokenizer: Tokenizer, vocab_size: int) -> NDArray[np.int64]:
    """Return int64 `[V]`: the bytes of text of each id; 0 for special tokens and for ids without a token.

    In a byte-level vocabulary each character of a token is one byte. Otherwise a token is its own text, with
    SentencePiece's mark of a space as one byte (the one it puts before a text included), `<0x0A>` as the byte it names.
    """
    sizes = np.zeros(vocab_size, dtype=np.int64)
    added = tokenizer.get_added_tokens_decoder()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    is_byte_level = vocabulary.keys() >= _ALPHABET
    for token, id in vocabulary.items():
        if id in added:
            sizes[id] = 0 if added[id].special else len(token.encode())
        elif is_byte_level:
            sizes[id] = len(token)
        else:
            sizes[id] = 1 if _BYTE_TOKEN.fullmatch(token) else len(token.replace("▁", " ").encode())
    return sizes
