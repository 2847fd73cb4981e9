"""A corpus that grows: what holds the new file is done again, all else keeps its digest."""

from collections.abc import Callable
from pathlib import Path

from marin.data.ingest import ingest_shard, plan_groups
from marin.data.split import split_shard
from marin.data.tokenize import tokenize_shard
from marin.data.tokenizer import train_tokenizer
from marin.graph.files import FileRef, Shard

EOS = "<|endoftext|>"

RunShards = Callable[..., list[Shard]]


def test_pipeline_with_one_file_added_redoes_one_group(
    make_file: Callable[[str, bytes], FileRef], run_shards: RunShards, tmp_path: Path
) -> None:
    files = [make_file(f"{number:03}.py", f"value = {number}\n".encode() * 20) for number in range(200)]
    documents = run_shards(ingest_shard, plan_groups(files, target_bytes=3000), text=None, on_error="fail")
    tokenizer = make_file("tokenizer.json", train_tokenizer(documents, vocab_size=270, special_tokens=(EOS,)))

    def digests(pins: list[FileRef]) -> list[set[str]]:
        ingested = run_shards(ingest_shard, plan_groups(pins, target_bytes=3000), text=None, on_error="fail")
        kept = run_shards(split_shard, ingested, keep="train", fraction=0.2, seed=0)
        tokens = run_shards(tokenize_shard, kept, tokenizer=tokenizer, eos=EOS)
        return [{shard.digest for shard in shards} for shards in (ingested, kept, tokens)]

    before = digests(files)
    after = digests([*files, make_file("100a.py", b"added = True\n")])
    for old, new in zip(before, after, strict=True):
        assert len(old) > 10
        assert len(old - new) == 1
        assert 1 <= len(new - old) <= 2
