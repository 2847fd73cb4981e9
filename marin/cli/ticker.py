"""How far long work on a store is: one line that is written over on a terminal, a line now and then elsewhere."""

import sys
import time

import click

FIRST_SECONDS = 1.0
LINE_SECONDS = 30.0
_REDRAW_SECONDS = 0.2


class Ticker:
    """Says on standard error how far work is that takes longer than a second."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._next = time.monotonic() + (FIRST_SECONDS if self._is_terminal else LINE_SECONDS)
        self._drawn = False

    def say(self, text: str) -> None:
        """Show `text` if enough time has passed since the last."""
        now = time.monotonic()
        if now < self._next:
            return
        if self._is_terminal:
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)
            self._drawn = True
        else:
            click.echo(text, err=True)
        self._next = now + (_REDRAW_SECONDS if self._is_terminal else LINE_SECONDS)

    def close(self) -> None:
        """Leave no half line behind."""
        if self._drawn:
            click.echo("\r\x1b[K", err=True, nl=False)
