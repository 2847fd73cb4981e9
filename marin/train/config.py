"""Configuration of a training run: what decides the science has no default. No torch here.

Invariant: nothing that merely says where or how fast (`Placement` fields) can change what is learnt, beyond the
rounding of sums. Schedules are factors between 0 and 1 of the optimiser's learning rates.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from marin.base.config import Config, ElideIf, Placement, Several
from marin.base.errors import ConfigurationError
from marin.model.config import Decoder
from marin.train.early_stop import EarlyStop
from marin.train.lora import Lora
from marin.train.nonfinite import NonFinite, StopRun
from marin.train.parallel import Parallel
from marin.train.profile import Profile
from marin.train.ramp import BatchRamp, StepPlan, check_ramp, plan_steps
from marin.train.retention import Keep, check_keep


class AdamW(Config):
    """AdamW (arXiv:1711.05101): decay for matrices, none for norms and biases."""

    kind: Literal["adamw"] = "adamw"
    lr: float = Field(gt=0, allow_inf_nan=False)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    decay_embeddings: Annotated[bool, ElideIf(True)] = True
    """Whether embeddings decay as other matrices do; an output layer of its own always does."""


class Muon(Config):
    """Muon for the layers' matrices (orthogonalised momentum), AdamW for embeddings, output layer, norms, biases.

    Updates are scaled to AdamW's usual size (arXiv:2502.16982, section 2.2), so that learning rates compare.
    """

    kind: Literal["muon"] = "muon"
    lr: float = Field(gt=0, allow_inf_nan=False)
    momentum: float = Field(default=0.95, ge=0, lt=1)
    weight_decay: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    others: AdamW
    """For every parameter that is no matrix inside a layer."""


class Constant(Config):
    """Full learning rate after a linear warm-up."""

    kind: Literal["constant"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)


class Cosine(Config):
    """Linear warm-up, then half a cosine down to `final` at the last step."""

    kind: Literal["cosine"] = "cosine"
    warmup_steps: int = Field(default=0, ge=0)
    final: float = Field(default=0.1, ge=0, le=1)
    """Fraction of the learning rate that is left at the end."""


class WarmupStableDecay(Config):
    """Linear warm-up, full learning rate, then a linear decay over the last part (WSD, arXiv:2404.06395)."""

    kind: Literal["wsd"] = "wsd"
    warmup_steps: int = Field(default=0, ge=0)
    decay: float = Field(default=0.2, ge=0, le=1)
    """Fraction of all steps that the decay takes."""
    final: float = Field(default=0.0, ge=0, le=1)
    """Fraction of the learning rate that is left at the end."""


Carry = Literal["weights", "training"]
"""What a run takes over from another's checkpoint: its weights, or also its optimiser and its place in the data."""

Precision = Literal["auto", "float32", "bfloat16"]
"""Dtype of products in forward and backward passes; `auto`: bf16 on CUDA, fp32 on the CPU."""

Recompute = Literal["none", "block"]
"""What is computed again in the backward pass instead of being kept."""

Optimizer = Annotated[AdamW | Muon, Field(discriminator="kind")]
Schedule = Annotated[Constant | Cosine | WarmupStableDecay, Field(discriminator="kind")]


