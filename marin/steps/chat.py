"""`Chat`: conversations to token ids with loss masks."""

from datetime import date as Date
from typing import Literal

from marin.base.errors import ConfigurationError
from marin.graph.artifact import Documents, Tokenizer, Tokens
from marin.graph.context import Context
from marin.graph.step import Step

_TEMPLATE = "chat_template.jinja"


class Chat(Step[Tokens]):
    """Conversations by the tokenizer's chat template; what an assistant said is a target, nothing else is."""

    version = 2
    requires = ("tokenizers", "jinja2")

    documents: Step[Documents]
    """Conversations as JSON, such as `Conversations` gives them."""
    tokenizer: Step[Tokenizer]
    template: str | None = None
    """A Jinja chat template; None: the tokenizer's own."""
    date: str | None = None
    """What a template that writes the date gets, such as `2026-01-31`; None: such a template uses its default."""
    on_refused: Literal["fail", "drop"] = "fail"
    """What a conversation costs that the template refuses or whose mask is empty or full; dropped ones are counted."""

    def model_post_init(self, context: object, /) -> None:
        """Check that the date is one."""
        try:
            _ = self.date is None or Date.fromisoformat(self.date)
        except ValueError as error:
            raise ConfigurationError(
                f"{self.date!r} is no date", where="Chat.date", hint="give it as in `2026-01-31`"
            ) from error

    def run(self, ctx: Context) -> Tokens:
        """Render, encode and mask each shard."""
        from marin.data import chat, tokenize

        tokenizer = ctx.load(self.tokenizer)
        template = self.template
        if template is None and any(file.path == _TEMPLATE for file in tokenizer.contents.files):
            template = tokenizer.contents.reader.read(tokenizer.file(_TEMPLATE)).decode()
        if template is None:
            raise ConfigurationError(
                "the tokenizer has no chat template",
                where="Chat.template",
                hint="give `template`, or load a tokenizer that has one with LoadTokenizer",
            )
        names = {name: tokenizer.meta[name] for name in ("bos", "eos", "pad", "unk") if name in tokenizer.meta}
        mapped = ctx.map(
            chat.chat_shard,
            ctx.load(self.documents).shards,
            tokenizer=tokenizer.file("tokenizer.json"),
            template=template,
            tokens={f"{name}_token": text for name, text in names.items()},
            eos=tokenizer.meta["eos"],
            date=self.date,
            on_refused=self.on_refused,
        )
        ctx.output.write("tokenizer.json", tokenizer.read())
        meta = tokenize.total(mapped, tokenizer_json=tokenizer.read(), eos=tokenizer.meta["eos"])
        return Tokens.write(ctx.output, shards=mapped.shards, meta=meta)
