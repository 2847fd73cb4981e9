"""Tokens for other tools and back: byte for byte both ways, and damaged files by name."""

import json
import struct
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import marin
from marin import Step
from marin.base.errors import ConfigurationError, DataError, InputError, MarinError
from marin.data.arrays import open_array
from marin.data.megatron import MegatronIndex, decode_index, encode_index
from marin.data.token_export import export_shard
from marin.data.token_files import INDEX, TOKENS, read_index
from marin.data.token_import import import_shard, plan_import
from marin.data.tokenizer import train_tokenizer
from marin.graph.files import FileRef, Shard

EOS = "<|endoftext|>"
TEXTS = ["the cat and the hat", "été 👩‍👩‍👧", "x" * 50, "123\n456"]
MakeFile = Callable[[str, bytes], FileRef]
RunShards = Callable[..., list[Shard]]


@pytest.fixture
def hub(tmp_path: Path, documents: Callable[..., list[Shard]]) -> Path:
    data = train_tokenizer(documents(["the cat and the hat and the bat " * 5]), vocab_size=265, special_tokens=(EOS,))
    (tmp_path / "tokenizer.json").write_bytes(data)
    return tmp_path / "tokenizer.json"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., marin.Artifact]:
    return lambda step: marin.run(step, store=tmp_path / "store", backend="inline")


def tokens_of(hub: Path) -> marin.Tokenize:
    return marin.Tokenize(documents=marin.Records(texts=TEXTS), tokenizer=marin.LoadTokenizer(url=str(hub), eos=EOS))


def chat_of(hub: Path, tmp_path: Path) -> marin.Chat:
    talk = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "and the hat"}]
    lines = [json.dumps({"messages": each}) for each in (talk[:1], talk, talk * 2)]
    (tmp_path / "chat.jsonl").write_text("\n".join(lines))
    return marin.Chat(
        on_refused="drop",
        documents=marin.Conversations(url=str(tmp_path / "chat.jsonl")),
        tokenizer=marin.LoadTokenizer(url=str(hub), eos=EOS),
        template="{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}",
    )


@pytest.mark.parametrize("format", ["megatron", "parquet", "mds"])
@pytest.mark.parametrize("kind", ["text", "chat"])
def test_tokens_exported_and_imported_are_the_same_bytes(
    hub: Path, run: Callable[..., marin.Artifact], tmp_path: Path, format: str, kind: str
) -> None:
    made = tokens_of(hub) if kind == "text" else chat_of(hub, tmp_path)
    run(marin.ExportTokens(tokens=made, format=format).at(str(tmp_path / "out")))
    back = run(
        marin.ImportTokens(
            url=str(tmp_path / "out"), format=format, tokenizer=marin.LoadTokenizer(url=str(hub), eos=EOS)
        )
    )
    before = run(made)
    assert [[(f.path, f.digest) for f in shard.files] for shard in back.shards] == [
        [(f.path, f.digest) for f in shard.files] for shard in before.shards
    ]
    assert {name: back.meta[name] for name in ("tokens", "documents_out", "eos_id", "dtype")} == {
        name: before.meta[name] for name in ("tokens", "documents_out", "eos_id", "dtype")
    }
    if kind == "text":
        assert back.meta["bytes"] == before.meta["bytes"]


def foreign(documents: list[list[int]], dtype: str = "<u2") -> tuple[bytes, bytes]:
    """A pair as Megatron writes it, from the format's description and not from our code."""
    lengths = [len(each) for each in documents]
    offsets = [sum(lengths[:n]) * np.dtype(dtype).itemsize for n in range(len(lengths))]
    code = {"<u2": 8, "<i4": 4}[dtype]
    idx = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1)
    idx += struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(lengths)}q", *offsets)
    idx += struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1))
    return np.array(list(chain(*documents)), dtype).tobytes(), idx


def imported(
    run_shards: RunShards, hub: Path, make_file: MakeFile, pair: tuple[bytes, bytes], **options: object
) -> list[Shard]:
    files = [make_file("in/a.bin", pair[0]), make_file("in/a.idx", pair[1])]
    pieces = plan_import(files, format="megatron", piece_tokens=options.pop("piece_tokens", 100))
    config = {"tokenizer": make_file("t.json", hub.read_bytes()), "eos": EOS, "format": "megatron"}
    return run_shards(import_shard, pieces, **{"on_missing_eos": "fail", **config, **options})


