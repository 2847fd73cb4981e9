"""`LoadModel`: a model that somebody else trained."""

from marin.base.config import Placement
from marin.graph.artifact import Checkpoint
from marin.graph.context import Context
from marin.graph.step import Step


class LoadModel(Step[Checkpoint]):
    """A Llama, Qwen2, Qwen3 or GPT-2 from a Hugging Face folder or a GGUF file, pinned by content when planned.

    Only safetensors are read; code that comes with a model is never run.
    """

    version = 2

    url: Placement[str]
    """The folder, or a file that ends in `.gguf`; only the content of its files counts."""

    def inputs(self) -> tuple[str, ...]:
        """The GGUF file; of a folder all files but those that no model is made of."""
        if self.url.endswith(".gguf"):
            return (self.url,)
        passed_over = ("bin", "pt", "pth", "ckpt", "pkl", "h5", "msgpack", "onnx", "gguf", "md", "gitattributes")
        return (f"{self.url.rstrip('/')}/*", *(f"!*.{ending}" for ending in passed_over))

    def run(self, ctx: Context) -> Checkpoint:
        """Check the files against the configuration among them, and copy the tensors bit for bit."""
        from marin.export.imported import import_model

        return Checkpoint.write(ctx.output, meta=import_model(self.url, ctx.inputs, ctx.output))
