"""The steps that come with marin. Importing them imports neither torch nor ray nor pyarrow."""

from marin.steps.annotate import Annotate
from marin.steps.compression_baseline import CompressionBaseline
from marin.steps.decontaminate import Decontaminate
from marin.steps.deduplicate import Deduplicate
from marin.steps.evaluate import Evaluate
from marin.steps.evaluate_tasks import EvaluateTasks, Items
from marin.steps.export import Export
from marin.steps.files import Files
from marin.steps.filter import Filter
from marin.steps.generate import Generate
from marin.steps.load_model import LoadModel
from marin.steps.mask_pii import MaskPII
from marin.steps.pick import Pick
from marin.steps.records import Records
from marin.steps.shuffle import Shuffle
from marin.steps.split import Split
from marin.steps.tokenize import Tokenize
from marin.steps.train import Train
from marin.steps.train_tokenizer import TrainTokenizer

__all__ = [
    "Annotate",
    "CompressionBaseline",
    "Decontaminate",
    "Deduplicate",
    "Evaluate",
    "EvaluateTasks",
    "Export",
    "Files",
    "Filter",
    "Generate",
    "Items",
    "LoadModel",
    "MaskPII",
    "Pick",
    "Records",
    "Shuffle",
    "Split",
    "Tokenize",
    "Train",
    "TrainTokenizer",
]
