"""What an item asks, as text or as a conversation by a chat template.

As a conversation, the description is the system's message, each example a question of the user and an answer of the
assistant, and the item's own prompt the last question. The answer that is scored follows what the template writes for
the assistant to begin, without the task's delimiter. The template alone writes control strings: an item that holds one
is refused, because it would be parsed as the template's own.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from marin.base.errors import ConfigurationError, DataError
from marin.data.chat_template import ChatTemplate, Marks, TemplateError
from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.evaluate.task import Form

_MARKS = Marks("", "", "")  # which tokens an answer has is decided here by the prompt


class Asking(NamedTuple):
    """The parts of a prompt."""

    description: str
    examples: Sequence[tuple[str, str]]
    """Prompts and their answers."""
    question: str

    def plain(self, form: Form) -> str:
        """Return the parts as one text."""
        before = [self.description] if self.description else []
        before += [f"{prompt}{form.delimiter}{answer}" for prompt, answer in self.examples]
        return "".join(f"{text}{form.separator}" for text in before) + self.question


class ChatPrompts:
    """Writes prompts by a chat template. DataError when the template is no Jinja."""

    def __init__(self, template: str, checkpoint: LoadedCheckpoint) -> None:
        tokenizer = checkpoint.tokenizer
        ids = {name: checkpoint.config.get(f"{name}_token_id") for name in ("bos", "pad")} | {"eos": checkpoint.eos_id}
        tokens = {name: tokenizer.id_to_token(token) for name, token in ids.items() if isinstance(token, int)}
        self._template = ChatTemplate(template, {f"{name}_token": text for name, text in tokens.items() if text})
        self._control = [added.content for added in tokenizer.get_added_tokens_decoder().values() if added.special]

    def prompt(self, asking: Asking, *, where: str) -> str:
        """Return the conversation up to where the assistant begins to answer; DataError when it cannot be written."""
        turns = [
            (role, text) for pair in asking.examples for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
        turns = [*([("system", asking.description)] if asking.description else []), *turns, ("user", asking.question)]
        self.check([text for _, text in turns], where=where)
        messages = [{"role": role, "content": text} for role, text in turns]
        return self.written(messages, add_generation_prompt=True, where=where)

    def written(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool, where: str) -> str:
        """Return a conversation as text; without a generation prompt it ends where its last message does."""
        try:
            text = self._template.render(messages, None, _MARKS, add_generation_prompt=add_generation_prompt)
            last = messages[-1]["content"].strip()
            return text if add_generation_prompt else text[: text.rindex(last) + len(last)]
        except TemplateError as error:
            raise DataError(
                f"the chat template refuses the conversation: {error}",
                where=where,
                hint="some take no system message: leave `description` out; or give another `chat_template`",
            ) from error

    def check(self, texts: Sequence[str], *, where: str) -> None:
        """Raise DataError for a text that holds a control string."""
        for text in texts:
            if held := [control for control in self._control if control in text]:
                raise DataError(
                    f"the text holds the control string {held[0]!r}, which would end or begin a turn",
                    where=where,
                    hint="mend the row, or score without `chat_template`",
                )


def template_of(asked: bool | str, own: str | None) -> str | None:
    """Return the template that a step asks for; ConfigurationError when it is the checkpoint's, which has none."""
    if asked is True and own is None:
        raise ConfigurationError(
            "the checkpoint has no chat template",
            where="chat_template",
            hint="give the template's text, or score without one",
        )
    return own if asked is True else asked or None


def template_name(template: str | None, own: str | None) -> str | None:
    """Return what the scores call a template: whose it is, and the first digits of its sha256."""
    if template is None:
        return None
    digest = hashlib.sha256(template.encode()).hexdigest()[:16]
    return f"{'the checkpoint' if template == own else 'the step'}'s, sha256 {digest}"
