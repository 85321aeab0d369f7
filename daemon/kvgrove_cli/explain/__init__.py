"""`kvgrove explain`: where two prompts part and why tokens were missed, asked of a fleet or worked out from files."""
