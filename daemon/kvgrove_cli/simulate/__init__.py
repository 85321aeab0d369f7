"""The gateway's own router over simulated nodes and clocks: what a routing policy does to hits, balance and waiting."""
