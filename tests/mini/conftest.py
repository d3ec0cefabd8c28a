"""Tests of the embedded model need torch; those of its data also the packages the data comes from."""

from importlib.util import find_spec

collect_ignore = []
if not (find_spec("torch") and find_spec("diffusers")):
    collect_ignore += ["test_mini_model.py", "test_mini_data.py"]
elif not all(find_spec(name) for name in ("skvideo", "skimage", "sklearn")):
    collect_ignore += ["test_mini_data.py"]
