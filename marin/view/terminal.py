"""What workers printed, made fit for a terminal: it may colour, and nothing else.

Invariant: cut anywhere, the same text comes out, but for a line that is written over: of it the last state in each
piece is kept. Colours are kept as they are (SGR sequences, without hidden text), what erases a line is left out, and
every other control character is written out: no text is hidden but the earlier states of such a line.
"""

import re

from marin.base.text import printable

RESET = "\x1b[0m"
_SEQUENCE = re.compile(r"\x1b\[([0-9;:]*)m")
_ERASE = re.compile(r"\x1b\[[0-2]?K")
_UNFINISHED = re.compile(r"\x1b(\[[0-9;:]{0,32})?\Z")
_COLOUR = r"[34]8[;:](?:5[;:]\d+|2(?:[;:]\d*){3,4})"  # of 256, and of red, green and blue
_PLAIN = r"0*(?:[0-4]|7|9|2[1-9]|3[0-79]|4[0-79]|9[0-7]|10[0-7])?"
_KEPT = re.compile(rf"(?:{_COLOUR}|{_PLAIN})(?:;(?:{_COLOUR}|{_PLAIN}))*")


class TerminalText:
    """Takes text piece by piece, in order; gives what a terminal may show of it."""

    def __init__(self, *, colours: bool = True) -> None:
        self._colours = colours
        self._held = ""
        self._line_is_open = False
        self._coloured = False

    def feed(self, text: str) -> str:
        """Return what to write of this piece; the beginning of a sequence that is cut off is held back."""
        text = self._held + text
        cut = _UNFINISHED.search(text) or re.search(r"\r+\Z", text)
        self._held = text[cut.start() :] if cut else ""
        return self._shown(text[: cut.start()] if cut else text)

    def end(self) -> str:
        """Return what was held back, and end the line and its colour: another file follows."""
        held, self._held = self._held.rstrip("\r"), ""
        tail = self._shown(held) + (RESET if self._coloured else "") + ("\n" if self._line_is_open else "")
        self._line_is_open = self._coloured = False
        return tail

    def _shown(self, text: str) -> str:
        *whole, rest = text.split("\n")
        shown = "".join(self._line(line) + "\n" for line in whole)
        if rest:
            shown += self._line(rest)
            self._line_is_open = True
        return shown

    def _line(self, line: str) -> str:
        """Return the last state of a line that is written over, on a line of its own if its beginning stands there."""
        states = [state for state in _ERASE.sub("", line).split("\r") if state]
        again = "\n" if self._line_is_open and "\r" in line.rstrip("\r") else ""
        self._line_is_open = False
        return again + self._printable(states[-1] if states else "")

    def _printable(self, text: str) -> str:
        parts = _SEQUENCE.split(text)  # text and the sequences' numbers in turn
        shown = [printable(parts[0])]
        for numbers, after in zip(parts[1::2], parts[2::2], strict=True):
            shown.append(self._sequence(numbers))
            shown.append(printable(after))
        return "".join(shown)

    def _sequence(self, numbers: str) -> str:
        if not _KEPT.fullmatch(numbers):
            return printable(f"\x1b[{numbers}m")
        self._coloured = self._colours and numbers.lstrip("0") != ""
        return f"\x1b[{numbers}m" if self._colours else ""
