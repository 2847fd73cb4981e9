"""What an exception says is shown by a terminal, and does nothing to it."""

from marin.run.failure import explain


def test_control_characters_of_a_message_are_written_out():
    failure = explain(ValueError("bad \x1b[31mred\x1b]0;title\x07\r\u202e é\n\tnext"), hint="")
    assert failure.message == "ValueError: bad \\x1b[31mred\\x1b]0;title\\x07\\r\\u202e é\n\tnext"


def test_file_of_a_tree_that_was_sent_to_a_node_is_named_as_in_the_tree(tmp_path, monkeypatch):
    sent = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_0a1b2c3d4e5f"
    (sent / "lab").mkdir(parents=True)
    (sent / "lab" / "steps.py").write_text("def fall():\n    raise OSError('no file ' + __file__)\n")
    code = compile((sent / "lab" / "steps.py").read_text(), str(sent / "lab" / "steps.py"), "exec")
    names = {"__file__": str(sent / "lab" / "steps.py")}
    exec(code, names)
    try:
        names["fall"]()
    except OSError as error:
        failure = explain(error, hint="")
    assert failure.where == "lab/steps.py:2 in fall"
    assert failure.message == "OSError: no file lab/steps.py"
    assert '  File "lab/steps.py", line 2, in fall' in failure.text
    assert "_ray_pkg_" not in failure.text
