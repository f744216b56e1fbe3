"""Greets people in their language."""
