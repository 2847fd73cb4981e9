"""MDS files: the bytes of MosaicML's library both ways, its other encodings read, damage by name."""

import hashlib
import json
from base64 import b85decode
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import marin
from marin.base.errors import DataError, InputError
from marin.data import mds
from marin.data.arrays import open_array
from marin.data.token_export import export_shard
from marin.data.token_files import INDEX, TOKENS, read_index
from marin.data.token_import import import_shard, plan_import
from marin.data.tokenizer import train_tokenizer
from marin.graph.files import FileRef, Shard

EOS = "<|endoftext|>"
MakeFile = Callable[[str, bytes], FileRef]
RunShards = Callable[..., list[Shard]]

# What mosaicml-streaming 0.13.0 writes. `bytes` of int64; int32 of shape 2 beside a text and a number; arrays that name
# their own type and shape, between a text and bytes.
FOREIGN = {
    "bytes": (
        "0{{R3!2kdN-2eap@c;k-{Qv*}dm>|RY;|pJUuAA%Z)9n1XLBMtAX_40d30rSB3&#XB4clCb!~26ZeeX@b0Rt*TOxFCYh`Y8B3&#XB4cl"
        "Cb!~26b7^{Ib0Rt*TW)o1Y+WoMB4clDaB^jHb7^mGB03;$b!==bAR=aOa&2LBB03-<ZDeyIEFdCiVRL9@b0Rt*TU{(5B6DeaWnXM*ZE1"
        "8OIv_STF)%ndHZ&|CB6ekRb7^mGB03;4eHZ`$00jU50000000sa600000000000000001yBG00#g700000000000000000;m80000000"
        "00000",
        [[5, 6, 0], [7, 0], [0]],
    ),
    "static": (
        "0ssI2^Z)<=4FLcECjkHedm>|RY;|pJUuAA%Z)9n1XLBMtAX_4CWMOi0VR<@fZgev;Ix-?GAR=>gaw04sB4%uFVRSY$B3&#XB4clCb!~2"
        "6ZeeX@b0Rt*TOw(0aCLNFX=HOEEFdCoVQpn1EFdCxWoc(<bRu0WAR=RLY;|pJUvp`CWpg4rAX_*rAZ~SRY%Cx+T`V9XV{dJ6a%FRKX>V"
        ">KIv{R!Y-}tbB4%%LZDDjGIv^r#WOE`cAR=gCb7*CAB03;jT`V9Xb7^{IUu<b@X>=kwAT~EKFgQ3iG%O$@c4cyNX>V>KIv_HA1poj51p"
        "oj500000czAetcmMzZ0002sKL!8*00sa6000000C;$KczAdK000000N_6",
        [[5, 0], [6, 0]],
    ),
    "dynamic": (
        "0{{R3=>Px#69E7KDFFZgJplj!dm>|RY;|pJUuAA%Z)9n1XLBMtAX_4HbaEmrAR=yLVRCX|c_J(zB4T-TWpg53EFdCdZ)|mKZeMO;ZDn&"
        "JIv`sjVInLbB6M$SWo~mKEFdC!B3&#XB4clCb!~26b7^{Ib0Rt*TW)o1Y%Cydb!==bAZ~SRY+WoMB4clDaB^jHb7^mGB03;$b!==bAR="
        "aOa&2LBB03-<ZDeyIEFdCiVRL9@b0Rt*TU{(5B6DeaWnXM*ZE18OIv_STF)%ndHZ&|CB6ekRb7^mGB03;4eF6Xg02=@R009610K=(41O"
        "o*C00000000I60000000000000000040U00007000010002PsSpGL2LJ#7aRLAU00jU5009610K=&e1OWg5aR",
        [[5, 6, 0], [7, 0], [0]],
    ),
}
LIBRARY = {
    "uint16": "6f6ceded961a0bc24c0393e95fb8ef02a8e8d7dc6a9c92f3cb29dfc81ebf98f6",
    "int32": "7a5c313be63b7734f1d9538ebaa1ab280be5e995370ea699a70fdfab1fc3a374",
}
"""SHA-256 of what that library writes of LENGTHS_OF_ALL_SHAPES with `size_limit=None`."""
LENGTHS_OF_ALL_SHAPES = [[5, 6, 0], [7, 0], [0], [1] * 300 + [0], [2] * 70_000 + [0]]


@pytest.fixture
def tokenizer(make_file: MakeFile, documents: Callable[..., list[Shard]]) -> FileRef:
    data = train_tokenizer(documents(["the cat and the hat and the bat " * 5]), vocab_size=265, special_tokens=(EOS,))
    return make_file("tokenizer.json", data)


def encoded(documents: list[list[int]], dtype: str = "<u2") -> bytes:
    head = mds.encode_head(np.array([len(each) for each in documents], np.int64), np.dtype(dtype))
    return head + mds.encode_samples([np.array(each, dtype) for each in documents])


def decoded(data: bytes) -> list[list[int]]:
    head = mds.decode_head(data[: mds.head_bytes(data[: mds.PREFIX_BYTES])], file_bytes=len(data), where="x")
    body = data[int(head.offsets[0]) :]
    return [ids.tolist() for ids in mds.decode_samples(head, body, 0, where="x")]


def imported(
    run_shards: RunShards, tokenizer: FileRef, file: FileRef, piece_tokens: int = 100, on_missing_eos: str = "fail"
) -> list[Shard]:
    pieces = plan_import([file], format="mds", piece_tokens=piece_tokens)
    return run_shards(import_shard, pieces, tokenizer=tokenizer, eos=EOS, on_missing_eos=on_missing_eos, format="mds")


