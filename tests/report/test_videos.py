"""The videos of a report: as they are where browsers play them, of one shape, or refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

av = pytest.importorskip("av", reason="PyAV is not installed")

from refkv_policy.report import ReportError  # noqa: E402
from refkv_policy.report.videos import players_in, players_of  # noqa: E402
from refkv_policy.video import VideoError, side_by_side, write_clip  # noqa: E402
from tests.report import sample  # noqa: E402


def test_videos_that_browsers_play_are_carried_byte_for_byte(tmp_path: Path) -> None:
    """The page holds the very files, so that their digests can be compared with the run's."""
    files = sample.write_videos(tmp_path)
    players = players_of(files)
    assert [p.label for p in players.panels] == ["input", "uncached", "planned"]
    assert [s.data for s in players.sources] == [files[p.label].read_bytes() for p in players.panels]
    assert (players.frames, players.fps, players.compared, players.notes) == (17, 16, True, ())


def test_an_input_of_another_shape_is_fitted_and_said_so(tmp_path: Path) -> None:
    """A longer, larger input at another rate is cropped, cut and timed as the outputs are."""
    files = sample.write_videos(tmp_path)
    write_clip(files["input"], sample.numbered(128, 128, 20), 24)
    players = players_of(files)
    source = players.sources[0]
    assert (source.width, source.height, source.frames, source.fps) == (96, 64, 17, 16)
    assert any("resized and cropped" in note for note in players.notes)
    assert any("written anew for browsers from 128x128, 20 frames at 24" in note for note in players.notes)


def test_outputs_of_different_shapes_are_refused(tmp_path: Path) -> None:
    """A difference of two videos that are not of one request would say nothing."""
    files = sample.write_videos(tmp_path)
    write_clip(files["planned"], sample.numbered(96, 64, 13), 16)
    with pytest.raises(ReportError, match=r"uncached.mp4 is 96x64, 17 frames.*the other is 96x64, 13 frames"):
        players_of(files)


def test_what_browsers_do_not_play_is_written_anew(tmp_path: Path) -> None:
    """Another codec becomes H.264 in 4:2:0, and the page says so."""
    path = tmp_path / "planned.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=Fraction(16))
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for picture in sample.numbered(frames=5):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    players = players_of({"planned": path})
    assert players.notes == ("planned: written anew for browsers from 96x64, 5 frames at 16 a second (mpeg4 yuv420p)",)
    assert b"avc1" in players.sources[0].data
    assert not players.compared


def test_a_run_folder_shows_the_panels_of_its_comparison(tmp_path: Path) -> None:
    """The three panels of compare.mp4 are cut out where `refkv run` put them; without one, the output is shown."""
    clips = [
        ("input", sample.numbered()),
        ("uncached", sample.numbered(offset=2)),
        ("planned", sample.numbered(offset=5)),
    ]
    write_clip(tmp_path / "output.mp4", clips[2][1], 16)
    alone = players_in(tmp_path)
    assert alone is not None
    assert [(p.label, p.crop) for p in alone.panels] == [("planned", (0, 0, 96, 64))]
    write_clip(tmp_path / "compare.mp4", side_by_side(clips), 16)
    players = players_in(tmp_path)
    assert players is not None
    assert [(p.label, p.crop) for p in players.panels] == [
        ("input", (0, 22, 384, 256)),
        ("uncached", (388, 22, 384, 256)),
        ("planned", (776, 22, 384, 256)),
    ]
    assert players_in(tmp_path / "nothing") is None


@pytest.mark.parametrize(("offset", "gain"), [(0, 1), (1, 128), (3, 64), (12, 16), (60, 4), (200, 1)])
def test_the_gain_of_a_difference_comes_from_it(tmp_path: Path, offset: int, gain: int) -> None:
    """A faint difference is enlarged so far that it can be seen, a strong one is left; the page says by how much."""
    still = np.full((4, 64, 96, 3), 20, np.uint8)
    for name, clip in (("uncached", still), ("planned", still + np.uint8(offset))):
        write_clip(tmp_path / f"{name}.mp4", clip, 16)
    players = players_of({name: tmp_path / f"{name}.mp4" for name in ("uncached", "planned")})
    assert abs(players.gain - gain) <= gain / 2, "coding may move a value by one"
    assert players.gap == "no value differs" if not offset else f"shown × {players.gain}" in players.gap


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_frame_that_cannot_be_decoded_does_not_stop_the_report(tmp_path: Path, share: float) -> None:
    """A file spoilt in its data still has its frames counted by its index; the difference says that it was not measured."""
    files = sample.write_videos(tmp_path)
    data = bytearray(files["planned"].read_bytes())
    start = data.rindex(b"mdat") + 4
    start += int(share * (len(data) - start))
    data[start:] = b"\xff" * (len(data) - start)
    files["planned"].write_bytes(bytes(data))
    players = players_of(files)
    assert (players.gain, players.gap.partition(" (")[0]) == (1, "not measured, for a frame cannot be decoded")


@pytest.mark.parametrize("content", [b"", b"not a video", b"\x00" * 4096])
def test_what_is_no_video_is_refused_with_a_sentence(tmp_path: Path, content: bytes) -> None:
    """Junk under a video's name is told, not embedded."""
    path = tmp_path / "planned.mp4"
    path.write_bytes(content)
    with pytest.raises(VideoError, match=r"planned.mp4 .*give another file"):
        players_of({"planned": path})


def test_only_the_three_videos_have_names(tmp_path: Path) -> None:
    """A fourth name is a mistake, and is not passed over."""
    with pytest.raises(ReportError, match="a video is input, uncached or planned, not outptu"):
        players_of({"outptu": tmp_path / "x.mp4"})
