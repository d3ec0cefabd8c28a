"""The clip that comes with refkv. `bench/make_clip.py` cuts it anew."""

from __future__ import annotations

from pathlib import Path

from refkv_policy.video.clip import VideoError

SHIPPED_PROMPT = "a grey rabbit on green grass with blue sky"
SHIPPED_CREDIT = "Big Buck Bunny © 2008 Blender Foundation, www.bigbuckbunny.org, CC BY 3.0"


def shipped_clip() -> Path:
    """Path of the shipped clip. Raises VideoError where it is not installed."""
    path = Path(__file__).resolve().parent / "clips" / "bigbuckbunny.mp4"
    if not path.is_file():
        raise VideoError(f"the shipped clip is missing at {path}; install refkv again or give --video")
    return path
