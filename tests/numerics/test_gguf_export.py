"""GGUF files: transformers reads them and computes the same, so does marin's own import; a wrong one never leaves."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

pytest.importorskip("gguf")
pytest.importorskip("accelerate")

import gguf

import marin
from marin import Decoder, Export, LoadModel, fs
from marin.base.errors import ConfigurationError, DataError
from marin.evaluate.checkpoint import load_checkpoint
from marin.export import gguf_file, gguf_parity, gguf_tokenizer
from marin.export.gguf_file import export_gguf
from marin.export.parity import ExportError
from marin.graph.files import Contents
from marin.model.config import RopeScaling
from marin.model.hub import to_hugging_face_config
from marin.model.init import build
from marin.model.weights import write_tensors

SIZE = {"layers": 2, "width": 64, "heads": 4, "vocab_size": 320, "context": 32}
SHAPES = {
    "llama": Decoder(**SIZE),
    "llama, untied, grouped": Decoder(**SIZE, kv_heads=2, tied=False),
    "qwen2": Decoder(**SIZE, kv_heads=1, qkv_bias=True),
    "qwen3": Decoder(**SIZE, kv_heads=2, head_width=32, qk_norm=True),
    "gpt2": Decoder(family="gpt2", **SIZE),
}
TEXTS = ["def f(x):\n    return x\n", "naïve 東京 👩‍🚀 1,234", "  two  spaces\n\n\ttab it's"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def checkpoint(folder: Path, decoder: Decoder, cut: str = "gpt-2") -> Contents:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|pad|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    tokenizer_json = gguf_tokenizer.with_cut(tokenizer.to_str().encode(), cut)
    assert tokenizer_json is not None
    torch.manual_seed(0)
    model = build(decoder, torch.device("cpu"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    output = fs.FolderOutput(str(folder))
    with output.open("model.safetensors") as file:
        write_tensors(file, model.state_dict())
    record = {**to_hugging_face_config(decoder, eos_id=0), "pad_token_id": 1}
    output.write("config.json", json.dumps(record).encode())
    output.write("tokenizer.json", tokenizer_json)
    output.write("chat_template.jinja", TEMPLATE.encode())
    return output.contents()


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_gguf_is_read_by_transformers_with_equal_logits_and_ids(tmp_path: Path, shape: str) -> None:
    contents = checkpoint(tmp_path / "checkpoint", SHAPES[shape])
    export_gguf(contents, fs.FolderOutput(str(tmp_path / "export")), dtype="float32", license="mit")
    options = {"gguf_file": "model.gguf", "dtype": torch.float32}
    if shape in {
        "qwen3",
        "gpt2",
    }:  # transformers reads neither a head's width nor the positions, and takes its defaults
        options["config"] = transformers.AutoConfig.for_model(**load_checkpoint(contents).config)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "export", **options)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "export", gguf_file="model.gguf")
    ours = load_checkpoint(contents)
    for text in TEXTS:
        ids = ours.encode(text)
        probe = torch.tensor([ids])
        torch.testing.assert_close(theirs(probe).logits, ours.model(probe), rtol=0, atol=1e-5)
        if shape != "qwen2":  # transformers gives it Qwen2's own way of cutting text
            assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids
    assert tokenizer.chat_template == TEMPLATE
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|endoftext|>", "<|pad|>")
    assert theirs.config.vocab_size == 320


@pytest.mark.parametrize(
    ("dtype", "stored", "most"), [("float16", "F16", 5e-4), ("bfloat16", "BF16", 5e-3), ("q8_0", "Q8_0", 3e-3)]
)
def test_gguf_of_fewer_bits_holds_rounded_matrices_and_exact_norms(
    tmp_path: Path, dtype: str, stored: str, most: float
) -> None:
    contents = checkpoint(tmp_path / "checkpoint", SHAPES["llama"])
    report = export_gguf(contents, fs.FolderOutput(str(tmp_path / "export")), dtype=dtype, license=None)
    assert report["dtype"] == dtype
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "export" / "model.gguf").tensors}
    weights = load_checkpoint(contents).model.state_dict()
    matrix, norm = read["token_embd.weight"], read["output_norm.weight"]
    assert (matrix.tensor_type.name, norm.tensor_type.name) == (stored, "F32")
    values = gguf.quants.dequantize(matrix.data, matrix.tensor_type)
    wanted = weights["model.embed_tokens.weight"].numpy()
    assert 0 < np.abs(values - wanted).max() < most
    assert (norm.data == weights["model.norm.weight"].numpy()).all()


def test_gguf_written_and_loaded_again_is_the_same_checkpoint(tmp_path: Path) -> None:
    contents = checkpoint(tmp_path / "checkpoint", SHAPES["llama, untied, grouped"], cut="smollm")
    for name in ("export", "again"):
        export_gguf(contents, fs.FolderOutput(str(tmp_path / name)), dtype="float32", license=None)
    assert (tmp_path / "export/model.gguf").read_bytes() == (tmp_path / "again/model.gguf").read_bytes()
    loaded = LoadModel(url=str(tmp_path / "export" / "model.gguf"))
    found = load_checkpoint(marin.run(loaded, store=tmp_path / "store", backend="inline").contents)
    ours = load_checkpoint(contents)
    for name, tensor in ours.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], tensor)
    assert [found.encode(text) for text in TEXTS] == [ours.encode(text) for text in TEXTS]
    assert (found.eos_id, found.chat_template) == (0, TEMPLATE)
    assert found.config["pad_token_id"] == 1


@pytest.mark.parametrize("cut", ["gpt-2", "smollm", "qwen2", "dbrx", "llama-bpe"])
def test_tokenizer_keeps_the_name_of_its_cut(tmp_path: Path, cut: str) -> None:
    checkpoint(tmp_path, SHAPES["llama"], cut)
    tokenizer_json = (tmp_path / "tokenizer.json").read_bytes()
    assert gguf_tokenizer.cut_name(json.loads(tokenizer_json)) == cut


def test_tokenizer_that_gguf_cannot_name_is_refused(tmp_path: Path) -> None:
    contents = checkpoint(tmp_path / "checkpoint", SHAPES["llama"])
    record = json.loads((tmp_path / "checkpoint" / "tokenizer.json").read_text())
    for change in (
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"normalizer": {"type": "Lowercase"}},
        {"model": {**record["model"], "byte_fallback": True}},
    ):
        with pytest.raises(DataError, match="GGUF has no name for"):
            gguf_tokenizer.vocabulary(json.dumps({**record, **change}).encode(), 320)
    assert contents.file("tokenizer.json")


def test_gguf_of_a_stretched_rope_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    contents = checkpoint(tmp_path / "checkpoint", Decoder(**SIZE, rope_scaling=RopeScaling(factor=8.0)))
    with pytest.raises(DataError, match="stretched RoPE"):
        export_gguf(contents, fs.FolderOutput(str(tmp_path / "export")), dtype="float32", license=None)
    assert not (tmp_path / "export").exists()


def test_export_of_q8_0_as_safetensors_is_refused_when_it_is_made() -> None:
    with pytest.raises(ConfigurationError, match="q8_0"):
        Export(checkpoint=LoadModel(url="x"), dtype="q8_0")


@pytest.mark.parametrize("dtype", ["float32", "q8_0"])
def test_gguf_that_holds_something_else_fails(tmp_path: Path, dtype: str) -> None:
    ours = load_checkpoint(checkpoint(tmp_path / "checkpoint", SHAPES["llama"]))
    words = gguf_tokenizer.vocabulary(ours.tokenizer_json, 320)
    path = tmp_path / "model.gguf"
    gguf_file.write_gguf(ours, words, path, dtype=dtype, license=None)
    assert gguf_parity.check(path, ours, words, dtype=dtype)["tokens"] == 320
    with pytest.raises(ExportError, match=r"tokenizer\.ggml\.tokens"):
        gguf_parity.check(path, ours, words._replace(tokens=[*words.tokens[:-1], "other"]), dtype=dtype)
    with torch.no_grad():
        ours.model.model.layers[1].self_attn.q_proj.weight[0, 0] += 0.1
    with pytest.raises(ExportError, match=r"blk\.1\.attn_q\.weight"):
        gguf_parity.check(path, ours, words, dtype=dtype)
