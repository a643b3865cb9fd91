"""A training in a folder: options, steps, checkpoints, and how the folder is named on the command line."""
