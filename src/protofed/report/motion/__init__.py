"""Prototypes in motion: features and prototypes of runs, round by round, in one plane."""

from protofed.report.motion.animation import check_format, write_animation
from protofed.report.motion.gathered import MovingLine, gather_motion

__all__ = ["MovingLine", "check_format", "gather_motion", "write_animation"]
