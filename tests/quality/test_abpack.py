"""The blind pack and the ratings: what a rater's page holds, and what is taken back."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from collections.abc import Callable
from html.parser import HTMLParser
from math import sqrt
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from refkv_policy.quality.abpack import (
    LEFT,
    RIGHT,
    SAME,
    RatingsError,
    Shown,
    check_pack,
    key_path,
    page,
    read_ratings,
    write_pack,
)

TABLE = "sha256:" + "t" * 64
DARK, BRIGHT = 40, 200
"""Grey levels of the planned and the uncached clip of these tests."""


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of six pairs and one of two equal sides."""
    folder = tmp_path_factory.mktemp("ab") / "pack"
    shown = [Shown(f"secret-{i}.mp4", 7, _grey(DARK), _grey(BRIGHT), 8.0) for i in range(6)]
    write_pack(folder, shown, {"plan": "secret-plan", "table": TABLE}, random.Random(3))
    return folder


def _grey(level: int) -> np.ndarray:
    return np.full((3, 16, 16, 3), level, np.uint8)


def _key(pack: Path) -> dict[str, Any]:
    return json.loads(key_path(pack).read_text())


def _answers(of: Path, folder: Path, name: str, choose: Callable[[dict[str, Any]], str], **changes: Any) -> Path:
    key = _key(of)
    answers = {str(p["pair"]): choose(p) for p in key["pairs"]}
    value = {
        "format": 1,
        "kind": "refkv-ab-answers",
        "pack": key["pack"],
        "rater": name,
        "answers": answers,
        **changes,
    }
    path = folder / f"{name.strip()}.json"
    path.write_text(json.dumps(value))
    return path


def _videos(pack: Path) -> list[np.ndarray]:
    """The frames of each pair, as the page holds them."""
    text = (pack / "index.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    found = []
    for number, video in enumerate(data["videos"]):
        file = pack.parent / f"{number}.mp4"
        file.write_bytes(base64.b64decode(video))
        with av.open(str(file)) as container:
            found.append(np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]))
    return found


def test_the_key_tells_which_side_is_which_and_the_page_does_not(pack: Path) -> None:
    """Sides in the videos are as the key has them, both orders occur, and nothing in the page names clip, plan or side."""
    sides = {p["pair"]: p["planned"] for p in _key(pack)["pairs"]}
    assert set(sides.values()) == {LEFT, RIGHT, None}
    for number, frames in enumerate(_videos(pack), 1):
        middle = frames.shape[2] // 2
        left, right = frames[:, :, : middle - 16].mean(), frames[:, :, middle + 16 :].mean()
        expected = {LEFT: (DARK, BRIGHT), RIGHT: (BRIGHT, DARK), None: (BRIGHT, BRIGHT)}[sides[number]]
        assert (left, right) == pytest.approx(expected, abs=4)
    text = (pack / "index.html").read_text()
    assert "secret" not in text
    assert "planned" not in text
    assert {p.name for p in pack.iterdir()} == {"index.html"}


def test_the_page_loads_nothing_and_holds_whatever_it_is_given(pack: Path) -> None:
    """No address but data of its own, a policy that forbids any, and no text can close the element it stands in."""
    text = (pack / "index.html").read_text()
    assert not re.search(
        r"https?://|//[a-z]|\bsrc=|\bhref=|@import|url\(", re.sub(r'id="data">.*?</script>', "", text, flags=re.DOTALL)
    )
    assert "default-src 'none'" in text
    evil = page("</script><script>alert(1)</script>&", ["<!--", "]]>"])
    scripts: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag == "script":
                scripts.append(tag)

    Reader().feed(evil)
    assert len(scripts) == 2
    data = json.loads(re.search(r'id="data">(.*?)</script>', evil, re.DOTALL)[1])  # type: ignore[index]
    assert data["pack"] == "</script><script>alert(1)</script>&"


def test_the_policy_names_the_page_s_own_style_and_script(pack: Path) -> None:
    """Their hashes are worked out here anew from what stands in the page; nothing else may run or style it."""
    text = (pack / "index.html").read_text()
    for kind in ("style", "script"):
        inside = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        assert len(inside) == 1
        digest = base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in text
    assert "unsafe" not in text
    assert "You will see 7 pairs" in text