def ids_of(shards: list[Shard]) -> list[int]:
    arrays = [open_array(shard.file(TOKENS)) for shard in shards]
    return list(chain(*(array.read(0, array.shape[0]).tolist() for array in arrays)))


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_a_file_has_the_bytes_that_the_library_writes(dtype: str) -> None:
    data = encoded(LENGTHS_OF_ALL_SHAPES, dtype)
    assert hashlib.sha256(data).hexdigest() == LIBRARY[dtype]
    assert decoded(data) == LENGTHS_OF_ALL_SHAPES


@pytest.mark.parametrize("name", FOREIGN)
def test_each_encoding_of_ids_that_the_library_writes_is_imported(
    run_shards: RunShards, tokenizer: FileRef, make_file: MakeFile, name: str
) -> None:
    text, documents = FOREIGN[name]
    shards = imported(run_shards, tokenizer, make_file("shard.00000.mds", b85decode(text)))
    assert ids_of(shards) == list(chain(*documents))
    (shard,) = shards
    assert np.diff(read_index(shard.file(INDEX))["end"].to_numpy(), prepend=0).tolist() == [len(d) for d in documents]


def test_a_foreign_file_imported_and_exported_has_the_same_bytes(
    run_shards: RunShards, tokenizer: FileRef, make_file: MakeFile
) -> None:
    data = encoded([[5, 6, 0], [7, 0], [0]])
    shards = imported(run_shards, tokenizer, make_file("shard.00000.mds", data))
    (out,) = run_shards(export_shard, shards, format="mds", dtype=None)
    assert Path(out.file("tokens.mds").url).read_bytes() == data


def test_an_import_in_pieces_has_the_documents_of_one_piece(
    run_shards: RunShards, tokenizer: FileRef, make_file: MakeFile
) -> None:
    file = make_file("shard.00000.mds", encoded([[number + 1, 9, 0] for number in range(20)]))
    one, many = (imported(run_shards, tokenizer, file, piece) for piece in (100, 7))
    assert (len(one), len(many)) == (1, 10)
    assert ids_of(one) == ids_of(many)
    names = [[read_index(shard.file(INDEX))["id"].to_pylist() for shard in shards] for shards in (one, many)]
    assert list(chain(*names[0])) == list(chain(*names[1]))


def test_an_export_lists_its_shards_for_the_library(tmp_path: Path, tokenizer: FileRef) -> None:
    for number, texts in enumerate((["the cat", "and the hat"], ["bat"])):
        (tmp_path / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    documents = marin.Files(url=str(tmp_path / "*.jsonl"), text="text", shard_bytes=45)
    tokens = marin.Tokenize(documents=documents, tokenizer=marin.LoadTokenizer(url=tokenizer.url, eos=EOS))
    out = tmp_path / "out"
    marin.run(marin.ExportTokens(tokens=tokens, format="mds").at(str(out)), store=tmp_path / "store", backend="inline")
    index = json.loads((out / "index.json").read_bytes())
    files = [out / shard["raw_data"]["basename"] for shard in index["shards"]]
    assert [file.relative_to(out).as_posix() for file in files] == [f"shards/0000{n}/tokens.mds" for n in (0, 1)]
    assert [shard["raw_data"]["bytes"] for shard in index["shards"]] == [file.stat().st_size for file in files]
    assert [shard["samples"] for shard in index["shards"]] == [2, 1]
    assert [len(decoded(file.read_bytes())) for file in files] == [2, 1]
    assert index["shards"][0]["column_encodings"] == ["ndarray:uint16"]


def test_files_that_are_not_mds_or_have_no_ids_are_refused_by_name(
    run_shards: RunShards, tokenizer: FileRef, make_file: MakeFile
) -> None:
    good = encoded([[5, 6, 0], [7, 0]])
    for data, name in [
        (b"", "damaged_mds"),
        (b"x" * 50, "damaged_mds"),
        (good[:-1], "damaged_mds"),
        (good.replace(b'"version": 2', b'"version": 3'), "damaged_mds"),
        (good.replace(b'"tokens"', b'"others"'), "no column `tokens` or `input_ids`"),
        (good.replace(b"ndarray:uint16", b"ndarray:float1"), "not_ids"),
        (encoded([[5, 6]]), "missing_eos"),
        (encoded([[60_000, 0]]), "id_beyond_vocabulary"),
    ]:
        with pytest.raises(DataError, match=name):
            imported(run_shards, tokenizer, make_file("a.mds", data))
    with pytest.raises(InputError, match="compressed"):
        plan_import([make_file("a.mds.zstd", b"")], format="mds")
    with pytest.raises(InputError, match=r"no \.mds file"):
        plan_import([make_file("index.json", b"{}")], format="mds")


def test_a_shard_beyond_what_offsets_count_is_refused() -> None:
    with pytest.raises(DataError, match="too_large"):
        mds.encode_head(np.array([2**30, 2**30], np.int64), np.dtype("<i4"))


@given(documents=st.lists(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=300), max_size=8))
def test_any_documents_are_read_back(documents: list[list[int]]) -> None:
    assert decoded(encoded(documents)) == documents


@given(at=st.integers(0, 400), byte=st.integers(0, 255), kept=st.integers(0, 400))
def test_damage_is_never_another_kind_of_error(at: int, byte: int, kept: int) -> None:
    data = bytearray(b85decode(FOREIGN["dynamic"][0]))
    data[at % len(data)] = byte
    for damaged in (bytes(data), bytes(data[:kept])):
        with suppress(DataError):
            decoded(damaged)
