"""The judge of `mnist-cuda judge`: files with a kernel of one of the ladder's ops, run on cases and compared."""