def test_shares_and_their_interval(pack: Path, tmp_path: Path) -> None:
    """What did not call the planned side worse saw no degradation; Wilson's interval by its formula."""
    always = _answers(pack, tmp_path, "always", lambda p: p["planned"] or LEFT)
    never = _answers(pack, tmp_path, "never", lambda p: SAME)
    other = _answers(pack, tmp_path, "other", lambda p: {LEFT: RIGHT, RIGHT: LEFT, None: SAME}[p["planned"]])
    ratings = read_ratings(key_path(pack), [always, never, other], {"table": TABLE})
    assert (ratings.raters, ratings.pairs, ratings.answers, ratings.unnoticed) == (3, 6, 18, 12)
    assert (ratings.controls, ratings.false_alarms) == (3, 1)
    assert ratings.share == 12 / 18
    z, n, p = 1.959964, 18, 12 / 18
    centre, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = ((centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n))
    assert (ratings.interval.low, ratings.interval.high) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"pack": "0" * 64}, "answers another pack"),
        ({"kind": "refkv-ab-key"}, "is not a file of answers"),
        ({"format": 2}, "is not a file of answers"),
        ({"rater": " "}, "names no rater"),
        ({"answers": {"1": SAME}}, "answers 1 of 7 pairs"),
        ({"answers": {"99": SAME}}, "does not have"),
        ({"answers": [SAME]}, "does not have"),
        ({"answers": {str(i): "worse" for i in range(1, 8)}}, "is none of left, same, right"),
    ],
)
def test_answers_that_are_refused(pack: Path, tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    """Answers of another pack, unfinished or spoilt ones are refused by name, not counted in part."""
    file = _answers(pack, tmp_path, "one", lambda p: SAME, **changes)
    with pytest.raises(RatingsError, match=text):
        read_ratings(key_path(pack), [file])


def test_a_rater_counts_once_and_a_key_is_of_one_table(pack: Path, tmp_path: Path) -> None:
    """The same name in other letters is the same rater; a pack of another table says nothing of this plan."""
    first = _answers(pack, tmp_path, "Ann", lambda p: SAME)
    for again in ("ann ", "\uff21nn", "An\u200bn"):
        second = _answers(pack, tmp_path, "second", lambda p: SAME, rater=again)
        with pytest.raises(RatingsError, match="a rater counts once"):
            read_ratings(key_path(pack), [first, second])
    accents = [_answers(pack, tmp_path, f"r{i}", lambda p: SAME, rater=r) for i, r in enumerate(("é", "e\u0301"))]
    with pytest.raises(RatingsError, match="a rater counts once"):
        read_ratings(key_path(pack), accents)
    with pytest.raises(RatingsError, match="names no rater"):
        read_ratings(key_path(pack), [_answers(pack, tmp_path, "none", lambda p: SAME, rater="\u200b")])


def test_a_key_is_of_one_pack(pack: Path, tmp_path: Path) -> None:
    """Made of another table, other weights or other clips, what raters saw says nothing of this plan."""
    file = _answers(pack, tmp_path, "Ann", lambda p: SAME)
    for name in ("table", "weights", "clips"):
        with pytest.raises(RatingsError, match=rf"made otherwise \({name}\)"):
            read_ratings(key_path(pack), [file], {name: "sha256:" + "0" * 64})
    text = file.read_text().replace('"answers":', '"answers": {}, "answers":', 1)
    assert text.count('"answers"') == 2
    (tmp_path / "twice.json").write_text(text)
    with pytest.raises(RatingsError, match="is no JSON"):
        read_ratings(key_path(pack), [tmp_path / "twice.json"])


def test_a_pack_is_not_written_over(pack: Path, tmp_path: Path) -> None:
    """Its key is the only one that its raters' answers can be read with. What is in the way is told before any work."""
    before = key_path(pack).read_bytes()
    shown = [Shown("a.mp4", 7, _grey(DARK), _grey(BRIGHT), 8.0)]
    with pytest.raises(RatingsError, match="is there already"):
        write_pack(pack, shown, {})
    assert key_path(pack).read_bytes() == before
    for folder in (Path("."), Path("/")):
        with pytest.raises(RatingsError, match="leaves no name"):
            check_pack(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(RatingsError, match="is not a folder"):
        check_pack(tmp_path / "file" / "pack")


@pytest.mark.parametrize("text", ["", "[]", "{}", "{" * 100_000, '{"kind": "refkv-ab-key", "format": 1, "pairs": [1]}'])
def test_a_key_that_is_none(tmp_path: Path, text: str) -> None:
    """Whatever the file holds, a sentence."""
    (tmp_path / "key.json").write_text(text)
    with pytest.raises(RatingsError, match=r"key\.json"):
        read_ratings(tmp_path / "key.json", [])
    with pytest.raises(RatingsError, match="cannot be read"):
        read_ratings(tmp_path / "none.json", [])
