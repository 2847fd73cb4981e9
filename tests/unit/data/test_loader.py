"""SequenceData: rows by number, targets one further, padding masked."""

from pathlib import Path

import numpy as np
import pytest

from marin import fs
from marin.base.errors import DataError
from marin.base.json import Json
from marin.data.hashes import bundle
from marin.data.loader import SequenceData
from marin.data.token_files import TOKENS, write_array
from marin.graph.files import Shard


@pytest.fixture(params=["local", "memory"])
def shards(request: pytest.FixtureRequest, tmp_path: Path) -> list[Shard]:
    """Two shards of rows of 5 tokens: 0..4, 4..8, ... over the stream 0..41, the last row padded by 3."""
    root = str(tmp_path) if request.param == "local" else f"memory://loader/{tmp_path.name}"

    def shard(name: str, first: int, order: list[int], padded: int | None) -> Shard:
        output = fs.FolderOutput(f"{root}/{name}")
        rows = np.array([[4 * (first + number) + at for at in range(5)] for number in order], dtype="<u2")
        if padded is not None:
            rows[padded, 2:] = 0
        write_array(output, TOKENS, [rows], rows.shape, rows.dtype)
        targets = rows.shape[0] * 4 - (3 if padded is not None else 0)
        value: Json = {
            "context": 4,
            "rows": len(order),
            "targets": targets,
            "padded_row": padded,
            "padding": 0 if padded is None else 3,
        }
        return bundle(output.files, value)

    return [shard("a", 0, [2, 0, 3, 1], None), shard("b", 4, [0, 6, 3, 1, 4, 2, 5], 1)]


def test_batch_targets_follow_tokens_and_padding_is_masked(shards: list[Shard]) -> None:
    data = SequenceData(shards, 4)
    assert (len(data), data.num_target_tokens) == (11, 41)
    tokens, targets = data.batch(np.array([5, 0, 1, 4]))
    assert tokens.dtype == targets.dtype == np.int64
    assert tokens.flags.c_contiguous
    assert targets.flags.c_contiguous
    assert tokens.tolist() == [[40, 41, 0, 0], [8, 9, 10, 11], [0, 1, 2, 3], [16, 17, 18, 19]]
    assert targets.tolist() == [[41, -100, -100, -100], [9, 10, 11, 12], [1, 2, 3, 4], [17, 18, 19, 20]]


def test_batch_of_nothing_is_empty(shards: list[Shard]) -> None:
    tokens, targets = SequenceData(shards, 4).batch(np.empty(0, np.int64))
    assert tokens.shape == targets.shape == (0, 4)


@pytest.mark.parametrize("index", [-1, 11])
def test_batch_outside_the_data_is_an_index_error(shards: list[Shard], index: int) -> None:
    with pytest.raises(IndexError, match="of 11"):
        SequenceData(shards, 4).batch(np.array([index]))


def test_sequence_data_of_another_context_names_both(shards: list[Shard]) -> None:
    with pytest.raises(DataError, match="have context 4, 8 is asked for"):
        SequenceData(shards, 8)


def test_sequence_data_of_no_shards_is_a_data_error() -> None:
    with pytest.raises(DataError, match="no sequences"):
        SequenceData([], 4)


def test_sequence_data_digest_depends_on_tokens_and_their_order(shards: list[Shard]) -> None:
    digest = SequenceData(shards, 4).digest
    assert digest == SequenceData(list(shards), 4).digest
    assert digest != SequenceData(shards[::-1], 4).digest
