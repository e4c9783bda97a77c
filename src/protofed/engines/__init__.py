"""Engines: same interface, same results, different speed."""
