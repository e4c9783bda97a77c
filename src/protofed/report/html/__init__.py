"""The report: one self-contained HTML file about runs and comparisons, and its figures for a paper."""

from protofed.report.html.content import gather
from protofed.report.html.file import write_report

__all__ = ["gather", "write_report"]
