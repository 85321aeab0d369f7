"""A key for the first minutes with a fleet: made when no keys file is given, kept (0600) beside the state.

Its value is stored in clear so that a later `kvgrove up` can print the same working line; whoever may read the state
directory may read every secret of the fleet anyway. Pass a keys file of your own to do without it.
"""

from kvgrove_cli import api_keys
from kvgrove_cli.durable import write_atomically
from kvgrove_cli.state_dir import StateDir

TENANT = "development"
KEY_ID = "development"


def ensure(state_dir: StateDir) -> bool:
    """Make the keys file of the state directory, with the development key in it; whether it had to be made.

    A key that was revoked stays revoked: it is made only together with the keys file.
    """
    if state_dir.keys_file.exists():
        return False
    secret = api_keys.new_secret()
    write_atomically(state_dir.development_key_file, secret.encode())
    api_keys.create(state_dir.keys_file, secret=secret, key_id=KEY_ID, tenant=TENANT, explain=True, operator=True)
    return True


def usable(state_dir: StateDir) -> bool:
    """Whether the stored development key is in the keys file still."""
    if not state_dir.development_key_file.exists():
        return False
    digest = api_keys.hashed(state_dir.development_key_file.read_text())
    return any(key.sha256 == digest for key in api_keys.read(state_dir.keys_file))
