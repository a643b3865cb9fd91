"""Comparisons: op by op, our engines against each other and against the peers."""
