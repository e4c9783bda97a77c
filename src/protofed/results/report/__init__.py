"""The report: one self-contained HTML file about runs and comparisons, and its figures for a paper."""

from protofed.results.report.content import gather
from protofed.results.report.page import write_report

__all__ = ["gather", "write_report"]
