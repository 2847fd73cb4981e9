"""`EvaluateTasks`: a model's scores on tasks, with a table of every item; `Items`: the rows that tasks ask."""

from collections import Counter
from typing import Annotated

from pydantic import Field

from marin.base.config import ElideIf, Placement, Several
from marin.base.errors import ConfigurationError
from marin.evaluate.task import Task
from marin.graph.artifact import Checkpoint, Scores, Table
from marin.graph.context import Context
from marin.graph.step import Step


class Items(Step[Table]):
    """Rows of JSON-lines or Parquet files, pinned by content when planned; where the files lie does not count."""

    version = 1

    url: Placement[str]
    """A file, or a pattern such as `tasks/arc/*.jsonl`; several files are one table, in order of path."""

    def inputs(self) -> tuple[str, ...]:
        """The file or pattern."""
        return (self.url,)

    def run(self, ctx: Context) -> Table:
        """Read and check every line."""
        from marin.evaluate.table_files import read_table

        return Table.write(ctx.output, read_table(ctx.inputs))


class EvaluateTasks(Step[Scores]):
    """Scores of a model on tasks, `TASK/SCORE`, and `items.parquet` with what it made of every item.

    Each task passes its canaries first, and no score is one of a part of the items.
    """

    version = 1

    checkpoint: Step[Checkpoint]
    tasks: Several[Task] = Field(min_length=1)
    batch_tokens: Placement[int] = Field(default=16_384, ge=1)
    """Tokens in one forward pass; never changes a score beyond rounding."""
    chat_template: Annotated[bool | str, ElideIf(False)] = False
    """Ask in a conversation: True by the checkpoint's own chat template, or the text of one."""

    def model_post_init(self, context: object, /) -> None:
        """Check that the tasks' names tell their scores apart."""
        name, count = Counter(task.name for task in self.tasks).most_common(1)[0]
        if count > 1:
            raise ConfigurationError(
                f"{count} tasks are named {name!r}", where="EvaluateTasks.tasks", hint="give each task its own name"
            )

    def run(self, ctx: Context) -> Scores:
        """Score each task's items in shards, then all together."""
        from marin.evaluate import checkpoint, conversation, tasks

        contents = ctx.load(self.checkpoint).contents
        own = checkpoint.chat_template(contents)
        template = conversation.template_of(self.chat_template, own)
        files = checkpoint.checkpoint_files(contents)
        scored = []
        for task in self.tasks:
            table = ctx.load(task.items).file("table.parquet")
            mapped = ctx.map(
                tasks.score_shard,
                tasks.plan_items(table, task.form),
                form=task.form,
                examples=None if task.examples is None else ctx.load(task.examples).file("table.parquet"),
                chat_template=template,
                batch_tokens=self.batch_tokens,
                **files,
            )
            scored.append(tasks.Scored(task.name, task.form, mapped.shards))
        scores = tasks.collect(ctx.output, scored, chat_template=conversation.template_name(template, own))
        ctx.metric(**scores.metrics)
        return Scores.write(ctx.output, scores.metrics, details=scores.details)
