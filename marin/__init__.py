"""marin: a framework for foundation-model research.

Pipelines of typed, content-hashed steps, run on Ray, stored wherever fsspec reaches. This is the public face:
importing it imports neither torch nor ray nor pyarrow.
"""

from marin.base.config import Config, ElideIf, Placement, Several, Was
from marin.base.errors import MarinError
from marin.data.conditions import AtLeast, AtMost, gopher_rules
from marin.data.duplicate_rules import Exact, MinHash
from marin.data.patterns import EMAIL, IPV4, PHONE, Pattern
from marin.data.phases import Phase
from marin.data.remote_files import RemoteFile
from marin.data.scorers import C4, FastText, Gopher, Repetition, Scripts
from marin.evaluate.task import Choices, Continuation, ExactMatch, Task
from marin.graph.artifact import (
    Annotations,
    Artifact,
    Checkpoint,
    Documents,
    Folder,
    ModelFolder,
    Scores,
    Sequences,
    Table,
    Tokenizer,
    Tokens,
    Value,
)
from marin.graph.context import Context
from marin.graph.files import FileRef, Output, Shard
from marin.graph.pipeline import Pipeline, pipeline
from marin.graph.resources import Resources
from marin.graph.step import Step
from marin.model.config import Decoder
from marin.run.api import load, plan, run
from marin.steps import (
    Annotate,
    AtStep,
    Chat,
    CompressionBaseline,
    Conversations,
    Decontaminate,
    Deduplicate,
    Download,
    Evaluate,
    EvaluateHarness,
    EvaluateSequences,
    EvaluateTasks,
    Export,
    ExportTokens,
    Files,
    Filter,
    FineTune,
    Generate,
    HuggingFace,
    ImportTokens,
    Inspect,
    Items,
    LoadModel,
    LoadTokenizer,
    MaskPII,
    Mix,
    MixTokens,
    Pack,
    Parquet,
    Pick,
    Records,
    Shuffle,
    Split,
    Tokenize,
    Train,
    TrainTokenizer,
    Trajectory,
)
from marin.train.config import AdamW, Constant, Cosine, Muon, WarmupStableDecay
from marin.train.early_stop import EarlyStop
from marin.train.lora import Lora
from marin.train.nonfinite import RollBack, SkipStep, StopRun
from marin.train.parallel import Parallel
from marin.train.profile import Profile
from marin.train.ramp import BatchRamp
from marin.train.retention import Keep

__version__ = "0.1.0"
