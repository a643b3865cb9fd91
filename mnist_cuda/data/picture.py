"""A digit as text for a terminal: 28 columns and 14 lines, a character for two pixels, one above the other."""

from __future__ import annotations

from rich.console import Console

from mnist_cuda.data.idx import Images
from mnist_cuda.terminal.console import coloured

_BLOCKS = "▀ ░▒▓█"
_ASCII = " .:+%#@"


def shades(encoding: str) -> str:
    """Characters from none to all of their cell, as an output of this encoding has them."""
    try:
        _BLOCKS.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return _ASCII
    return _BLOCKS[1:]


def render(image: Images, *, colour: bool, encoding: str) -> str:
    """The text of an image (28,28) uint8, bright on dark.

    colour: shade both pixels of a half block in one of 24 greys (ANSI escapes), else the character's density is the
    pair's mean. encoding: the output's; ASCII characters where it has no blocks.
    """
    characters = shades(encoding)
    if not colour or characters == _ASCII:
        return _by_density(image, characters)
    lines = []
    for above, below in zip(image[::2] // 11 + 232, image[1::2] // 11 + 232, strict=True):
        cells = (f"\x1b[38;5;{a};48;5;{b}m▀" for a, b in zip(above, below, strict=True))
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines)


def _by_density(image: Images, characters: str) -> str:
    mean = (image[::2].astype(int) + image[1::2]) // 2
    return "\n".join("".join(characters[value * len(characters) // 256] for value in row) for row in mean)


def print_image(console: Console, image: Images, title: str) -> None:
    """Print a line of text, and below it the image (28,28)."""
    console.print(title)
    console.file.write(render(image, colour=coloured(console), encoding=console.encoding) + "\n")
