"""`python -m protofed`."""

from protofed.cli import main

main()
