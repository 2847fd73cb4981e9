"""Text from elsewhere (a user's names, messages, what storage answered) as text that a terminal only shows."""


def printable(text: str) -> str:
    """Return text without power over a terminal: what would move its cursor or change its state is written out."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text)


def one_line(text: str) -> str:
    """Return printable text on one line: a line break in it is written out as well."""
    return printable(text).replace("\n", "\\n")
