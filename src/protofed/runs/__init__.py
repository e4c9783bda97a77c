"""One run: the loop over rounds, its folder, checkpoint, result and progress."""
