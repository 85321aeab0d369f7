"""`kvgrove savings`: what reuse saved, from what gateways and nodes count."""
