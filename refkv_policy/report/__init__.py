"""The report: one self-contained HTML file, and plots as PNG, of evidence, audit logs, drift figures and videos.

No torch. The page needs Jinja2, videos need PyAV, PNG plots need matplotlib: all in the extra `report`.
"""

from __future__ import annotations

from refkv_policy.report.errors import ReportError
from refkv_policy.report.inputs import Inputs, read_inputs
from refkv_policy.report.model import Report
from refkv_policy.report.write import make_report, write_page, write_plots

__all__ = ["Inputs", "Report", "ReportError", "make_report", "read_inputs", "write_page", "write_plots"]
