"""Fresh randomness for planning, from the operating system."""

import os


class SystemMint:
    """See `plan_state.Mint`."""

    def nonce(self) -> bytes:
        return os.urandom(16)

    def secret(self) -> bytes:
        return os.urandom(32)


SYSTEM_MINT = SystemMint()
