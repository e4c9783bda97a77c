"""Support code: nothing here knows what a federation is."""
