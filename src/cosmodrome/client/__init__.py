"""Conversations with brokers: producers and consumers, written once, async; `blocking` runs them in a thread."""
