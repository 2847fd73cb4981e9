"""`Train`: a decoder from shuffled sequences, in a gang that survives the loss of any of its ranks."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from marin.base.config import ElideIf, Placement
from marin.base.errors import ConfigurationError
from marin.graph.artifact import Checkpoint, Sequences
from marin.graph.context import Context
from marin.graph.resources import Resources
from marin.graph.step import Step
from marin.model.config import Decoder
from marin.train.config import Carry, Optimizer, Precision, Recompute, Schedule, TrainConfig, WarmupStableDecay
from marin.train.nonfinite import NonFinite, StopRun
from marin.train.parallel import Axes, Parallel
from marin.train.ramp import BatchRamp, check_ramp


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
    clip: float | None = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Largest norm of the whole gradient; None leaves it as it is."""
    init: Annotated[Step[Checkpoint] | None, ElideIf(None)] = None
    """The checkpoint to start from, of the same model and tokenizer; None: weights made from the seed."""
    carry: Annotated[Carry, ElideIf("weights")] = "weights"
    """`training`: also take over the optimiser's state and, on the same data, the place in them (for a decay that
    branches off a stable run, say). The initial checkpoint must have been trained with `keep_state`."""
    keep_state: Annotated[bool, ElideIf(False)] = False
    """Leave the optimiser's state in the checkpoint, for others to carry on; two to three times its size."""
    ramp: Annotated[BatchRamp | None, ElideIf(None)] = None
    """Smaller batches at first, growing to `batch`."""
    z_loss: Annotated[float, ElideIf(0.0)] = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the squared log normaliser in the gradient (PaLM: 1e-4); the loss shown stays the cross-entropy."""
    ema: Annotated[float | None, ElideIf(None)] = Field(default=None, gt=0, lt=1)
    """Decay of a moving average of the weights, which then is the checkpoint."""
    nonfinite: Annotated[NonFinite, ElideIf(StopRun())] = Field(default=StopRun(), discriminator="kind")
    """What a loss or gradient that is no number costs: `StopRun`, `SkipStep` or `RollBack`."""
    document_mask: Annotated[bool, ElideIf(False)] = False
    """Keep packed documents apart: a token sees its own document only, with positions from the document's start."""
    precision: Annotated[Precision, ElideIf("auto")] = "auto"
    """Dtype of products: `auto` takes bf16 on CUDA and fp32 on the CPU; weights and gradients always are fp32."""
    validation: Placement[Step[Sequences] | None] = None
    """Held-out sequences, tokenized and packed alike: their loss and bits per byte go to the metrics and nowhere else,
    so that adding them retrains nothing."""
    validate_every: Placement[int] = Field(default=250, ge=1)
    """Steps between looks at them; the last step always is one."""
    validate_sequences: Placement[int] = Field(default=256, ge=1)
    """How many of them are looked at: the first ones."""
    recompute: Placement[Recompute] = "none"
    """`block`: less memory for a third more computing; each layer is computed again for its gradients."""
    parallel: Placement[Parallel] = Parallel()
    """What each rank holds: everything by default; `Parallel(shard="all")` divides the state among all ranks."""
    micro_batch: Placement[int | None] = Field(default=None, ge=1)
    """Sequences a rank holds at once; None: all of its share."""
    checkpoint_seconds: Placement[float] = Field(default=120, gt=0)
    """Time between checkpoints."""
    log_every: Placement[int] = Field(default=10, ge=1)
    """Steps between metrics."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        check_ramp(self.ramp, self.batch, where="Train")
        self.parallel.check_model(self.model)
        if self.carry == "training" and self.init is None:
            raise ConfigurationError(
                "there is no initial checkpoint whose training could be carried on",
                where="Train.carry",
                hint="give `init`, or leave `carry` out",
            )
        return self

    def check_resources(self, resources: Resources) -> None:
        """Refuse more ranks than sequences, or ranks that cannot be laid out; any batch is shared, evenly or not."""
        smallest, name = (self.ramp.start, "ramp.start") if self.ramp else (self.batch, "batch")
        # One rank may be what is not placed yet; a run of it is refused by the rank itself.
        axes = self.parallel.axes(resources.num_ranks) if resources.num_ranks > 1 else Axes()
        readers = axes.replicate * axes.shard
        if readers > smallest:
            raise ConfigurationError(
                f"a batch of {smallest} sequences cannot feed {readers} ranks",
                where=f"Train.{name}",
                hint=f"give `{name}` at least {readers}, or use fewer gpus, nodes or ranks",
            )
        for nodes in range(resources.least_nodes, resources.nodes):
            self.parallel.axes(resources.ranks_per_node * nodes)

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
            carry=self.carry,
            keep_state=self.keep_state,
            ramp=self.ramp,
            z_loss=self.z_loss,
            ema=self.ema,
            nonfinite=self.nonfinite,
            document_mask=self.document_mask,
            precision=self.precision,
            recompute=self.recompute,
            parallel=self.parallel,
            micro_batch=self.micro_batch,
            checkpoint_seconds=self.checkpoint_seconds,
            log_every=self.log_every,
            validate_every=self.validate_every,
            validate_sequences=self.validate_sequences,
        )
        data, init = ctx.load(self.data), ctx.load(self.init) if self.init else None
        validation = ctx.load(self.validation) if self.validation else None
        entry.check_validation(validation, data)
        entry.resolved(config, data, world_size=None, init=init)  # wrong fields are named before devices are asked for
        results = ctx.gang(
            entry.train_rank,
            rendezvous=entry.open_rendezvous,
            config=config,
            data=data,
            init=init,
            validation=validation,
            checkpoints=ctx.checkpoints,
            output=ctx.output,
        )
        ctx.output.adopt(entry.files_of(results))
        record = entry.record_of(results)
        ctx.metric(**{name: value for name, value in record.items() if isinstance(value, int | float)})
        return Checkpoint.write(ctx.output, meta=record)
