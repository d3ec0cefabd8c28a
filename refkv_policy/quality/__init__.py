"""What a plan costs in quality: metrics of a clip against the uncached run's, and the feature models they use.

Needs torch. A video is float32 (frames, height, width, 3), RGB in [0, 1].
"""

from __future__ import annotations

from refkv_policy.quality.features import DINOv2, EfficientNetLite0, feature_model
from refkv_policy.quality.metrics import Comparison, FeatureFigures, FeatureModel, Figure, MeasureError, Motion, compare

__all__ = [
    "Comparison",
    "DINOv2",
    "EfficientNetLite0",
    "FeatureFigures",
    "FeatureModel",
    "Figure",
    "MeasureError",
    "Motion",
    "compare",
    "feature_model",
]
