"""The model card of an export: what the model is, in Markdown with the header that Hugging Face reads."""

from collections.abc import Mapping
from typing import Any

from marin.base.units import format_count


def model_card(config: Mapping[str, Any], parameters: int, *, dtype: str, license: str | None) -> str:  # Any: JSON
    """Return README.md: licence, shape, and how to load it; equal models give equal text."""
    header = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    header += [f"license: {license}"] if license else []
    rows = {
        "architecture": config["architectures"][0],
        "parameters": f"{parameters:,}",
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "heads": f"{config['num_attention_heads']} ({config['num_key_value_heads']} key-value)",
        "vocabulary": f"{config['vocab_size']:,}",
        "context": f"{config['max_position_embeddings']:,} tokens",
        "weights": dtype,
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return "\n".join(
        [
            *header,
            "---",
            "",
            f"# A language model of {format_count(parameters)} parameters",
            "",
            "Trained with marin. Each document followed the end-of-text token in training; start a prompt with it.",
            "",
            "| | |",
            "|---|---|",
            table,
            "",
            "```python",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'model = AutoModelForCausalLM.from_pretrained("this/folder")',
            'tokenizer = AutoTokenizer.from_pretrained("this/folder")',
            "```",
            "",
        ]
    )
