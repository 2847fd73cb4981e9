"""lm-evaluation-harness over marin's scorer: its tasks, prompts and metrics, our log-likelihoods and completions.

Ids are made as the harness' own `hf` backend makes them, so that scores are equal: it splits a pair where the context
ends when tokenized alone, parses control strings, and puts a start token first only where the tokenizer does.
Needs the extra `eval`. Source: https://github.com/EleutherAI/lm-evaluation-harness, `lm_eval/api/model.py`.
"""

import hashlib
import importlib.metadata
from collections.abc import Sequence
from typing import Any, NamedTuple

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tokenizers import Tokenizer

from marin.base.errors import ConfigurationError
from marin.base.json import Json, dumps
from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.evaluate.complete import Prompt, Sampling, complete_prompts
from marin.evaluate.conversation import ChatPrompts, template_name, template_of
from marin.evaluate.loss import ScoreSet
from marin.evaluate.requests import Request
from marin.evaluate.scorer import ModelPredictor, score_requests

MAX_TOKENS = 256
"""Of a completion where the task does not say, as in the harness."""


class HarnessModel(TemplateLM):  # type: ignore[misc]  # the harness has no types
    """A checkpoint as the harness' `LM`: give it to `lm_eval.simple_evaluate(model=...)`."""

    def __init__(self, checkpoint: LoadedCheckpoint, *, batch_tokens: int = 16_384, seed: int = 0) -> None:
        super().__init__()
        self._checkpoint = checkpoint
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._predictor = ModelPredictor(checkpoint.model)
        self._encoder = Tokenizer.from_str(checkpoint.tokenizer_json.decode())
        self._encoder.no_truncation()
        self._encoder.no_padding()

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self._checkpoint.eos_id

    @property
    def prefix_token_id(self) -> int:
        """What an empty context is taken to be."""
        return self._checkpoint.start_ids[-1]

    @property
    def max_length(self) -> int:
        """Tokens that the model sees at once."""
        return self._checkpoint.context

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **ignored: object) -> list[int]:
        """Return the ids of a text; a start token that the text has already is not put there again."""
        begins = self._encoder.id_to_token(self.prefix_token_id) or ""
        is_begun = bool(begins) and string.startswith(begins)
        adds = not is_begun if add_special_tokens is None else add_special_tokens
        ids: list[int] = self._encoder.encode(string, add_special_tokens=adds).ids
        return ids

    @property
    def tokenizer_name(self) -> str:
        """What the harness keys its cache of requests by."""
        return hashlib.sha256(self._checkpoint.tokenizer_json).hexdigest()[:16]

    @property
    def chat_template_name(self) -> str | None:
        """What the scores call the checkpoint's chat template."""
        return template_name(self._checkpoint.chat_template, self._checkpoint.chat_template)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the checkpoint's chat template; ConfigurationError when it has none."""
        return template_of(True, self._checkpoint.chat_template) or ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return a conversation as text, up to where the assistant begins, or to the end of what it has begun."""
        prompts = ChatPrompts(self.chat_template(), self._checkpoint)
        return prompts.written(chat_history, add_generation_prompt=add_generation_prompt, where="EvaluateHarness.tasks")

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **ignored: object
    ) -> list[tuple[float, bool]]:  # Any: the texts, None for windows
        wanted = [Request(tuple(context), tuple(continuation)) for _, context, continuation in requests]
        scored = score_requests(
            self._predictor, wanted, context=self._checkpoint.context, batch_tokens=self._batch_tokens
        )
        answers = [(0.0 - each.nats, each.greedy) for each in scored]
        for (texts, _, _), answer in zip(requests, answers, strict=True):
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, answer)
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each whole text, by the harness' windows."""
        windows: list[tuple[None, list[int], list[int]]] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            rolled = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            found = [make_disjoint_window(window) for window in rolled]
            windows += [(None, context, continuation) for context, continuation in found]
            owners += [number] * len(found)
        sums = [0.0] * len(requests)
        for owner, (value, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            sums[owner] += value
        for request, value in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return sums

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the text that the model writes after each context, cut at the first stop text."""
        answers = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(dumps(request.args[1]), []).append(number)
        for numbers in groups.values():
            options: Any = normalize_gen_kwargs(requests[numbers[0]].args[1], MAX_TOKENS)  # Any: the harness'
            ends = self._encoder.id_to_token(self.eot_token_id)
            stop = handle_stop_sequences(options["until"], eos=ends)
            texts = [requests[number].args[0] for number in numbers]
            for number, text in zip(numbers, self._write(texts, options, stop), strict=True):
                answers[number] = text
                self.cache_hook.add_partial("generate_until", requests[number].args, text)
        return answers

    def _write(self, contexts: Sequence[str], options: Any, stop: list[str]) -> list[str]:  # Any: the harness' dict
        most = options["max_gen_toks"]
        room = self.max_length - most
        if room <= 0:
            raise ConfigurationError(
                f"completions of {most} tokens leave no room in the model's context of {self.max_length}",
                where="max_gen_toks",
                hint="lower max_gen_toks in the task's generation_kwargs",
            )
        sampling = Sampling(
            most,
            temperature=float(options.get("temperature", 0)),
            top_p=float(options.get("top_p", 1)),
            seed=self._seed,
            stop=tuple(each for each in stop if each),
        )
        prompts = [
            Prompt(str(number), text, tuple(self.tok_encode(text)[-room:]) or (self.prefix_token_id,))
            for number, text in enumerate(contexts)
        ]
        completions = complete_prompts(self._checkpoint, prompts, sampling, batch_tokens=self._batch_tokens)
        return [postprocess_generated_text(each["completion"], stop, None) for each in completions]


class HarnessResults(NamedTuple):
    """Scores, and by task what was made of each item, in order."""

    scores: ScoreSet
    samples: dict[str, list[dict[str, Any]]]  # Any: the harness' record of an item


def harness_results(model: HarnessModel, tasks: Sequence[str | object], **options: Any) -> HarnessResults:
    """Return the harness' scores as `TASK/METRIC`, its version and its tasks' versions beside them, and its samples.

    `options` are those of `lm_eval.simple_evaluate`, such as `num_fewshot`, `limit`, `task_manager`.
    """
    results: Any = lm_eval.simple_evaluate(model=model, tasks=list(tasks), **options)  # Any: the harness' dict
    metrics = {
        f"{task}/{name.removesuffix(',none')}": float(value)
        for task, scores in results["results"].items()
        for name, value in scores.items()
        if isinstance(value, int | float) and name != "sample_len"
    }
    details: dict[str, Json] = {
        "lm_eval": importlib.metadata.version("lm-eval"),
        "task_versions": {task: str(version) for task, version in results["versions"].items()},
    }
    samples = {
        task: sorted(found, key=lambda sample: int(sample["doc_id"])) for task, found in results["samples"].items()
    }
    return HarnessResults(ScoreSet(metrics, details), samples)


def harness_scores(model: HarnessModel, tasks: Sequence[str | object], **options: Any) -> ScoreSet:  # Any: passed on
    """Return the scores of `harness_results`."""
    return harness_results(model, tasks, **options).scores
