"""The heavy libraries: asked for in one place, quietened, and a sentence where they are missing."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from refkv_policy.cli.group import Failure, say
from refkv_policy.cli.model_folder import ModelFolder
from refkv_policy.cli.progress import hint

if TYPE_CHECKING:
    import torch
    from diffusers import WanVACEPipeline

    from refkv_policy.plan import Sampler

DTYPES = ("float32", "bfloat16", "float16")
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""How threads of OpenMP wait for each other: asleep. The last two are of one implementation each (GNU's, and LLVM's)."""


def wait_passively() -> None:
    """Let torch's threads sleep while they wait for each other, unless the environment already says how they wait.

    Otherwise they spin: beside one other busy process, each barrier lasts until the thread that was put off its core comes
    back, and the others burn the cores that it waits for. It is read once, when torch is loaded: call this before.
    """
    if not WAITING.keys() & os.environ.keys():
        os.environ.update(WAITING)


@contextmanager
def needs_run_extra() -> Iterator[None]:
    """Around every import of a heavy library: turns a missing one into a sentence. Raises Failure."""
    wait_passively()
    try:
        yield
    except ModuleNotFoundError as error:
        raise Failure(f"this needs {error.name}: pip install 'refkv-policy[run]'") from error


def quieten() -> None:
    """Let the libraries' loading bars and advice not mix with our output; errors still show."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import diffusers
    import transformers

    diffusers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)


def choose_device(wanted: str | None) -> torch.device:
    """The device asked for, or the best there is. Raises Failure for one that is not there."""
    if "torch" not in sys.modules:
        hint("loading torch …")
    with needs_run_extra():
        import torch
    if wanted is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except Exception as error:  # each backend raises its own kind
        reason = str(error).strip().splitlines()[0]
        raise Failure(f"--device {wanted} cannot be used here: {reason}; leave it out, or say cpu") from error
    return device


def choose_dtype(wanted: str | None, device: torch.device) -> torch.dtype:
    """The dtype asked for, or bfloat16 on an accelerator and float32 on a CPU."""
    import torch

    name = wanted or ("float32" if device.type == "cpu" else "bfloat16")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def load_pipeline(
    model: ModelFolder, dtype: torch.dtype, device: torch.device, offload: bool, sampler: Sampler
) -> WanVACEPipeline:
    """The pipeline of a folder on its device; its VAE in float32, as the model's authors advise.

    sampler: the plan's, which replaces the folder's: whoever reviewed the plan reviewed it for that grid, and a shift
    belongs to a resolution rather than to the weights. Raises Failure.
    """
    hint(f"loading {model.name} …")
    with needs_run_extra():
        import torch
        from diffusers import WanVACEPipeline

        from refkv_policy.runtime.schedulers import scheduler_for
    quieten()
    if offload and device.type == "cpu":
        raise Failure("--offload moves parts between an accelerator and host memory; there is no accelerator in use")
    dtypes: dict[str, Any] = {"default": dtype, "vae": torch.float32}
    try:
        pipe = WanVACEPipeline.from_pretrained(
            model.path, torch_dtype=dtypes, use_safetensors=True, local_files_only=True
        )
    except (OSError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise Failure(f"{model.path} cannot be loaded: {reason}; check that the folder is whole") from error
    pipe.set_progress_bar_config(disable=True)
    own, pipe.scheduler = pipe.scheduler, scheduler_for(sampler, pipe.scheduler)
    if pipe.scheduler is not own:
        was, shift = type(own).__name__, own.config.get("flow_shift", own.config.get("shift"))
        plans = f"flow_shift {sampler.flow_shift:g}"
        if type(pipe.scheduler) is not type(own):
            plans, shift = f"sampler {sampler.name} with {plans}", was
        say(f"note: {plans}, as the plan says, instead of the model folder's {shift}")
    if offload:
        pipe.enable_model_cpu_offload(device=device)
    else:
        pipe.to(device)
    return pipe
