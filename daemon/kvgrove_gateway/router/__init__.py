"""Which node answers: residency index, block keys and the decision. Pure: no sockets, no clock of its own."""
