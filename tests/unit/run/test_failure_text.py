"""What an exception says is shown by a terminal, and does nothing to it."""

from marin.run.failure import explain


def test_control_characters_of_a_message_are_written_out():
    failure = explain(ValueError("bad \x1b[31mred\x1b]0;title\x07\r\u202e é\n\tnext"), hint="")
    assert failure.message == "ValueError: bad \\x1b[31mred\\x1b]0;title\\x07\\r\\u202e é\n\tnext"
