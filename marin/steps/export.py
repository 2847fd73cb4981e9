"""`Export`: a trained model as a folder that other tools take as it is."""

from typing import Annotated, Literal

from marin.base.config import ElideIf
from marin.base.errors import ConfigurationError
from marin.graph.artifact import Checkpoint, ModelFolder
from marin.graph.context import Context
from marin.graph.step import Step


class Export(Step[ModelFolder]):
    """A Hugging Face folder (safetensors) or a GGUF file, reloaded and compared before it is committed."""

    version = 2

    checkpoint: Step[Checkpoint]
    dtype: Literal["float32", "bfloat16", "float16", "q8_0"] = "float32"
    """Of the weights; `q8_0`, blocks of 8-bit numbers, is GGUF's."""
    license: str | None = None
    """SPDX name for the model card."""
    format: Annotated[Literal["safetensors", "gguf"], ElideIf("safetensors")] = "safetensors"
    """`gguf`: one file `model.gguf` for llama.cpp; needs the extra `gguf`."""

    def model_post_init(self, context: object, /) -> None:
        """Check that the format has the dtype."""
        if self.dtype == "q8_0" and self.format != "gguf":
            raise ConfigurationError(
                "safetensors hold no `q8_0`", where="Export.dtype", hint="give format='gguf', or another dtype"
            )

    def run(self, ctx: Context) -> ModelFolder:
        """Write the folder, then check that it gives the checkpoint's logits and ids."""
        from marin.export import gguf_file, hugging_face

        contents = ctx.load(self.checkpoint).contents
        write = gguf_file.export_gguf if self.format == "gguf" else hugging_face.export_checkpoint
        return ModelFolder.write(ctx.output, meta=write(contents, ctx.output, dtype=self.dtype, license=self.license))