class TrainConfig(Config):
    """One training run; the data give vocabulary and context where the model leaves them open."""

    model: Decoder
    optimizer: Optimizer
    schedule: Schedule
    tokens: int = Field(ge=1)
    """Length of the run in tokens, rounded up to whole steps."""
    batch: int = Field(ge=1)
    """Sequences of one step, over all ranks."""
    seed: int = Field(ge=0)
    """Of the initial weights and of the order of data after the first epoch."""
    clip: float | None = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Largest norm of the whole gradient; None leaves it as it is."""
    z_loss: Annotated[float, ElideIf(0.0)] = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the squared log normaliser in the gradient; 1e-4 in PaLM."""
    ramp: Annotated[BatchRamp | None, ElideIf(None)] = None
    """Smaller batches at first."""
    ema: Annotated[float | None, ElideIf(None)] = Field(default=None, gt=0, lt=1)
    """Decay of a moving average of the weights, which then is the result."""
    nonfinite: Annotated[NonFinite, ElideIf(StopRun())] = Field(default=StopRun(), discriminator="kind")
    """What a loss or gradient that is no number costs."""
    document_mask: Annotated[bool, ElideIf(False)] = False
    """Whether a token sees its own document only, with positions from the document's start."""
    carry: Annotated[Carry, ElideIf("weights")] = "weights"
    """What is taken over from an initial checkpoint."""
    keep_state: Annotated[bool, ElideIf(False)] = False
    """Whether the result holds what `carry="training"` takes over."""
    precision: Annotated[Precision, ElideIf("auto")] = "auto"
    """Dtype of products; weights, gradients, their sums and the optimiser are always fp32."""
    lora: Annotated[Lora | None, ElideIf(None)] = None
    """Adapters that train in place of the weights, which are added to the initial checkpoint's at the end."""
    stop: Annotated[EarlyStop | None, ElideIf(None)] = None
    """What ends the run before `tokens`."""
    keep_config: Annotated[bool, ElideIf(False)] = False
    """Whether the result keeps the initial checkpoint's context and special tokens, where those are more."""
    recompute: Placement[Recompute] = "none"
    """`block`: keep the input of each layer alone and compute the layer again for its gradients."""
    parallel: Placement[Parallel] = Parallel()
    """What each rank holds and computes."""
    micro_batch: Placement[int | None] = Field(default=None, ge=1)
    """Sequences that a rank computes at once; all of its share by default."""
    checkpoint_seconds: Placement[float] = Field(default=120, gt=0)
    """Time between checkpoints."""
    checkpoint_steps: Placement[int | None] = Field(default=None, ge=1)
    """Steps between checkpoints, instead of time."""
    keep: Placement[Keep] = Keep()
    """Which checkpoints stay."""
    validate_every: Placement[int] = Field(default=250, ge=1)
    """Steps between looks at held-out sequences, where some were given."""
    validate_sequences: Placement[int] = Field(default=256, ge=1)
    """How many of them are looked at, over all ranks."""
    prompts: Placement[Several[str]] = ()
    """Texts that the model continues now and then, for people to read."""
    sample_every: Placement[int] = Field(default=250, ge=1)
    """Steps between such samples."""
    sample_tokens: Placement[int] = Field(default=32, ge=1)
    """Tokens of a sample."""
    log_every: Placement[int] = Field(default=10, ge=1)
    """Steps between metrics."""
    peak_flops: Placement[float | None] = Field(default=None, gt=0, allow_inf_nan=False)
    """Dense FLOPS of one device, by which MFU is told; None: what is known of the device, on the CPU no MFU."""
    profile: Placement[Profile | None] = None
    """What to record of how a few steps spend their time."""

    @model_validator(mode="after")
    def _check_lengths(self) -> "TrainConfig":
        check_ramp(self.ramp, self.batch, where="TrainConfig")
        check_keep(self.keep, self.nonfinite, where="TrainConfig.keep")
        self.parallel.check_model(self.model)
        check_lora(self.lora, self.parallel)
        if self.model.context is not None and self.schedule.warmup_steps >= self.num_steps(self.model.context):
            raise warmup_error(self, self.model.context)
        return self

    def num_steps(self, context: int) -> int:
        """Return the steps of the run for sequences of `context` tokens."""
        return self.steps(context).num_steps

    def steps(self, context: int) -> StepPlan:
        """Return the steps and their batches for sequences of `context` tokens."""
        return plan_steps(tokens=self.tokens, context=context, batch=self.batch, ramp=self.ramp)

    @property
    def smallest_batch(self) -> int:
        """Sequences of the smallest step."""
        return self.ramp.start if self.ramp else self.batch


def check_lora(lora: Lora | None, parallel: Parallel) -> None:
    """Raise ConfigurationError where adapters would have to be divided among ranks."""
    if lora is not None and (parallel.shard != 1 or parallel.tensor != 1):
        raise ConfigurationError(
            "adapters are small and are not divided among ranks, nor is the model that they adapt",
            where="TrainConfig.parallel",
            hint="leave `parallel` out, or train all weights by leaving `lora` out",
        )


def warmup_error(config: TrainConfig, context: int) -> ConfigurationError:
    """Return the complaint that the warm-up is as long as the run."""
    steps = config.num_steps(context)
    return ConfigurationError(
        f"the warm-up takes {config.schedule.warmup_steps} steps, the whole run only {steps}",
        where="TrainConfig.schedule.warmup_steps",
        hint=f"warm up for fewer than {steps} steps, or train on more `tokens`",
    )