@pytest.mark.parametrize("dtype", ["<u2", "<i4"])
def test_megatron_files_imported_and_exported_are_the_same_bytes(
    run_shards: RunShards, hub: Path, make_file: MakeFile, dtype: str
) -> None:
    pair = foreign([[5, 6, 0], [7, 0], [0]], dtype)
    shards = imported(run_shards, hub, make_file, pair)
    name = {"<u2": "uint16", "<i4": "int32"}[dtype]
    (out,) = run_shards(export_shard, shards, format="megatron", dtype=name)
    assert (Path(out.file("tokens.bin").url).read_bytes(), Path(out.file("tokens.idx").url).read_bytes()) == pair


def test_import_in_pieces_has_the_documents_and_ids_of_one_piece(
    run_shards: RunShards, hub: Path, make_file: MakeFile
) -> None:
    pair = foreign([[number + 1, 9, 0] for number in range(20)])
    one = imported(run_shards, hub, make_file, pair)
    many = imported(run_shards, hub, make_file, pair, piece_tokens=7)
    assert (len(one), len(many)) == (1, 10)

    def contents(shards: list[Shard]) -> list[object]:
        arrays = [open_array(shard.file(TOKENS)) for shard in shards]
        names = [read_index(shard.file(INDEX))["id"].to_pylist() for shard in shards]
        return [[each for a in arrays for each in a.read(0, a.shape[0]).tolist()], list(chain(*names))]

    assert contents(one) == contents(many)


def test_import_of_documents_without_eos_fails_or_appends_and_counts(
    run_shards: RunShards, hub: Path, make_file: MakeFile
) -> None:
    pair = foreign([[5, 6], [7, 0], []])
    with pytest.raises(DataError, match="missing_eos"):
        imported(run_shards, hub, make_file, pair)
    (shard,) = imported(run_shards, hub, make_file, pair, on_missing_eos="append")
    array = open_array(shard.file(TOKENS))
    assert array.read(0, 9).tolist() == [5, 6, 0, 7, 0]
    assert (shard.value["notes"]["eos_appended"], shard.value["dropped"]) == (1, {"empty": 1})
    assert (shard.value["documents_in"], shard.value["documents_out"]) == (3, 2)


def test_import_of_other_files_is_refused_by_name(run_shards: RunShards, hub: Path, make_file: MakeFile) -> None:
    good = foreign([[5, 0]])
    for pair, name in [
        ((good[0], b"x" * 50), "damaged_index"),
        ((good[0] + b"\0\0", good[1]), "damaged_index"),
        ((good[0], good[1][:-8]), "damaged_index"),
        (foreign([[60_000, 0]]), "id_beyond_vocabulary"),
    ]:
        with pytest.raises(DataError, match=name):
            imported(run_shards, hub, make_file, pair)
    with pytest.raises(InputError, match=r"no `b.idx`"):
        plan_import([make_file("b.bin", b"")], format="megatron")


def test_import_of_a_table_with_input_ids_of_another_tool(
    run_shards: RunShards, hub: Path, make_file: MakeFile, tmp_path: Path
) -> None:
    parquet.write_table(pa.table({"input_ids": [[5, 6, 0], [7, 0]]}), tmp_path / "x.parquet")
    (piece,) = plan_import([make_file("x.parquet", (tmp_path / "x.parquet").read_bytes())], format="parquet")
    config = {"tokenizer": make_file("t.json", hub.read_bytes()), "eos": EOS, "on_missing_eos": "fail"}
    (shard,) = run_shards(import_shard, [piece], format="parquet", **config)
    assert open_array(shard.file(TOKENS)).read(0, 9).tolist() == [5, 6, 0, 7, 0]
    assert read_index(shard.file(INDEX))["source"].to_pylist() == ["x.parquet"] * 2


@pytest.mark.parametrize("column", [[5, 6], [["a"], ["b"]], [[1.5], [2.0]], [[5, None], [0]]], ids=str)
def test_import_of_a_table_without_lists_of_ids_is_refused_by_name(
    run_shards: RunShards, hub: Path, make_file: MakeFile, tmp_path: Path, column: list[object]
) -> None:
    parquet.write_table(pa.table({"tokens": column}), tmp_path / "x.parquet")
    pieces = plan_import([make_file("x.parquet", (tmp_path / "x.parquet").read_bytes())], format="parquet")
    config = {"tokenizer": make_file("t.json", hub.read_bytes()), "eos": EOS, "on_missing_eos": "fail"}
    with pytest.raises(DataError, match="not_ids"):
        run_shards(import_shard, pieces, format="parquet", **config)


