"""Models from Hugging Face folders: every tensor bit for bit, or an error that names what is wrong."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

import marin
from marin import Export, LoadModel
from marin.base.errors import DataError, InputError, MarinError
from marin.evaluate.checkpoint import load_checkpoint
from marin.model.hub import from_hugging_face_config

SHAPE = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA_LIKE = {**SHAPE, "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64}
CONFIGS: dict[str, Any] = {
    "llama": transformers.LlamaConfig(**LLAMA_LIKE, tie_word_embeddings=True),
    "llama-untied": transformers.LlamaConfig(**LLAMA_LIKE),
    "qwen3": transformers.Qwen3Config(**LLAMA_LIKE, head_dim=16),
    "gpt2": transformers.GPT2Config(
        vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
    ),
}


def tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({"<|end|>": 0, **{byte: id + 1 for id, byte in enumerate(alphabet)}}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|end|>"])
    return made


def folder(path: Path, kind: str = "llama", dtype: torch.dtype = torch.float32, shard: str = "1GB") -> Path:
    """Write a random model as transformers does."""
    torch.manual_seed(0)
    config = CONFIGS[kind]
    config.eos_token_id = 0
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    model.save_pretrained(path, max_shard_size=shard)
    tokenizer().save(str(path / "tokenizer.json"))
    return path


def tensors(path: Path) -> dict[str, Tensor]:
    return {
        name: tensor
        for file in sorted(path.glob("*.safetensors"))
        for name, tensor in safetensors.torch.load_file(file).items()
    }


def same_bits(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype
        and torch.equal(ours[name].view(torch.uint8), theirs[name].view(torch.uint8))
        for name in ours
    )


def loaded(path: Path, store: Path) -> marin.Checkpoint:
    return marin.run(LoadModel(url=str(path)), store=store, backend="inline")


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(("dtype", "shard"), [("float32", "1GB"), ("bfloat16", "10KB")])
def test_export_of_a_loaded_model_gives_its_tensors_bit_for_bit(
    tmp_path: Path, kind: str, dtype: str, shard: str
) -> None:
    source = folder(tmp_path / "source", kind, getattr(torch, dtype), shard)
    assert (source / "model.safetensors.index.json").exists() == (shard == "10KB")
    step = Export(checkpoint=LoadModel(url=str(source)), dtype=dtype)
    exported = marin.run(step.at(str(tmp_path / "export")), store=tmp_path / "store", backend="inline")
    for file in exported.contents.files:
        (tmp_path / "copy").mkdir(exist_ok=True)
        (tmp_path / "copy" / file.path).write_bytes(exported.contents.reader.read(file))
    assert same_bits(tensors(tmp_path / "copy"), tensors(source))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    ours = load_checkpoint(marin.load(LoadModel(url=str(source)), store=tmp_path / "store").contents).model
    probe = torch.arange(40).view(2, 20)
    with torch.no_grad():
        torch.testing.assert_close(ours(probe), theirs(probe).logits, rtol=1e-5, atol=1e-5)


def test_model_is_pinned_by_content_and_not_by_place(tmp_path: Path) -> None:
    source = folder(tmp_path / "source")
    moved = shutil.copytree(source, tmp_path / "moved")
    (moved / "README.md").write_text("card")
    (moved / "pytorch_model.bin").write_bytes(b"pickle")
    plans = [marin.plan(LoadModel(url=str(path)), store=tmp_path / "store") for path in (source, moved)]
    first, second = (plan.steps[0].recipe for plan in plans)
    assert first == second
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-4}))
    changed = marin.plan(LoadModel(url=str(moved)), store=tmp_path / "store")
    assert changed.steps[0].recipe != first


@pytest.mark.parametrize("place", ["file", "tokenizer_config.json", "several"])
def test_chat_template_and_special_tokens_are_kept_and_exported(tmp_path: Path, place: str) -> None:
    source = folder(tmp_path / "model")
    template = "{{ messages[0]['content'] }}"
    settings: dict[str, Any] = {"bos_token": "<|end|>", "pad_token": {"content": "<|end|>"}}
    if place == "file":
        (source / "chat_template.jinja").write_text(template)
    else:
        named = [{"name": "tools", "template": "x"}, {"name": "default", "template": template}]
        settings["chat_template"] = named if place == "several" else template
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    record = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**record, "bos_token_id": None}))
    exported = marin.run(Export(checkpoint=LoadModel(url=str(source))), store=tmp_path / "store", backend="inline")
    there = Path(exported.file("config.json").url).parent
    theirs = transformers.AutoTokenizer.from_pretrained(there)
    assert theirs.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False) == "hello"
    assert (theirs.bos_token, theirs.eos_token, theirs.pad_token) == ("<|end|>",) * 3
    generation = transformers.GenerationConfig.from_pretrained(there)
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (0, 0, 0)


def test_end_of_text_token_of_several_is_the_one_that_the_tokenizer_names(tmp_path: Path) -> None:
    source = folder(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "eos_token_id": [5, 0]}))
    assert load_checkpoint(loaded(source, tmp_path / "a").contents).eos_id == 5
    (source / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|end|>"}}))
    assert load_checkpoint(loaded(source, tmp_path / "b").contents).eos_id == 0


def test_gpt2_as_openai_published_it_without_prefix_and_with_masks_is_read(tmp_path: Path) -> None:
    source = folder(tmp_path / "source", "gpt2")
    own = tensors(source)
    bare = {name.removeprefix("transformer."): tensor for name, tensor in own.items()}
    bare |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 64, 64).tril() for layer in range(2)}
    safetensors.torch.save_file(bare, source / "model.safetensors")
    checkpoint = loaded(source, tmp_path / "store")
    data = checkpoint.contents.reader.read(checkpoint.file("model.safetensors"))
    assert same_bits(safetensors.torch.load(data), own)


def change_config(path: Path, **changes: object) -> None:
    record = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**record, **changes}))


def change_tensors(path: Path, change: dict[str, Tensor | None]) -> None:
    kept = {name: tensor for name, tensor in {**tensors(path), **change}.items() if tensor is not None}
    safetensors.torch.save_file(kept, path / "model.safetensors")


def only_pickles(path: Path) -> None:
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def torn(path: Path) -> None:
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[:-4])


def longer(path: Path) -> None:
    with (path / "model.safetensors").open("ab") as file:
        file.write(b"more")


def second_weights(path: Path) -> None:
    shutil.copy(path / "model.safetensors", path / "consolidated.safetensors")


def larger_tokenizer(path: Path) -> None:
    made = tokenizer()
    made.add_tokens([f"<{number}>" for number in range(100)])
    made.save(str(path / "tokenizer.json"))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (only_pickles, "only there as pickles"),
        (lambda path: (path / "model.safetensors").unlink(), "no safetensors files"),
        (lambda path: (path / "config.json").unlink(), "no config.json"),
        (lambda path: (path / "config.json").write_text("{"), "no JSON"),
        (lambda path: (path / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "not a tokenizer.json"),
        (larger_tokenizer, "ids up to 356, the embedding 300 rows"),
        (torn, "its length is not that of its tensors"),
        (longer, "its length is not that of its tensors"),
        (lambda path: (path / "model.safetensors").write_bytes(b"\xff" * 100), "no possible length"),
        (second_weights, "2 files of weights and no index"),
        (lambda path: change_tensors(path, {"model.norm.weight": None}), r"missing \['model.norm.weight'\]"),
        (lambda path: change_tensors(path, {"extra": torch.ones(2)}), r"extra \['model.extra'\]"),
        (lambda path: change_tensors(path, {"model.norm.weight": torch.ones(31)}), r"\[31\] instead of \[32\]"),
        (lambda path: change_tensors(path, {"model.norm.weight": torch.ones(32).to(torch.float8_e4m3fn)}), "F8_E4M3"),
        (lambda path: change_tensors(path, {"model.norm.weight": torch.ones(32).int()}), "dtype I32"),
        (lambda path: change_tensors(path, {"lm_head.weight": torch.ones(300, 32)}), "ties the output layer"),
        (lambda path: change_config(path, vocab_size=299), r"\[300, 32\] instead of \[299, 32\]"),
        (lambda path: change_config(path, model_type="mamba", auto_map={"AutoModel": "x.Y"}), "architecture 'mamba'"),
        (lambda path: change_config(path, hidden_size=None), "hidden_size|width"),
    ],
)
def test_folder_that_is_no_whole_model_is_refused_by_name(tmp_path: Path, harm: Any, message: str) -> None:
    source = folder(tmp_path / "source")
    harm(source)
    with pytest.raises(MarinError, match=message):
        loaded(source, tmp_path / "store")


def test_sharded_folder_that_lacks_a_file_or_a_tensor_is_refused(tmp_path: Path) -> None:
    source = folder(tmp_path / "source", shard="10KB")
    shards = sorted(source.glob("*.safetensors"))
    kept = shards[1].read_bytes()
    shards[1].unlink()
    with pytest.raises(MarinError, match=f"files of weights are missing, such as `{shards[1].name}`"):
        loaded(source, tmp_path / "a")
    shards[1].write_bytes(kept)
    index = json.loads((source / "model.safetensors.index.json").read_text())
    index["weight_map"].pop("model.norm.weight")
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(MarinError, match=r"not in the index \['model.norm.weight'\]"):
        loaded(source, tmp_path / "b")


def test_folder_that_is_not_there_is_refused_when_planned(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file matches"):
        marin.plan(LoadModel(url=str(tmp_path / "nothing")), store=tmp_path / "store")


def test_config_without_a_needed_field_is_refused_by_its_name() -> None:
    record = CONFIGS["llama"].to_dict()
    record.pop("intermediate_size")
    with pytest.raises(DataError, match="lacks `intermediate_size`"):
        from_hugging_face_config(record)
