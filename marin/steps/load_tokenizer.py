"""`LoadTokenizer`: a tokenizer that somebody else trained."""

from typing import Literal

from pydantic import Field

from marin.base.config import Placement
from marin.graph.artifact import Tokenizer
from marin.graph.context import Context
from marin.graph.step import Step

_WEIGHTS = tuple(f"!*.{suffix}" for suffix in ("bin", "gguf", "h5", "msgpack", "onnx", "pt", "pth", "safetensors"))


class LoadTokenizer(Step[Tokenizer]):
    """A published tokenizer, pinned by content when planned, with its end-of-text token and chat template."""

    version = 1
    requires = ("tokenizers",)

    url: Placement[str]
    """A folder as on the Hugging Face hub, or one file: `tokenizer.json`, a tiktoken rank file, a SentencePiece one."""
    eos: str | None = None
    """The token that ends a document; None: as the folder's tokenizer_config.json says."""
    bos: str | None = None
    """The token that begins one, for templates and `Tokenize`; None: as that file says."""
    pattern: str | None = None
    """For a rank file: the regular expression that splits text before merging."""
    special_tokens: dict[str, int] = Field(default_factory=dict)
    """For a rank file: special tokens and their ids."""
    holes: Literal["fail", "keep"] = "fail"
    """What ids without a token cost: an error, or a row of the embedding each."""

    def inputs(self) -> tuple[str, ...]:
        """The file; of a folder what belongs to a tokenizer, and never its weights."""
        if self.url.endswith((".json", ".model", ".tiktoken")):
            return (self.url,)
        # One pattern for token*, *.tiktoken, *_tokens_*, *_template*: each pattern must match something.
        return (f"{self.url.rstrip('/')}/*t[eio][km]*", *_WEIGHTS)

    def run(self, ctx: Context) -> Tokenizer:
        """Read, convert where needed, and check the vocabulary."""
        from marin.data import load_tokenizer

        loaded = load_tokenizer.load_files(
            ctx.inputs,
            eos=self.eos,
            bos=self.bos,
            pattern=self.pattern,
            special_tokens=self.special_tokens,
            holes=self.holes,
        )
        if loaded.template is not None:
            ctx.output.write(load_tokenizer.TEMPLATE, loaded.template.encode())
        return Tokenizer.write(ctx.output, loaded.data, meta=loaded.meta)
