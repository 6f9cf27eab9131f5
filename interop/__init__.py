"""Cosmodrome beside Apache's own peers: their jars, small Java programs of ours, and the processes of both sides."""
