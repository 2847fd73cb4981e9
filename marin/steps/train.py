"""`Train`: a decoder from shuffled sequences, in a gang that survives the loss of any of its ranks."""

from pydantic import Field

from marin.base.config import Placement
from marin.base.errors import ConfigurationError
from marin.graph.artifact import Checkpoint, Sequences
from marin.graph.context import Context
from marin.graph.resources import Resources
from marin.graph.step import Step
from marin.model.config import Decoder
from marin.train.config import Optimizer, Schedule, TrainConfig, WarmupStableDecay


class Train(Step[Checkpoint]):
    """Weights after `tokens` tokens; the number of ranks does not count, and any crash resumes."""

    version = 1

    data: Step[Sequences]
    model: Decoder
    optimizer: Optimizer
    tokens: int = Field(ge=1)
    """Tokens to train on; rounded up to whole steps."""
    batch: int = Field(default=64, ge=1)
    """Sequences a step, over all ranks."""
    schedule: Schedule = WarmupStableDecay()
    seed: int = Field(default=0, ge=0)
    """Of the initial weights and of the order of data after the first epoch."""
    clip: float | None = Field(default=1.0, gt=0)
    """Largest norm of the whole gradient; None leaves it as it is."""
    micro_batch: Placement[int | None] = Field(default=None, ge=1)
    """Sequences a rank holds at once; None: all of its share."""
    checkpoint_seconds: Placement[float] = Field(default=120, gt=0)
    """Time between checkpoints."""
    log_every: Placement[int] = Field(default=10, ge=1)
    """Steps between metrics."""

    def check_resources(self, resources: Resources) -> None:
        """Refuse more ranks than sequences: any other number shares the same batch, evenly or not."""
        if resources.num_ranks > self.batch:
            raise ConfigurationError(
                f"a batch of {self.batch} sequences cannot feed {resources.num_ranks} ranks",
                where="Train.batch",
                hint=f"give `batch` at least {resources.num_ranks}, or use fewer gpus, nodes or ranks",
            )

    def run(self, ctx: Context) -> Checkpoint:
        """Form the gang, train, and keep what rank 0 wrote."""
        from marin.train import entry

        config = TrainConfig(
            model=self.model,
            optimizer=self.optimizer,
            schedule=self.schedule,
            tokens=self.tokens,
            batch=self.batch,
            seed=self.seed,
            clip=self.clip,
            micro_batch=self.micro_batch,
            checkpoint_seconds=self.checkpoint_seconds,
            log_every=self.log_every,
        )
        results = ctx.gang(
            entry.train_rank,
            rendezvous=entry.open_rendezvous,
            config=config,
            data=ctx.load(self.data),
            checkpoints=ctx.checkpoints,
            output=ctx.output,
        )
        ctx.output.adopt(entry.files_of(results))
        record = entry.record_of(results)
        ctx.metric(**{name: value for name, value in record.items() if isinstance(value, int | float)})
        return Checkpoint.write(ctx.output, meta=record)
