"""Comparisons: our engines against each other and against the peers, each in a process of its own."""
