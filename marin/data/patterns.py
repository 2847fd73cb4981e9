"""Patterns of personal data: regular expressions as configuration, checked when it is made.

Invariant: a pattern that exists compiles, matches no empty text, and has no varying repeat within another one of which
either has no small bound, from which Python's `re` may take exponential time. Alternatives that begin alike, repeated,
may take it too: they are not looked for. Built-in ones are bounded everywhere and ASCII only, so that they take linear
time on any text and mean the same on every Python.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from re import _constants, _parser  # type: ignore[attr-defined]  # the only way to see a pattern's structure
from typing import Any, Final

from pydantic import Field

from marin.base.config import Config
from marin.base.errors import ConfigurationError

_REPEATS = {_constants.MAX_REPEAT, _constants.MIN_REPEAT}
_LONG_REPEAT = 1000


class Pattern(Config):
    """What to look for, and the text that takes its place."""

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    """Counts and samples are kept under it."""
    regex: str
    """As Python's `re` takes it; flags stand in it, such as `(?i)`. Bound repeats: `{1,64}` rather than `+`."""
    replacement: str
    """Taken literally: no group is filled in."""

    def model_post_init(self, context: object, /) -> None:
        """Refuse what does not compile, what matches nothing, and what may take for ever."""
        where = f"Pattern {self.name!r}"
        try:
            compiled = re.compile(self.regex)
        except (re.error, OverflowError, RecursionError) as error:
            at = "" if getattr(error, "pos", None) is None else f" at character {error.pos}"  # type: ignore[union-attr]
            raise ConfigurationError(
                f"the regex of pattern {self.name!r} does not compile: {getattr(error, 'msg', error)}{at}",
                where=f"{where}: {self.regex}",
                hint="mend the regex; a literal `(`, `[`, `.`, `+`, `?` is written with a backslash before it",
            ) from None
        if compiled.match("") or not _parser.parse(self.regex).getwidth()[0]:
            raise ConfigurationError(
                f"the regex of pattern {self.name!r} matches the empty text",
                where=f"{where}: {self.regex}",
                hint="ask for at least one character: `+` or `{1,9}` in place of `*`",
            )
        if _nested(_parser.parse(self.regex)):
            raise ConfigurationError(
                f"the regex of pattern {self.name!r} repeats a repeat without a small bound, which may take for ever",
                where=f"{where}: {self.regex}",
                hint="give both small bounds, such as `{1,64}` in place of `+`, or repeat only one of them",
            )


@lru_cache(maxsize=256)
def compiled(pattern: Pattern) -> re.Pattern[str]:
    """Return the compiled pattern."""
    return re.compile(pattern.regex)


def _nested(parsed: Any, around: int = 1) -> bool:  # Any: the parser's own tree
    """Whether a repeat stands inside another, both vary in number, and one of them has no small bound.

    `around` is the most that the varying repeats around it can repeat.
    """
    for op, argument in parsed:
        most = int(argument[1]) if op in _REPEATS and argument[0] != argument[1] else 1
        if most > 1 and around > 1 and max(most, around) >= _LONG_REPEAT:
            return True
        if any(_nested(part, max(most, around)) for part in _parts(argument)):
            return True
    return False


def _parts(argument: Any) -> Iterator[Any]:  # Any: as in `_nested`
    """Yield the patterns inside an operation's argument."""
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for member in argument:
            yield from _parts(member)


EMAIL: Final = Pattern(
    name="email",
    regex=r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}"
    r"[A-Za-z]{2,63}(?![A-Za-z0-9])",
    replacement="|||EMAIL_ADDRESS|||",
)
"""Addresses with at most 64 characters before the `@` and labels of 63 (RFC 5321, section 4.5.3; RFC 1035, 2.3.4).

The replacements are those of Dolma (Soldaini et al. 2024).
"""

IPV4: Final = Pattern(
    name="ipv4",
    regex=r"(?<![0-9.])(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}"
    r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?![0-9]|\.[0-9])",
    replacement="|||IP_ADDRESS|||",
)
"""Four numbers up to 255 (RFC 3986, section 3.2.2), not inside longer runs; version numbers of four parts match too."""

PHONE: Final = Pattern(
    name="phone",
    regex=r"(?<![0-9A-Za-z+./-])(?:"
    r"\+(?=(?:[ .()-]{0,3}[0-9]){8,15}(?![0-9]))[1-9][0-9]{0,2}(?:[ .-]?\(?[0-9]{1,4}\)?){2,6}"
    r"|(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[.-])[2-9][0-9]{2}[.-][0-9]{4}"
    r")(?![0-9A-Za-z]|[.-][0-9])",
    replacement="|||PHONE_NUMBER|||",
)
"""International numbers, `+` and 8 to 15 digits (ITU-T E.164), and North American ones with separators (NANP).

Conservative: digits alone are never a phone number.
"""

BUILT_IN: Final = (EMAIL, IPV4, PHONE)
