"""The access picture: where a warp's lanes go, as SVG. Of the lines that the emulator counted, those with most waste.

The guide draws with the same shapes. Banks and sectors follow from places in memory by the rules of docs/emulator.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

SECTOR, WORD, BANKS = 32, 4, 32  # bytes of a sector and of a bank's word
MOST_LINES = 3  # of the judge's picture
SECTOR_LEGEND = "8 boxes: a sector of 8 words; full: asked for; dashed: not"
WIDTH = 400
STYLE = """
text{font:13px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;fill:#1f2328}
.b{font-weight:600}.s{font-size:12px;fill:#59636e}.c{text-anchor:middle}.e{text-anchor:end}
.box{fill:#f6f8fa;stroke:#d1d9e0}.on{fill:#1a7f37;fill-opacity:.75;stroke:#1a7f37}
.half{fill:#1a7f37;fill-opacity:.25;stroke:#1a7f37}.off{fill:none;stroke:#afb8c1;stroke-dasharray:2 2}
.bad{fill:#cf222e;fill-opacity:.65;stroke:#cf222e}.line{stroke:#59636e;fill:none}.green{stroke:#1a7f37;fill:none;stroke-width:2}
.red{stroke:#cf222e;fill:none;stroke-width:2}
""".strip()
DARK = """
@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.s{fill:#9198a1}.box{fill:#151b23;stroke:#3d444d}
.on{fill:#3fb950;stroke:#3fb950}.half{fill:#3fb950;stroke:#3fb950}.off{stroke:#656c76}
.bad{fill:#f85149;stroke:#f85149}.line{stroke:#9198a1}.green{stroke:#3fb950}.red{stroke:#f85149}}
""".strip()


@dataclass
class Picture:
    """Shapes, and what they show in words."""

    title: str
    words: str
    height: float = 0
    shapes: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, style: str = "") -> None:
        self.shapes.append(f'<text x="{x:g}" y="{y:g}" class="{style}">{escape(words)}</text>')
        self.height = max(self.height, y + 8)

    def box(self, x: float, y: float, width: float, height: float, style: str = "box") -> None:
        size = f'width="{width:g}" height="{height:g}" rx="{min(2, width / 4):g}"'
        self.shapes.append(f'<rect x="{x:g}" y="{y:g}" {size} class="{style}"/>')
        self.height = max(self.height, y + height + 6)

    def line(self, *points: tuple[float, float], style: str = "line") -> None:
        self.shapes.append(f'<path d="M{"L".join(f"{x:g} {y:g}" for x, y in points)}" class="{style}"/>')
        self.height = max(self.height, *(y + 6 for _, y in points))

    @property
    def svg(self) -> str:
        box = f"0 0 {WIDTH} {self.height:g}"
        size = f'width="{1.4 * WIDTH:g}" height="{1.4 * self.height:g}"'
        start = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="{box}" {size}>'
        parts = [start, f"<title>{escape(self.title)}</title>", f"<desc>{escape(self.words)}</desc>"]
        return "\n".join([*parts, f"<style>{STYLE}\n{DARK}</style>", *self.shapes, "</svg>\n"])


def sectors_of(line: Mapping[str, Any]) -> list[int]:
    """The numbers of the sectors that the first access of a warp touched."""
    places = [first for first in line["first"] if first is not None]
    return sorted({byte // SECTOR for first in places for byte in range(first, first + line["bytes"])})


def draw_sectors(picture: Picture, x: float, y: float, sectors: Sequence[int], line: Mapping[str, Any]) -> None:
    """A box per sector, in it its 8 words, those filled that lanes asked for; pale: for some of its bytes."""
    asked = {byte for at in line["first"] if at is not None for byte in range(at, at + line["bytes"])}
    per_row = 16
    for k, sector in enumerate(sectors):
        left, top = x + 24 * (k % per_row), y + 16 * (k // per_row)
        for word in range(8):
            first = SECTOR * sector + WORD * word
            used = sum(byte in asked for byte in range(first, first + WORD))
            picture.box(left + 2.7 * word, top, 2.7, 12, "on" if used == WORD else "half" if used else "off")


def draw_banks(picture: Picture, y: float, words: Sequence[int]) -> float:
    """A column per bank, in it a box per different word that lanes asked for; returns where it ends.

    Words of one bank are read one after the other: red, where that takes longer than these words must.
    """
    of_bank: list[set[int]] = [set() for _ in range(BANKS)]
    for word in words:
        of_bank[word % BANKS].add(word)
    turns = max(map(len, of_bank))
    least = -(-sum(map(len, of_bank)) // BANKS)
    for bank, asked in enumerate(of_bank):
        x = 8 + 12 * bank
        picture.box(x, y, 11, 10, "off")
        for depth in range(len(asked)):
            picture.box(x, y + 4 * depth, 11, 3 if turns > 1 else 10, "bad" if turns > least else "on")
    y += max(4 * turns, 10) + 18
    picture.text(8, y, "bank 0", "s")
    picture.text(392, y, f"bank {BANKS - 1}", "s e")
    return y


def draw(lines: Sequence[Mapping[str, Any]]) -> Picture:
    """Of verdict.Counters.lines the first few."""
    picture, y, said = Picture("Where the lanes of a warp go", ""), 0.0, []
    lines = lines[:MOST_LINES]
    for line in lines:
        each, least = (line[name] / line["accesses"] for name in ("cost", "least"))
        unit = "sectors of 32 bytes" if line["unit"] == "sectors" else "turns of the banks"
        what = f"{line['file']}:{line['line']} {'writes' if line['write'] else 'reads'} {line['array']}"
        cost = f"{each:.1f} {unit} a warp, {least:.1f} at best"
        said.append(f"{what}: {cost}")
        picture.text(8, y + 18, what, "b")
        picture.text(8, y + 36, cost, "s")
        if line["unit"] == "sectors":
            draw_sectors(picture, 8, y + 46, sectors_of(line), line)
        else:
            words, end = range(max(1, line["bytes"] // WORD)), y + 28
            together = 16 if line["bytes"] == 16 else 32  # lanes
            for lane in range(0, 32, together):
                lanes = [at for at in line["first"][lane : lane + together] if at is not None]
                end = draw_banks(picture, end + 18, [at // WORD + k for at in lanes for k in words])
        y = picture.height + 6
    if any(line["unit"] == "sectors" for line in lines):
        picture.text(8, y + 12, f"{SECTOR_LEGEND}; pale: in part", "s")
        y += 18
    if any(line["unit"] == "turns" for line in lines):
        picture.text(8, y + 12, "a column: a bank; a box in it: a word that lanes asked for", "s")
    picture.words = "; ".join(said) + "."
    return picture
