"""`Train`: a decoder from shuffled sequences, in a gang that survives the loss of any of its ranks."""

from dataclasses import replace
from typing import Annotated, Self

from pydantic import Field, model_validator

from marin.base.config import ElideIf, Placement, Several
from marin.base.errors import ConfigurationError
from marin.graph.artifact import Checkpoint, Sequences
from marin.graph.context import Context
from marin.graph.resources import Resources
from marin.graph.step import Step
from marin.model.config import Decoder
from marin.train.config import Carry, Optimizer, Precision, Recompute, Schedule, TrainConfig, WarmupStableDecay
from marin.train.early_stop import EarlyStop, check_stop
from marin.train.nonfinite import NonFinite, StopRun
from marin.train.parallel import Axes, Parallel
from marin.train.profile import Profile
from marin.train.ramp import BatchRamp, check_ramp
from marin.train.retention import Keep, check_keep


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
    stop: Annotated[EarlyStop | None, ElideIf(None)] = None
    """What ends the run early; the checkpoint is of the step at which it ended."""
    stop_data: Annotated[Step[Sequences] | None, ElideIf(None)] = None
    """Held-out sequences, tokenized and packed alike, whose loss decides that; unlike `validation` they count."""
    validation: Placement[Step[Sequences] | None] = None
    """Held-out sequences, tokenized and packed alike: their loss and bits per byte go to the metrics and nowhere else,
    so that adding them retrains nothing."""
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
    parallel: Placement[Parallel] = Parallel()
    """What each rank holds: everything by default; `Parallel(shard="all")` divides the state among all ranks."""
    micro_batch: Placement[int | None] = Field(default=None, ge=1)
    """Sequences a rank holds at once; None: all of its share."""
    checkpoint_seconds: Placement[float] = Field(default=120, gt=0)
    """Time between checkpoints, which are written while training goes on."""
    keep: Placement[Keep] = Keep()
    """Which checkpoints stay, besides those from which the run would go on: `at_step` takes them from there."""
    log_every: Placement[int] = Field(default=10, ge=1)
    """Steps between metrics."""
    peak_flops: Placement[float | None] = Field(default=None, gt=0, allow_inf_nan=False)
    """Dense FLOPS of one device, by which MFU is told; None: what is known of the device, on the CPU no MFU."""
    profile: Placement[Profile | None] = None
    """What to record of how a few steps spend their time."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        check_ramp(self.ramp, self.batch, where="Train")
        check_keep(self.keep, self.nonfinite, where="Train.keep")
        check_stop(self.stop, has_data=self.stop_data is not None, where="Train")
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

    def configuration(self) -> TrainConfig:
        """Return what the ranks are told."""
        return TrainConfig(
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
            peak_flops=self.peak_flops,
            profile=self.profile,
            validate_every=self.validate_every,
            validate_sequences=self.validate_sequences,
            keep=self.keep,
            stop=self.stop,
            prompts=self.prompts,
            sample_every=self.sample_every,
            sample_tokens=self.sample_tokens,
        )

    def at_step(self, step: int) -> "AtStep":
        """Return a step that gives the weights after `step` steps of this training, for others to evaluate or export.

        They are what the training kept (`keep`). What it did not keep is trained again, from the nearest checkpoint
        that it did keep before there, on what `.on` says of the training. ConfigurationError if that cannot be.
        """
        made = AtStep(training=self, step=step, data=self.data, init=self.init, stop_data=self.stop_data)
        name = self.placed.name and f"{self.placed.name}/step-{step}"
        return made._with_placed(replace(self.placed, name=name, url=None))

    def run(self, ctx: Context) -> Checkpoint:
        """Form the gang, train, and keep what rank 0 wrote."""
        from marin.train import entry

        config = self.configuration()
        data, init = ctx.load(self.data), ctx.load(self.init) if self.init else None
        validation = ctx.load(self.validation) if self.validation else None
        stop_data = ctx.load(self.stop_data) if self.stop_data else None
        entry.check_validation(validation, data)
        entry.check_validation(stop_data, data, field="stop_data")
        entry.resolved(config, data, world_size=None, init=init)  # wrong fields are named before devices are asked for
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


class AtStep(Step[Checkpoint]):
    """Weights after `step` steps of a training, which was not changed for it; made by `Train.at_step`."""

    version = 1

    training: Train
    step: int = Field(ge=1)
    data: Placement[Step[Sequences]]
    """As `init` and `stop_data` what the training read, which knows them: needed where it has to be trained again."""
    init: Placement[Step[Checkpoint] | None] = None
    stop_data: Placement[Step[Sequences] | None] = None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        check_keep(Keep(at=(self.step,)), self.training.nonfinite, where="Train.at_step")
        return self

    def check_resources(self, resources: Resources) -> None:
        """Refuse what the training refuses."""
        self.training.check_resources(resources)

    def run(self, ctx: Context) -> Checkpoint:
        """Take what the training kept; train again up to the step where it kept nothing."""
        from marin.train import entry, snapshot

        training = ctx.load(self.training)
        snapshot.check_step(training, self.step)
        config, folders = self.training.configuration(), (ctx.checkpoints_of(self.training), ctx.checkpoints)
        loaded = snapshot.find(*folders, self.step)
        if loaded is None:
            begun = snapshot.begin(*folders, self.step)
            ctx.metric(trained_again=self.step - begun)
            results = ctx.gang(
                entry.train_rank,
                rendezvous=entry.open_rendezvous,
                config=config.model_copy(update={"keep": Keep()}),
                data=ctx.load(self.data),
                init=ctx.load(self.init) if self.init else None,
                stop_data=ctx.load(self.stop_data) if self.stop_data else None,
                checkpoints=ctx.checkpoints,
                output=ctx.output,
                until=self.step,
            )
            entry.files_of(results)
            loaded = snapshot.found_after(ctx.checkpoints, self.step)
        record = snapshot.write(loaded, training, config, ctx.output)
        ctx.metric(**{name: value for name, value in record.items() if isinstance(value, int | float)})
        return Checkpoint.write(ctx.output, meta=record)
