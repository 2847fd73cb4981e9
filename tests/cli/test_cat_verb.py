"""`marin cat`: documents, tokens, rows and files as a person reads them, and as JSON."""

import json

import pytest

import marin as framework
from marin import Chat, Context, Files, Folder, Pack, Records, Shuffle, Step, Table, Tokenize, TrainTokenizer

EOS = "<|endoftext|>"
TALK = '{"messages": [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "the hat"}]}'
TEXTS = ("the cat\nand the hat", "\x1b[31mred\x1b[0m été", "x" * 1000)


class Picture(Step[Folder]):
    """Holds nothing that can be shown as samples."""

    def run(self, ctx: Context) -> Folder:
        ctx.output.write("notes.md", b"# \x1b[2Jnotes\n")
        ctx.output.write("picture.bin", b"\xff\xd8")
        return Folder.write(ctx.output)


class Counted(Step[Table]):
    def run(self, ctx: Context) -> Table:
        return Table.write(ctx.output, [{"word": f"[red]{n}", "raw": bytes([n])} for n in range(9)])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One store with an artifact of each kind."""
    folder = tmp_path_factory.mktemp("cat")
    (folder / "web").mkdir()
    (folder / "web" / "a.jsonl").write_text('{"text": "good", "lang": "en"}\n{"te\n{"txt": "a\u2028b"}\n')
    documents = Records(texts=TEXTS)
    tokenizer = TrainTokenizer(documents=documents, vocab_size=262)
    tokens = Tokenize(documents=documents, tokenizer=tokenizer)
    steps = [
        Files(url=f"{folder}/web/*.jsonl", text="text", on_error="quarantine"),
        Shuffle(tokens=tokens, context=16, seed=0),
        Pack(tokens=tokens, context=16, seed=0, method="best_fit"),
        Chat(
            documents=Records(texts=(TALK,)),
            tokenizer=tokenizer,
            template="{% for m in messages %}{{ m.content }}\n{% endfor %}",
        ),
        Picture(),
        Counted(),
    ]
    framework.run(steps, store=folder / "store", backend="inline")
    return str(folder / "store")


def test_cat_documents_shows_text_and_where_it_stands_and_no_control_character(marin, store):
    shown = marin("cat", "files", "--store", store)
    assert shown.code == 0
    assert shown.out.splitlines() == [
        "shard 0, row 0: a.jsonl:1 of a.jsonl, 4 characters",
        '  {"lang": "en"}',
        "  good",
        "",
    ]
    records = framework.run(Records(texts=TEXTS), store=store, backend="inline")
    shown = marin("cat", records.digest[:12], "--length", "30", "--store", store)
    assert "  the cat\n  and the hat\n" in shown.out
    assert "\\x1b[31mred\\x1b[0m été" in shown.out
    assert "\x1b" not in shown.out
    assert f"\n  {'x' * 30}\n" in shown.out
    assert "1,000 characters" in shown.out


def test_cat_tokens_shows_borders_and_json_has_ids(marin, store):
    shown = marin("cat", "tokenize", "-n", "1", "--at", "0", "--store", store)
    first = shown.out.splitlines()
    assert first[0].startswith("shard 0, row 0: ")
    assert first[2].endswith(f"│{EOS}")
    assert first[1].replace("│", "") == "  the cat"
    record = marin("cat", "tokenize", "-n", "1", "--at", "0", "--store", store, "--json").json
    assert set(record) == {"schema", "step", "fingerprint", "type", "artifact", "samples"}
    (sample,) = record["samples"]
    assert set(sample) == {"shard", "row", "id", "source", "tokens", "ids", "pieces"}
    assert "".join(sample["pieces"]) == TEXTS[0] + EOS
    assert len(sample["ids"]) == sample["tokens"]


def test_cat_chat_puts_tokens_with_loss_in_brackets(marin, store):
    out = marin("cat", "chat", "--store", store).out
    answers = out.split("⟦")[1].split("⟧")[0]
    assert answers.replace("│", "").replace("\n  ", "\n") == "the hat\n"
    assert out.replace("│", "").replace("⟦", "").replace("⟧", "").count("the cat") == 1


def test_cat_sequences_shows_the_documents_of_a_row(marin, store):
    record = marin("cat", "shuffle", "-n", "2", "--store", store, "--json").json
    assert len(record["samples"]) == 2
    for sample in record["samples"]:
        assert sum(document["tokens"] for document in sample["documents"]) + sample["padding"] == sample["tokens"] == 17
    assert "documents, 17 tokens" in marin("cat", "shuffle", "--store", store).out


def test_cat_packed_rows_counts_positions_and_their_last_targets_beside(marin, store):
    record = marin("cat", "pack", "-n", "50", "--store", store, "--json").json
    assert {sample["unit"] for sample in record["samples"]} == {"positions"}
    for sample in record["samples"]:
        positions = sum(document["tokens"] - 1 for document in sample["documents"])
        assert positions + sample["padding"] == sample["tokens"] == 16
    out = marin("cat", "pack", "--store", store).out
    assert "1 document, 16 positions" in out
    assert "1 documents" not in out


def test_cat_file_shows_lines_of_all_shards(marin, store):
    record = marin("cat", "files", "--file", "quarantine.jsonl", "--store", store, "--json").json
    assert [(line["line"], line["reason"]) for line in record["lines"]] == [(2, "invalid_json"), (3, "missing_text")]
    lines = marin(
        "cat", "files", "--file", "quarantine.jsonl", "-n", "1", "--at", "1", "--store", store
    ).out.splitlines()
    assert [json.loads(line)["line"] for line in lines] == [3]
    assert marin("cat", "picture", "--file", "notes.md", "--store", store).out == "# \\x1b[2Jnotes\n"


def test_cat_table_shows_rows(marin, store):
    record = marin("cat", "counted", "-n", "2", "--at", "3", "--store", store, "--json").json
    assert (record["num_rows"], [row["word"] for row in record["rows"]]) == (9, ["[red]3", "[red]4"])
    assert "[red]0" in marin("cat", "counted", "--store", store).out


@pytest.mark.parametrize("arguments", [["tokenize"], ["counted"], ["files", "--file", "quarantine.jsonl"]])
def test_cat_past_the_end_says_so_and_is_no_error(marin, store, arguments):
    done = marin("cat", *arguments, "--at", "1000", "--store", store, "--json")
    assert (done.code, done.json.get("samples", done.json.get("rows", done.json.get("lines")))) == (0, [])
    assert f"nothing from number 1,000 on: {arguments[0]} ends before it" in done.err
    assert "nothing from" not in marin("cat", *arguments, "--at", "1", "--store", store).err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["picture"], "--file notes.md"),
        (["picture", "--file", "note.md"], "notes.md"),
        (["picture", "--file", "picture.bin"], "is no text"),
        (["tokenise"], "tokenize"),
        (["files", "-n", "0"], "0 is not in the range"),
    ],
)
def test_cat_of_what_cannot_be_shown_says_what_can(marin, store, arguments, said):
    done = marin("cat", *arguments, "--store", store)
    assert done.code == 2
    assert said in done.err
    assert done.out == ""
