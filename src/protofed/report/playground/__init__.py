"""The playground: an exported model as one HTML file, which answers what is drawn on it."""

from protofed.report.playground.build import network_of, write_playground
from protofed.report.playground.runtime import read_runtime

__all__ = ["network_of", "read_runtime", "write_playground"]
