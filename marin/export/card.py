"""The model card of an export: what the model is, in Markdown with the header that Hugging Face reads."""

from marin.base.units import format_count
from marin.model.config import Decoder

_LOAD = (
    "```python",
    "from transformers import AutoModelForCausalLM, AutoTokenizer",
    "",
    'model = AutoModelForCausalLM.from_pretrained("this/folder")',
    'tokenizer = AutoTokenizer.from_pretrained("this/folder")',
    "```",
)
_RUN_GGUF = ("```console", "$ llama-cli -m model.gguf", "```")


def model_card(
    decoder: Decoder, architecture: str, parameters: int, *, dtype: str, license: str | None, gguf: str | None = None
) -> str:
    """Return README.md: licence, shape, and how to load it; equal models give equal text.

    `gguf`: the name of the file, where the folder is no Hugging Face folder.
    """
    header = ["---", f"library_name: {'gguf' if gguf else 'transformers'}", "pipeline_tag: text-generation"]
    header += [f"license: {license}"] if license else []
    rows = {
        "architecture": architecture,
        "parameters": f"{parameters:,}",
        "layers": decoder.layers,
        "width": decoder.width,
        "heads": f"{decoder.heads} ({decoder.num_kv_heads} key-value)",
        "vocabulary": f"{decoder.vocabulary:,}",
        "context": f"{decoder.context or 0:,} tokens",
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
            *(_RUN_GGUF if gguf else _LOAD),
            "",
        ]
    )
