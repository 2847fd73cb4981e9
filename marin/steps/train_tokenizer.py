"""`TrainTokenizer`: a byte-level BPE tokenizer from documents."""

from pydantic import Field

from marin.graph.artifact import Documents, Tokenizer
from marin.graph.context import Context
from marin.graph.step import Step


class TrainTokenizer(Step[Tokenizer]):
    """A byte-level BPE vocabulary, as a Hugging Face `tokenizer.json`."""

    version = 1
    requires = ("tokenizers",)

    documents: Step[Documents]
    vocab_size: int = Field(ge=257)
    """Entries, the 256 bytes and the special tokens included."""
    every: int = Field(default=1, ge=1)
    """Train on every n-th document; merges hardly change and the time falls in proportion."""
    eos: str = "<|endoftext|>"
    """The token that ends a document."""

    def run(self, ctx: Context) -> Tokenizer:
        """Count pairs and merge until the vocabulary is full."""
        from marin.data.tokenizer import train_tokenizer

        data = train_tokenizer(
            ctx.load(self.documents).shards,
            vocab_size=self.vocab_size,
            every=self.every,
            special_tokens=(self.eos,),
        )
        return Tokenizer.write(ctx.output, data, meta={"eos": self.eos})
