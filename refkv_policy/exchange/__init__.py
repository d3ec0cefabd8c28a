"""Exchange with serving engines: their settings become a plan, and of a plan what they can say. No torch."""

from __future__ import annotations

from refkv_policy.exchange.flags import read_flags
from refkv_policy.exchange.plan_text import OperatingPoint, check_text, plan_text
from refkv_policy.exchange.settings import AttentionSettings, ExchangeError, RefTargetKVCacheConfig, Settings
from refkv_policy.exchange.vllm_omni import RELEASE, Export, LeftOut, export_plan
from refkv_policy.exchange.yaml_files import parse_config, parse_deploy

__all__ = [
    "RELEASE",
    "AttentionSettings",
    "ExchangeError",
    "Export",
    "LeftOut",
    "OperatingPoint",
    "RefTargetKVCacheConfig",
    "Settings",
    "check_text",
    "export_plan",
    "parse_config",
    "parse_deploy",
    "plan_text",
    "read_flags",
]
