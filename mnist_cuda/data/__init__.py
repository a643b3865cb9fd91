"""The data sets: `dataset.load` is the one entry point, `catalogue.DATASETS` the table of what can be fetched."""
