"""The embedded model: a small Wan VACE, really trained, that runs anywhere in seconds.

Importing this package loads neither torch nor diffusers; `architecture` does. How the model was made: `recipes/mini`.
"""

from __future__ import annotations

from pathlib import Path

MODEL_NAME = "wan2.1-vace-mini"

__all__ = ["MODEL_NAME", "model_path"]


def model_path() -> Path:
    """Folder of the shipped weights, in diffusers format. Raises FileNotFoundError where they are not installed."""
    path = Path(__file__).resolve().parent / MODEL_NAME
    if not (path / "model_index.json").is_file():
        raise FileNotFoundError(
            f"no weights at {path}: install refkv-policy anew, or make them in a checkout: `python -m recipes.mini.train`"
        )
    return path
