"""Several processes that train one model: which one this is, how they meet, and what they say to each other."""
