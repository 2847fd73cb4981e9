"""Exports: transformers loads them and computes the same; a wrong one never leaves the step."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from marin import Decoder, fs
from marin.export import hugging_face, parity, peer
from marin.export.hugging_face import export_checkpoint
from marin.export.parity import ExportError
from marin.graph.files import Contents
from marin.model.hub import to_hugging_face_config
from marin.model.init import build
from marin.model.weights import write_tensors

SHAPES = {
    "tied": Decoder(layers=2, width=32, heads=4, vocab_size=300, context=32),
    "untied, grouped": Decoder(layers=2, width=32, heads=4, kv_heads=2, vocab_size=300, context=32, tied=False),
    "qk-norm": Decoder(
        layers=2, width=32, heads=4, kv_heads=1, head_width=16, vocab_size=300, context=32, qk_norm=True
    ),
    "gpt2": Decoder(family="gpt2", layers=2, width=32, heads=4, vocab_size=300, context=64),
    "gpt2, untied": Decoder(family="gpt2", layers=2, width=32, heads=4, vocab_size=300, context=64, tied=False),
}
QWEN2 = Decoder(layers=2, width=32, heads=4, vocab_size=300, context=32, qkv_bias=True)
TEXTS = ["def f(x):\n    return x\n", "naïve 東京 👩‍🚀", "  two  spaces\n\n\ttab"]


def checkpoint(folder: Path, decoder: Decoder) -> Contents:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>"]
    trainer = BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    torch.manual_seed(0)
    model = build(decoder, torch.device("cpu"))
    output = fs.FolderOutput(str(folder))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    with output.open("model.safetensors") as file:
        write_tensors(file, model.state_dict())
    output.write("config.json", json.dumps(to_hugging_face_config(decoder, eos_id=0)).encode())
    output.write("tokenizer.json", tokenizer.to_str().encode())
    return output.contents()


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_export_loads_in_transformers_with_equal_logits_and_ids(tmp_path: Path, shape: str):
    contents = checkpoint(tmp_path / "checkpoint", SHAPES[shape])
    output = fs.FolderOutput(str(tmp_path / "export"))
    export_checkpoint(contents, output, dtype="float32", license="mit")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "export")
    ours = hugging_face.load_checkpoint(contents)
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        assert ids == ours.encode(text)
        probe = torch.tensor([ids])
        torch.testing.assert_close(loaded(probe).logits, ours.model(probe), rtol=0, atol=1e-5)
    assert loaded.config.vocab_size == loaded.get_input_embeddings().weight.shape[0]
    assert tokenizer.eos_token == "<|endoftext|>"


def test_export_twice_gives_equal_bytes(tmp_path: Path):
    contents = checkpoint(tmp_path / "checkpoint", SHAPES["tied"])
    outputs = [fs.FolderOutput(str(tmp_path / name)) for name in ("one", "two")]
    for output in outputs:
        export_checkpoint(contents, output, dtype="float32", license=None)
    first, second = ([(file.path, file.digest) for file in output.files] for output in outputs)
    assert first == second
    assert "license" not in (tmp_path / "one" / "README.md").read_text()


def test_export_in_shards_has_a_right_index(tmp_path: Path):
    contents = checkpoint(tmp_path / "checkpoint", SHAPES["untied, grouped"])
    output = fs.FolderOutput(str(tmp_path / "export"))
    export_checkpoint(contents, output, dtype="bfloat16", license=None, shard_bytes=20_000)
    index = json.loads((tmp_path / "export" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "export").glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == files
    assert len(files) > 1
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    assert loaded.dtype == torch.bfloat16
    assert index["metadata"]["total_size"] == sum(p.numel() * 2 for p in loaded.parameters())


@pytest.mark.parametrize("reader", ["transformers", "own"])
def test_export_that_computes_something_else_fails(tmp_path: Path, reader: str, monkeypatch: pytest.MonkeyPatch):
    if reader == "own":
        monkeypatch.setattr(peer.importlib.util, "find_spec", lambda name: None)
    contents = checkpoint(tmp_path / "checkpoint", SHAPES["tied"])
    ours = hugging_face.load_checkpoint(contents)
    output = fs.FolderOutput(str(tmp_path / "export"))
    hugging_face.write_folder(ours, output, dtype="float32", license=None, shard_bytes=10**9)
    report = parity.check(output.contents(), ours, dtype="float32")
    assert report["logits_within"] == 1e-5
    with torch.no_grad():
        ours.model.model.norm.weight[3] += 1e-3
    with pytest.raises(ExportError, match="logits differ"):
        parity.check(output.contents(), ours, dtype="float32")


def test_export_whose_tokenizer_transformers_replaces_fails_and_says_why(tmp_path: Path):
    contents = checkpoint(tmp_path / "checkpoint", QWEN2)
    with pytest.raises(ExportError, match="other ids") as caught:
        export_checkpoint(contents, fs.FolderOutput(str(tmp_path / "export")), dtype="float32", license=None)
    assert "qkv_bias=False" in caught.value.hint
