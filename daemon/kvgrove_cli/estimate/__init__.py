"""`kvgrove estimate`: what a model's prompts take in the cache, from its config alone."""
