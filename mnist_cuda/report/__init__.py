"""What a run learnt and what a benchmark measured, as a page, as picture files and in the terminal."""
