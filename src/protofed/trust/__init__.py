"""Whom to believe: what may come in from outside."""
