"""Many trainings of one engine on the same data: what they are, who trains them, what is kept of them."""
