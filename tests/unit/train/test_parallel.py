"""What cannot be laid out is refused where it is written; what a rank will hold is known before it is allocated."""

import pytest

from marin import Parallel, Train
from marin.base.errors import ConfigurationError
from marin.graph.artifact import Sequences
from marin.graph.step import Step
from marin.model.config import Decoder
from marin.train.config import AdamW, Constant, Muon, TrainConfig
from marin.train.layout import Layout
from marin.train.lora import Lora
from marin.train.memory import check_fits, estimate
from marin.train.parallel import Axes

MODEL = Decoder(layers=4, width=64, heads=4, kv_heads=2, vocab_size=64, context=16)
CONFIG = TrainConfig(
    model=MODEL, optimizer=AdamW(lr=0.003), schedule=Constant(), tokens=8 * 8 * 16, batch=8, seed=5, micro_batch=1
)


class Rows(Step[Sequences]):
    """Stands for data."""


def step(parallel: Parallel, **changes: object) -> Train:
    model = MODEL.model_copy(update=changes)
    return Train(data=Rows(), model=model, optimizer=AdamW(lr=0.01), tokens=1000, batch=8, parallel=parallel)


@pytest.mark.parametrize(
    ("parallel", "num_ranks", "axes"),
    [
        (Parallel(), 8, Axes(8, 1, 1)),
        (Parallel(shard="all"), 8, Axes(1, 8, 1)),
        (Parallel(shard=4), 8, Axes(2, 4, 1)),
        (Parallel(shard="all", tensor=2), 8, Axes(1, 4, 2)),
        (Parallel(shard=2, tensor=2), 8, Axes(2, 2, 2)),
        (Parallel(tensor=2), 2, Axes(1, 1, 2)),
    ],
)
def test_ranks_are_laid_out_as_asked_and_the_rest_are_copies(parallel: Parallel, num_ranks: int, axes: Axes) -> None:
    assert parallel.axes(num_ranks) == axes


def test_tensor_ranks_read_the_same_data_and_one_of_them_counts() -> None:
    layouts = [Layout(Axes(2, 2, 2), rank) for rank in range(8)]
    assert [layout.data_rank for layout in layouts] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [layout.leads for layout in layouts] == [True, False] * 4
    assert [layout.place for layout in layouts] == [0, 1, 2, 3] * 2


@pytest.mark.parametrize("parallel", [Parallel(shard=3), Parallel(tensor=3), Parallel(shard="all", tensor=16)])
def test_ranks_that_cannot_be_laid_out_are_refused(parallel: Parallel) -> None:
    with pytest.raises(ConfigurationError, match="8 ranks cannot be divided into groups of") as caught:
        parallel.axes(8)
    assert caught.value.where == "Train.parallel"


def test_train_on_ranks_or_fewer_nodes_that_cannot_be_laid_out_is_refused_as_it_is_placed() -> None:
    train = step(Parallel(shard=4)).on(retries=1).on(gpus=2, nodes=2)
    with pytest.raises(ConfigurationError, match="6 ranks cannot be divided"):
        train.on(nodes=3)
    with pytest.raises(ConfigurationError, match="2 ranks cannot be divided"):
        train.on(min_nodes=1)
    with pytest.raises(ConfigurationError, match="a batch of 8 sequences cannot feed 16 ranks"):
        step(Parallel(shard=4)).on(ranks=16)
    step(Parallel(tensor=2)).on(ranks=16)


@pytest.mark.parametrize(
    ("tensor", "changes", "said"),
    [
        (4, {}, "`kv_heads` 2 of the model cannot be divided among 4 ranks"),
        (3, {}, "`heads` 4 of the model cannot be divided among 3 ranks"),
        (2, {"mlp_width": 33}, "`mlp_width` 33 of the model cannot be divided among 2 ranks"),
        (2, {"family": "gpt2", "kv_heads": None}, "the matrices of a GPT-2 are not divided"),
    ],
)
def test_model_whose_matrices_cannot_be_divided_is_refused(tensor: int, changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        step(Parallel(tensor=tensor), **changes)
    assert caught.value.where == "Train.parallel.tensor"


def test_shards_below_one_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="among 0 ranks"):
        Parallel(shard=0)


@pytest.mark.parametrize("parallel", [Parallel(shard="all"), Parallel(shard=2), Parallel(tensor=2)])
def test_adapters_on_a_divided_model_are_refused(parallel: Parallel) -> None:
    plain = CONFIG.model_dump()
    TrainConfig(**{**plain, "lora": Lora(rank=4, alpha=8)})
    with pytest.raises(ConfigurationError, match="adapters") as caught:
        TrainConfig(**{**plain, "lora": Lora(rank=4, alpha=8), "parallel": parallel})
    assert caught.value.where == "TrainConfig.parallel"


def with_(parallel: Parallel, **changes: object) -> TrainConfig:
    return CONFIG.model_copy(update={"parallel": parallel, **changes})


@pytest.mark.parametrize("optimizer", [AdamW(lr=0.01), Muon(lr=0.01, others=AdamW(lr=0.01))], ids=["adamw", "muon"])
def test_estimate_of_a_divided_state_is_the_part_that_a_rank_holds(optimizer: AdamW | Muon) -> None:
    changes = {"optimizer": optimizer, "ema": 0.9}
    whole = estimate(with_(Parallel(), **changes), world_size=4, device_type="cpu")
    sharded = estimate(with_(Parallel(shard="all"), **changes), world_size=4, device_type="cpu")
    groups = estimate(with_(Parallel(shard=2), **changes), world_size=4, device_type="cpu")
    both = estimate(with_(Parallel(shard=2, tensor=2), **changes), world_size=4, device_type="cpu")
    assert (sharded.parameters, sharded.optimizer, sharded.average) == tuple(
        part // 4 for part in (whole.parameters, whole.optimizer, whole.average)
    )
    assert groups.parameters == whole.parameters // 2
    assert sharded.parameters < both.parameters < groups.parameters  # norms and embedding are in no tensor part
    assert whole.gathered == 0 < both.gathered < sharded.gathered == groups.gathered
    step_long = with_(Parallel(shard="all", add_gradients="step"), **changes)
    held = estimate(step_long, world_size=4, device_type="cpu").gradients
    assert held == sharded.gradients + whole.parameters


def test_run_that_fits_only_if_it_is_divided_is_told_so() -> None:
    whole = estimate(with_(Parallel()), world_size=8, device_type="cpu")
    sharded = estimate(with_(Parallel(shard="all")), world_size=8, device_type="cpu")
    available = whole.lasting - 1
    with pytest.raises(ConfigurationError, match="do not fit") as caught:
        check_fits(whole, available, where="cuda:0")
    assert "shard='all'" in str(caught.value.hint)
    check_fits(sharded, available, where="cuda:0")
    with pytest.raises(ConfigurationError, match="of layers made whole, do not fit"):
        check_fits(sharded, sharded.lasting, where="cuda:0")
