"""Parity: a written export is reloaded and must compute what the checkpoint computes.

Reloaded through transformers where it is installed, otherwise through marin's own reader of the written files. Which
of them looked is logged and not recorded, so that equal checkpoints give equal exports everywhere.
"""

import json
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from marin.base.errors import MarinError
from marin.base.json import Json
from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.export.peer import absent, transformers
from marin.graph.files import Contents
from marin.model.hub import from_hugging_face_config, load_model
from marin.model.weights import read_tensors

log = logging.getLogger(__name__)

FP32_TOLERANCE = 1e-5
KL_TOLERANCE = 1e-3  # nats, for 16-bit weights
GREEDY_TOKENS = 8
FAULT_HINT = "this is a fault of the export, not of your model: please report it with config.json"
TOKENIZER_HINT = (
    "transformers gives every Qwen2 model Qwen2's own way of cutting text, whatever tokenizer.json says: "
    "train with qkv_bias=False, or with Qwen2's tokenizer"
)
PROBE_TEXTS = (
    "def area(radius):\n    return 3.14159 * radius ** 2\n",
    "The quick brown fox; naïve café, 東京, 👩‍🚀 — 1,234.5\n\n\tend",
    " leading and trailing ",
)


class ExportError(MarinError):
    """An export does not compute what its checkpoint computes."""


@torch.no_grad()
def check(written: Contents, checkpoint: LoadedCheckpoint, *, dtype: str) -> dict[str, Json]:
    """Return the report of a comparison on fixed probes; ExportError when logits, ids or a continuation differ."""

    def ours_of(probe_BT: Tensor) -> Tensor:
        out: Tensor = checkpoint.model(probe_BT)[0].float()
        return out

    with tempfile.TemporaryDirectory(prefix="marin-export-") as folder:
        for file in written.files:
            Path(folder, file.path).write_bytes(written.reader.read(file))
        logits_of, encode = _reloaded(Path(folder), checkpoint)
        probes = [probe(checkpoint, text) for text in PROBE_TEXTS]
        ids_differ = [text for text in PROBE_TEXTS if encode(text) != checkpoint.encode(text)]
        ours = [ours_of(probe_BT) for probe_BT in probes]
        theirs = [logits_of(probe_BT) for probe_BT in probes]
        begun = [probe_BT[:, : max(1, checkpoint.context - GREEDY_TOKENS)] for probe_BT in probes]
        num_tokens = min(GREEDY_TOKENS, checkpoint.context - 1)  # GPT-2 has no positions beyond its context
        continued = [_continue(ours_of, each, num_tokens) == _continue(logits_of, each, num_tokens) for each in begun]
    difference = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    divergence = max(_kl(a, b) for a, b in zip(ours, theirs, strict=True))
    if ids_differ:
        hint = TOKENIZER_HINT if checkpoint.config.get("model_type") == "qwen2" else FAULT_HINT
        raise differs(f"the exported tokenizer gives other ids for {ids_differ[0]!r}", hint=hint)
    if dtype == "float32" and not difference <= FP32_TOLERANCE:
        raise differs(f"logits differ by {difference:.3g}, and at most {FP32_TOLERANCE:g} is rounding")
    if dtype == "float32" and not all(continued):
        raise differs("greedy continuations differ")
    if not divergence <= KL_TOLERANCE:
        raise differs(f"next-token distributions diverge by {divergence:.3g} nats, at most {KL_TOLERANCE:g} is allowed")
    return {
        "dtype": dtype,
        "probes": len(probes),
        "logits_within": FP32_TOLERANCE if dtype == "float32" else None,
        "kl_within": KL_TOLERANCE,
        "tokenizer_ids_equal": True,
        "greedy_tokens_equal": num_tokens if dtype == "float32" else None,
    }


def probe(checkpoint: LoadedCheckpoint, text: str) -> Tensor:
    """Return the ids `[1, T]` of a text behind the end-of-text token, as far as they fit the context."""
    ids = [checkpoint.eos_id, *checkpoint.encode(text)][: checkpoint.context]
    return torch.tensor([ids], device=checkpoint.device)


Reloaded = tuple[Callable[[Tensor], Tensor], Callable[[str], list[int]]]


def _reloaded(folder: Path, checkpoint: LoadedCheckpoint) -> Reloaded:
    """Return functions for logits `[T, V]` in fp32 and for ids, of the folder as others will load it."""
    if absent(["transformers"]):
        log.info("checking the export with marin's own reader: transformers is not installed")
        return _through_own_reader(folder, checkpoint.device)
    log.info("checking the export with transformers")
    return _through_transformers(folder, checkpoint.device)


def _through_transformers(folder: Path, device: torch.device) -> Reloaded:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def logits(probe_BT: Tensor) -> Tensor:
        out: Tensor = model(probe_BT).logits[0].float()
        return out

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    return logits, encode


def _through_own_reader(folder: Path, device: torch.device) -> Reloaded:
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= read_tensors(path.read_bytes(), where=str(path))
    config = from_hugging_face_config(json.loads((folder / "config.json").read_text()))
    model = load_model(config, tensors, device)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def logits(probe_BT: Tensor) -> Tensor:
        out: Tensor = model(probe_BT)[0].float()
        return out

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return logits, encode


def _continue(logits_of: Callable[[Tensor], Tensor], probe_BT: Tensor, num_tokens: int) -> list[int]:
    """Return the greedy continuation of a probe."""
    begin = probe_BT.shape[1]
    for _ in range(num_tokens):
        token = logits_of(probe_BT)[-1].argmax().reshape(1, 1)
        probe_BT = torch.cat([probe_BT, token], dim=1)
    return [int(token) for token in probe_BT[0, begin:]]


def _kl(ours_TV: Tensor, theirs_TV: Tensor) -> float:
    ours = torch.log_softmax(ours_TV.float(), dim=-1)
    theirs = torch.log_softmax(theirs_TV.float(), dim=-1)
    return float((ours.exp() * (ours - theirs)).sum(dim=-1).max())


def differs(what: str, *, hint: str = FAULT_HINT) -> ExportError:
    """Return the error that says what an export got wrong."""
    return ExportError(what, where="Export", hint=hint)
