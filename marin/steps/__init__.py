"""The steps that come with marin. Importing them imports neither torch nor ray nor pyarrow."""

from marin.steps.annotate import Annotate
from marin.steps.chat import Chat
from marin.steps.compression_baseline import CompressionBaseline
from marin.steps.conversations import Conversations
from marin.steps.decontaminate import Decontaminate
from marin.steps.deduplicate import Deduplicate
from marin.steps.download import Download
from marin.steps.evaluate import Evaluate
from marin.steps.evaluate_harness import EvaluateHarness
from marin.steps.evaluate_sequences import EvaluateSequences
from marin.steps.evaluate_tasks import EvaluateTasks, Items
from marin.steps.export import Export
from marin.steps.export_tokens import ExportTokens
from marin.steps.files import Files
from marin.steps.filter import Filter
from marin.steps.fine_tune import FineTune
from marin.steps.generate import Generate
from marin.steps.hugging_face import HuggingFace
from marin.steps.import_tokens import ImportTokens
from marin.steps.inspect import Inspect
from marin.steps.load_model import LoadModel
from marin.steps.load_tokenizer import LoadTokenizer
from marin.steps.mask_pii import MaskPII
from marin.steps.mix import Mix
from marin.steps.mix_tokens import MixTokens
from marin.steps.pack import Pack
from marin.steps.parquet import Parquet
from marin.steps.pick import Pick
from marin.steps.records import Records
from marin.steps.shuffle import Shuffle
from marin.steps.split import Split
from marin.steps.tokenize import Tokenize
from marin.steps.train import AtStep, Train
from marin.steps.train_tokenizer import TrainTokenizer
from marin.steps.trajectory import Trajectory

__all__ = [
    "Annotate",
    "AtStep",
    "Chat",
    "CompressionBaseline",
    "Conversations",
    "Decontaminate",
    "Deduplicate",
    "Download",
    "Evaluate",
    "EvaluateHarness",
    "EvaluateSequences",
    "EvaluateTasks",
    "Export",
    "ExportTokens",
    "Files",
    "Filter",
    "FineTune",
    "Generate",
    "HuggingFace",
    "ImportTokens",
    "Inspect",
    "Items",
    "LoadModel",
    "LoadTokenizer",
    "MaskPII",
    "Mix",
    "MixTokens",
    "Pack",
    "Parquet",
    "Pick",
    "Records",
    "Shuffle",
    "Split",
    "Tokenize",
    "Train",
    "TrainTokenizer",
    "Trajectory",
]