@pytest.mark.parametrize("loss", [[[1], [0, 3]], [None, [0, 3]], [[0, 2], [0, 9]], [["a"], ["b"]]], ids=str)
def test_import_of_masks_that_are_not_as_long_as_their_documents_is_refused(
    run_shards: RunShards, hub: Path, make_file: MakeFile, tmp_path: Path, loss: list[object]
) -> None:
    kinds = {"id": pa.binary(16), "source": pa.large_string(), "row": pa.uint64()}
    columns = {"tokens": pa.array([[5, 0], [6, 7, 0]], pa.large_list(pa.uint16()))}
    values = {"id": [b"a" * 16, b"b" * 16], "source": ["s", "s"], "row": [0, 1]}
    columns |= {name: pa.array(values[name], kind) for name, kind in kinds.items()}
    is_text = any(isinstance(run, str) for runs in loss for run in runs or ())
    columns["loss"] = pa.array(loss, pa.large_list(pa.string() if is_text else pa.uint32()))
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    pieces = plan_import([make_file("x.parquet", (tmp_path / "x.parquet").read_bytes())], format="parquet")
    config = {"tokenizer": make_file("t.json", hub.read_bytes()), "eos": EOS, "on_missing_eos": "fail"}
    with pytest.raises(DataError, match="not_loss"):
        run_shards(import_shard, pieces, format="parquet", **config)


class Rewrites(Step[marin.Documents]):
    """Gives documents on, and writes other bytes into a file meanwhile."""

    documents: Step[marin.Documents]
    path: str
    data: bytes

    def run(self, ctx: marin.Context) -> marin.Documents:
        Path(self.path).write_bytes(self.data)
        given = ctx.load(self.documents)
        return marin.Documents.write(ctx.output, shards=given.shards, meta=given.meta)


def test_import_of_a_file_that_changed_since_the_plan_fails(
    hub: Path, run: Callable[..., marin.Artifact], tmp_path: Path
) -> None:
    exported = run(marin.ExportTokens(tokens=tokens_of(hub), format="megatron"))
    folder = tmp_path / "megatron"
    folder.mkdir()
    for shard in exported.shards:
        for file in shard.files:
            (folder / file.path).write_bytes(exported.contents.reader.read(file))
    data = bytearray((folder / "tokens.bin").read_bytes())
    data[0] ^= 1
    documents = Rewrites(documents=marin.Records(texts=TEXTS), path=str(folder / "tokens.bin"), data=bytes(data))
    tokenizer = marin.TrainTokenizer(documents=documents, vocab_size=270)
    with pytest.raises(MarinError, match=r"input changed during the run: `.*tokens.bin`"):
        run(marin.ImportTokens(url=str(folder), format="megatron", tokenizer=tokenizer))


def test_export_of_ids_that_do_not_fit_is_refused(hub: Path, run: Callable[..., marin.Artifact]) -> None:
    with pytest.raises(ConfigurationError, match="Parquet, which keeps"):
        marin.ExportTokens(tokens=tokens_of(hub), format="parquet", dtype="int32")
    record = json.loads(hub.read_text())
    record["model"]["vocab"]["<|far|>"] = 70_000
    record["added_tokens"].append({**record["added_tokens"][0], "id": 70_000, "content": "<|far|>"})
    hub.write_text(json.dumps(record))
    made = marin.Tokenize(
        documents=marin.Records(texts=TEXTS),
        tokenizer=marin.LoadTokenizer(url=str(hub), eos="<|far|>", holes="keep"),
    )
    with pytest.raises(MarinError, match="id_too_large"):
        run(marin.ExportTokens(tokens=made, format="megatron", dtype="uint16"))
    assert run(marin.ExportTokens(tokens=made, format="megatron")).meta["format"] == "megatron"


@given(lengths=st.lists(st.integers(0, 2**31 - 1), max_size=20), dtype=st.sampled_from(["<u2", "<i4"]))
def test_megatron_index_of_any_lengths_is_read_back(lengths: list[int], dtype: str) -> None:
    index = MegatronIndex(np.dtype(dtype), np.array(lengths, np.int64))
    size = sum(lengths) * index.dtype.itemsize
    back = decode_index(encode_index(index), bin_bytes=size, where="x")
    assert (back.dtype, back.lengths.tolist(), back.joined) == (index.dtype, lengths, 0)
