"""`Export`: a trained model as a folder that other tools take as it is."""

from typing import Literal

from marin.graph.artifact import Checkpoint, ModelFolder
from marin.graph.context import Context
from marin.graph.step import Step


class Export(Step[ModelFolder]):
    """A Hugging Face folder (safetensors), reloaded and compared before it is committed."""

    version = 1

    checkpoint: Step[Checkpoint]
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    license: str | None = None
    """SPDX name for the model card."""

    def run(self, ctx: Context) -> ModelFolder:
        """Write the folder, then check that it gives the checkpoint's logits and ids."""
        from marin.export.hugging_face import export_checkpoint

        report = export_checkpoint(
            ctx.load(self.checkpoint).contents, ctx.output, dtype=self.dtype, license=self.license
        )
        return ModelFolder.write(ctx.output, meta=report)
