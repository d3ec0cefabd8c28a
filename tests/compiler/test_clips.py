"""What clips a model makes is the model's own: the language takes any size and length, the compiler asks the profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from refkv_policy.compiler import check_plan, compile_plan
from refkv_policy.plan import Plan, PlanError, load_plan
from refkv_policy.profiles import FOLDER, ClipError, Profile, load_profile
from tests.plans import plan_of, plan_text

TEXT = "  - {name: text, tier: P0, method: text_kv, at: 'main[all].text_kv'}\n"
OTHER = (
    (FOLDER / "wan2.1-t2v-1.3b.yaml").read_text(encoding="utf-8").replace("name: wan2.1-t2v-1.3b", "name: other")
    .replace("patch: [1, 2, 2]", "patch: [1, 1, 1]").replace("vae_scale: [4, 8]", "vae_scale: [8, 32]")
)  # fmt: skip
"""A model whose VAE keeps every eighth frame and every 32nd pixel, as LTX-Video's does."""


def other(folder: Path, shape: str, *, models: str = "[other.yaml]") -> Plan:
    """A plan for that model."""
    (folder / "other.yaml").write_text(OTHER, encoding="utf-8")
    (folder / "plan.yaml").write_text(plan_text(TEXT, models=models, shape=shape, rest=""), encoding="utf-8")
    return load_plan(folder / "plan.yaml")


def told(plan: Plan) -> list[tuple[str, int, str]]:
    """Code, column and help of what the compiler finds."""
    return [(d.code, d.span.column if d.span else 0, d.help) for d in check_plan(plan)]


@pytest.mark.parametrize(
    "shape", ["{size: 768x512, frames: 121}", "{size: 704x480, frames: 1}", "{size: 32x32, frames: 9}"]
)
def test_another_models_clips_are_taken(tmp_path: Path, shape: str) -> None:
    """8n + 1 frames and sides of 32 pixels are sound where the model takes them."""
    assert told(other(tmp_path, shape)) == []


@pytest.mark.parametrize(
    ("shape", "code", "help"),
    [
        ("{size: 768x512, frames: 85}", "RKV114", "write 81 or 89"),
        ("{size: 768x512, frames: 2}", "RKV114", "write 1 or 9"),
        ("{size: 848x512, frames: 81}", "RKV115", "write 864x512"),
        ("{size: 16x16, frames: 81}", "RKV115", "write 32x32"),
    ],
)
def test_what_another_model_does_not_make_is_told(tmp_path: Path, shape: str, code: str, help: str) -> None:
    """Clips that Wan makes and this model does not are errors at their place, with the nearest that it makes."""
    assert [(c, h) for c, _, h in told(other(tmp_path, shape))] == [(code, help)]


@pytest.mark.parametrize(
    ("shape", "help"),
    [
        ("{size: 832x480, frames: 80}", "write 77 or 81"),
        ("{size: 832x480, frames: 2}", "write 1 or 5"),
        ("{size: 850x479, frames: 81}", "write 848x480"),
        ("{size: 1x1, frames: 81}", "write 16x16"),
    ],
)
@pytest.mark.parametrize("model", ["wan2.1-vace-1.3b", "wan2.1-t2v-14b"])
def test_the_help_is_the_nearest_clip(model: str, shape: str, help: str) -> None:
    """Both Wan families take 4n + 1 frames and sides of 16 pixels; the help names the text to write."""
    assert [h for _, _, h in told(plan_of(TEXT, models=f"[{model}]", shape=shape, rest=""))] == [help]


def test_each_model_of_a_plan_is_asked(tmp_path: Path) -> None:
    """A clip that one of a plan's models makes and another does not is told for that other one."""
    plan = other(tmp_path, "{size: 832x480, frames: 85}", models="[wan2.1-t2v-1.3b, other.yaml]")
    (found,) = check_plan(plan)
    assert "other takes 8n+1" in found.message
    assert compile_plan(plan, "wan2.1-t2v-1.3b", 12).profile == "wan2.1-t2v-1.3b"
    with pytest.raises(PlanError, match="RKV114"):
        compile_plan(plan, "other", 12)


def test_a_plan_for_any_model_is_checked_when_there_is_one() -> None:
    """Before a model is known no clip is wrong; compiled for one, it is the model's."""
    plan = plan_of(TEXT, models="[any]", shape="{size: 100x100, frames: 10}", rest="")
    assert told(plan) == []
    with pytest.raises(PlanError, match=r"(?s)RKV115.*RKV114"):
        compile_plan(plan, "wan2.1-t2v-1.3b", 12)


@pytest.mark.parametrize(
    ("clip", "field"), [((0, 16, 1), "size"), ((16, -16, 1), "size"), ((16, 16, 0), "frames"), ((16, 16, -3), "frames")]
)
def test_tokens_of_no_clip_are_an_error(clip: tuple[int, int, int], field: str) -> None:
    """Nothing is no clip, and its error tells the field."""
    with pytest.raises(ClipError) as caught:
        load_profile("wan2.1-t2v-1.3b").tokens(*clip)
    assert caught.value.field == field


def test_faults_are_told_together() -> None:
    """Size and length are looked at both, in that order."""
    profile: Profile = load_profile("wan2.1-vace-mini")
    assert [fault.field for fault in profile.clip_faults(100, 96, 16)] == ["size", "frames"]
    assert profile.clip_faults(96, 96, 17) == ()
