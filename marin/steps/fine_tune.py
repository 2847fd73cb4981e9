"""`FineTune`: a trained model taught on more data, most often conversations, whole or through small adapters."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from marin.base.config import ElideIf, Placement, Several
from marin.base.errors import ConfigurationError
from marin.graph.artifact import Checkpoint, Sequences
from marin.graph.context import Context
from marin.graph.resources import Resources
from marin.graph.step import Step
from marin.train.config import Cosine, Optimizer, Precision, Recompute, Schedule, TrainConfig
from marin.train.early_stop import EarlyStop, check_stop
from marin.train.lora import Lora
from marin.train.nonfinite import NonFinite, StopRun
from marin.train.profile import Profile


class FineTune(Step[Checkpoint]):
    """The initial checkpoint's model after `epochs` over the data; ranks do not count, and any crash resumes.

    Shape, context and special tokens are the initial checkpoint's. What a token of the data has no loss on is read and
    not learnt, and documents packed into one row do not see each other. With `lora` the result holds the merged
    weights, as any checkpoint, and the adapters alone in peft's form, in its folder `adapter`.
    """

    version = 1

    init: Step[Checkpoint]
    """The model to tune: a `Train`, a `FineTune`, or a `LoadModel`."""
    data: Step[Sequences]
    """Rows of the model's own tokens, such as `Pack` makes of `Chat`; no longer than its context."""
    optimizer: Optimizer
    epochs: float = Field(gt=0, allow_inf_nan=False)
    """How often each row is seen; rounded up to whole steps."""
    batch: int = Field(default=16, ge=1)
    """Rows a step, over all ranks."""
    lora: Lora | None = None
    """Adapters to train in place of the weights; None: all weights train."""
    schedule: Schedule = Cosine(final=0.0)
    seed: int = Field(default=0, ge=0)
    """Of the adapters' initial values, of dropout, and of the order of data after the first epoch."""
    clip: float | None = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Largest norm of the whole gradient; None leaves it as it is."""
    document_mask: bool = True
    """Keep packed documents apart: a token sees its own document only, with positions from the document's start."""
    ema: Annotated[float | None, ElideIf(None)] = Field(default=None, gt=0, lt=1)
    """Decay of a moving average of what trains, which then is the result."""
    nonfinite: Annotated[NonFinite, ElideIf(StopRun())] = Field(default=StopRun(), discriminator="kind")
    """What a loss or gradient that is no number costs: `StopRun`, `SkipStep` or `RollBack`."""
    precision: Annotated[Precision, ElideIf("auto")] = "auto"
    """Dtype of products: `auto` takes bf16 on CUDA and fp32 on the CPU; weights and gradients always are fp32."""
    stop: Annotated[EarlyStop | None, ElideIf(None)] = None
    """What ends the run early; the checkpoint is of the step at which it ended."""
    stop_data: Annotated[Step[Sequences] | None, ElideIf(None)] = None
    """Held-out sequences, tokenized and packed alike, whose loss decides that; unlike `validation` they count."""
    validation: Placement[Step[Sequences] | None] = None
    """Held-out rows, tokenized and packed alike, whose loss and bits per byte go to the metrics and nowhere else."""
    validate_every: Placement[int] = Field(default=250, ge=1)
    """Steps between looks at them; the last step always is one."""
    validate_sequences: Placement[int] = Field(default=256, ge=1)
    """How many of them are looked at: the first ones."""
    prompts: Placement[Several[str]] = ()
    """Texts that the model continues now and then, for people to read: they go to the events and the rank's log."""
    sample_every: Placement[int] = Field(default=250, ge=1)
    """Steps between such samples; the last step always has some."""
    sample_tokens: Placement[int] = Field(default=32, ge=1)
    """Tokens of a sample."""
    recompute: Placement[Recompute] = "none"
    """`block`: less memory for a third more computing; each layer is computed again for its gradients."""
    micro_batch: Placement[int | None] = Field(default=None, ge=1)
    """Rows a rank holds at once; None: all of its share."""
    checkpoint_seconds: Placement[float] = Field(default=120, gt=0)
    """Time between checkpoints."""
    log_every: Placement[int] = Field(default=10, ge=1)
    """Steps between metrics."""
    profile: Placement[Profile | None] = None
    """What to record of how a few steps spend their time."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        check_stop(self.stop, has_data=self.stop_data is not None, where="FineTune")
        return self

    def check_resources(self, resources: Resources) -> None:
        """Refuse more ranks than rows of a step."""
        if resources.num_ranks > self.batch:
            raise ConfigurationError(
                f"a batch of {self.batch} sequences cannot feed {resources.num_ranks} ranks",
                where="FineTune.batch",
                hint=f"give `batch` at least {resources.num_ranks}, or use fewer gpus, nodes or ranks",
            )

    def run(self, ctx: Context) -> Checkpoint:
        """Form the gang, train, and keep what rank 0 wrote."""
        from marin.train import entry

        data, init = ctx.load(self.data), ctx.load(self.init)
        validation = ctx.load(self.validation) if self.validation else None
        stop_data = ctx.load(self.stop_data) if self.stop_data else None
        config = TrainConfig(
            model=entry.open_decoder(init),
            keep_config=True,
            optimizer=self.optimizer,
            schedule=self.schedule,
            tokens=entry.tokens_of(data, epochs=self.epochs),
            batch=self.batch,
            seed=self.seed,
            clip=self.clip,
            lora=self.lora,
            ema=self.ema,
            nonfinite=self.nonfinite,
            document_mask=self.document_mask,
            precision=self.precision,
            recompute=self.recompute,
            micro_batch=self.micro_batch,
            checkpoint_seconds=self.checkpoint_seconds,
            log_every=self.log_every,
            profile=self.profile,
            validate_every=self.validate_every,
            validate_sequences=self.validate_sequences,
            stop=self.stop,
            prompts=self.prompts,
            sample_every=self.sample_every,
            sample_tokens=self.sample_tokens,
        )
        entry.check_validation(validation, data, step="FineTune")
        entry.check_validation(stop_data, data, step="FineTune", field="stop_data")
        entry.resolved(config, data, world_size=1, init=init, step="FineTune")  # before devices are asked for
        results = ctx.gang(
            entry.train_rank,
            rendezvous=entry.open_rendezvous,
            config=config,
            data=data,
            init=init,
            validation=validation,
            stop_data=stop_data,
            checkpoints=ctx.checkpoints,
            output=ctx.output,
        )
        ctx.output.adopt(entry.files_of(results))
        record = entry.record_of(results)
        ctx.metric(**{name: value for name, value in record.items() if isinstance(value, int | float)})
        return Checkpoint.write(ctx.output, meta=record)
