"""Pages that are written from the code say what the code says, and the code's records what their models say."""

import importlib.util
import json
from pathlib import Path

import pytest

import marin
from marin.store import models

ROOT = Path(__file__).parents[2]


def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "reference" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", list(generator().PAGES))
def test_page_is_what_the_code_says(page: str):
    written = (ROOT / "docs" / "reference" / page).read_text()
    assert written == generator().PAGES[page](), "run: python docs/reference/generate.py"


def test_every_record_of_a_run_has_the_fields_of_its_model_and_no_other(tmp_path: Path):
    marin.run(
        marin.TrainTokenizer(documents=marin.Records(texts=["a b"] * 9), vocab_size=258),
        store=tmp_path,
        backend="inline",
    )
    kinds = set()
    for file in tmp_path.rglob("*.json"):
        record = json.loads(file.read_text())
        if "checksum" in record:
            fields = models.MODELS[record["kind"]].fields
            required = {name for name, field in fields.items() if not field.optional}
            kept = set(record) - {"schema", "kind", "checksum"}
            assert required <= kept <= set(fields), file
            kinds.add(record["kind"])
    assert kinds >= {"store", "manifest", "recipe", "lease", "released", "shard", "run", "heartbeat"}
