"""How fast texts and conversations become token shards, beside the libraries that users would call, in the same run.

    RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false python benchmarks/tokens.py

The texts are the sources of Python's standard library; the tokenizer is trained on some of them. One process and one
thread of a library each; every figure is of CPU time, planning and commit included. *Equal* says that both gave the
same ids. Of targets it says how many tokens differ: `transformers` also counts a token that begins before the answer.
"""

import argparse
import json
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import marin
from marin.data.arrays import open_array
from marin.data.encode import choose_encoder
from marin.data.token_files import INDEX, TOKENS, loss_mask, read_index, read_loss

EOS = "<|endoftext|>"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|endoftext|>"
    "{% endgeneration %}{% else %}{{ m.content }}<|endoftext|>{% endif %}{% endfor %}"
)
TURN = 900


def sources(megabytes: float) -> Iterator[str]:
    """Yield files of the standard library."""
    left = megabytes * 1e6
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in path.parts and left > 0:
            text = path.read_text(errors="ignore")
            left -= len(text)
            if text:
                yield text


def conversations(texts: Sequence[str], number: int) -> list[list[dict[str, str]]]:
    """Return conversations of four turns, cut from the texts."""
    cut = [text[at : at + TURN] + "." for text in texts for at in range(0, len(text), TURN)]
    turns = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(cut)]
    return [turns[at : at + 4] for at in range(0, 4 * number, 4)]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return seconds of CPU time of this process, and what the work gave."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def ids_of(tokens: marin.Tokens) -> np.ndarray:
    """Return all ids of an artifact."""
    arrays = [open_array(shard.file(TOKENS)) for shard in tokens.shards]
    return np.concatenate([array.read(0, array.shape[0]) for array in arrays])


def report(what: str, megabytes: float, ours: float, peer: str, theirs: float, equal: bool) -> None:
    """Print a line."""
    mine, other = megabytes / ours, megabytes / theirs
    print(f"{what:32} {mine:7.1f} MB/s  {peer:12} {other:6.1f} MB/s  ratio {mine / other:5.1f}  equal {equal}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=30)
    parser.add_argument("--conversations", type=int, default=6000)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="marin-tokens-"))
    texts = list(sources(options.megabytes))
    size = sum(len(text.encode()) for text in texts) / 1e6
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    documents = marin.Files(url=str(folder / "a.jsonl"), text="text")
    tokenizer = marin.TrainTokenizer(documents=documents, vocab_size=4096, every=8)
    store = folder / "store"
    data = marin.run(tokenizer, store=store, backend="inline").read()
    truth = Tokenizer.from_buffer(data)
    truth.encode_special_tokens = True
    encoders = choose_encoder(data)
    assert encoders.fast is not None, encoders.reason

    theirs, encodings = timed(lambda: truth.encode_batch_fast(texts, add_special_tokens=False))
    expected = [encoding.ids for encoding in encodings]
    ours, encoded = timed(lambda: encoders.fast.encode(texts))  # type: ignore[union-attr]
    report("encode", size, ours, "tokenizers", theirs, encoded.ids.tolist() == [n for ids in expected for n in ids])
    tokenize = marin.Tokenize(documents=documents, tokenizer=tokenizer)
    alone, tokens = timed(lambda: marin.run(tokenize, store=store, backend="inline"))
    with_end = [n for ids in expected for n in (*ids, truth.token_to_id(EOS))]
    report("documents to tokens on disk", size, alone, "tokenizers", theirs, ids_of(tokens).tolist() == with_end)
    read, _ = timed(lambda: marin.run(documents, store=folder / "again", backend="inline"))
    print(f"{'JSON lines to tokens on disk':32} {size / (read + alone):7.1f} MB/s")

    talks = conversations(texts, options.conversations)
    size = sum(len(message["content"].encode()) for talk in talks for message in talk) / 1e6
    (folder / "chat.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    step = marin.Chat(
        documents=marin.Conversations(url=str(folder / "chat.jsonl")), tokenizer=tokenizer, template=TEMPLATE
    )
    marin.run(step.documents, store=store, backend="inline")
    ours, made = timed(lambda: marin.run(step, store=store, backend="inline"))
    peer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_buffer(data), chat_template=TEMPLATE, eos_token=EOS)
    few = talks[: len(talks) // 20]
    theirs, answers = timed(
        lambda: [
            peer.apply_chat_template(talk, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
            for talk in few
        ]
    )
    ids, runs = ids_of(made), read_loss(read_index(made.shards[0].file(INDEX)))
    assert runs is not None
    masks = np.concatenate([loss_mask(each) for each in runs])
    same = [n for answer in answers for n in answer["input_ids"]]
    targets = np.array([n for answer in answers for n in answer["assistant_masks"]], bool)
    differ = int((targets != masks[: len(same)]).sum())
    report(
        "conversations to tokens and mask", size, ours, "transformers", 20 * theirs, ids[: len(same)].tolist() == same
    )
    print(f"{differ} of {len(same):,} tokens are targets for one side alone")


if __name__ == "__main__":
    main()
