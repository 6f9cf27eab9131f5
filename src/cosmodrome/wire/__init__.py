"""Bytes ↔ objects. Everything here is pure: no socket, no file, no clock."""
