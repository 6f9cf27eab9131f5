"""Copies of the log on other brokers: the master's side (`leader`), a slave's side (`follower`), and what is safe."""
