"""Words the embedded model knows: colours, shapes, caption words, and the pairs kept out of training. No torch."""

from __future__ import annotations

# sRGB, 0..255. Brightness is the control's to say, hue the prompt's: see `scenes.tone`.
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "orange": (240, 140, 30),
    "yellow": (240, 220, 50),
    "green": (50, 170, 60),
    "cyan": (60, 200, 210),
    "blue": (50, 80, 220),
    "purple": (140, 60, 190),
    "pink": (240, 110, 180),
    "grey": (128, 128, 128),
}

SHAPES = ("circle", "square", "triangle", "star", "ring", "cross", "diamond", "heart")

# (shape, colour) pairs that no training caption or clip contains: they belong to the test set.
HELD_OUT_PAIRS: frozenset[tuple[str, str]] = frozenset(
    {
        ("circle", "green"),
        ("square", "purple"),
        ("triangle", "blue"),
        ("star", "red"),
        ("ring", "yellow"),
        ("cross", "orange"),
        ("diamond", "cyan"),
        ("heart", "pink"),
    }
)

_OTHER_WORDS = """
a an the and on in of with at by to from over under near behind front is are it its this that
background shape shapes object objects moving drifting left right up down slowly still turning growing
video clip movie film photo photograph picture image scene animated cartoon street road
rabbit bunny butterfly grass meadow tree trees sky hill flower flowers bird apple
bike bikes bicycle bicycles cyclist cyclists rider riders people person man woman child city park traffic car bus
astronaut suit flag portrait cat fur face coffee cup table spoon rocket launch tower smoke motorcycle garage
eye retina galaxy galaxies space stars cell cells tissue microscope temple building pagoda roof house petals
wall wheel helmet shirt night day sun light dark bright soft small large big round red-brown
black white brown gold silver beige tan violet magenta gray teal
one two three many some no not
"""

WORDS: tuple[str, ...] = tuple(dict.fromkeys([*COLOURS, *SHAPES, *_OTHER_WORDS.replace("-", " ").split()]))
PIECES = "abcdefghijklmnopqrstuvwxyz0123456789"
SPECIAL = ("<pad>", "</s>", "<unk>")


def token_table() -> dict[str, int]:
    """Token to id: specials, words, then single letters (`x`, `##x`) so that any word can be spelled."""
    tokens = [*SPECIAL, *WORDS, ".", ","]
    tokens += [c for c in PIECES if c not in tokens] + [f"##{c}" for c in PIECES]
    return {token: i for i, token in enumerate(tokens)}
