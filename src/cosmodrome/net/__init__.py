"""Sockets: commands in, commands out, with deadlines and bounds. It knows nothing of topics or queues."""
