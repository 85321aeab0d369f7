"""Links with keys: who gets in, who does not and is counted, and how keys are changed without anybody staying out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import zmq
import zmq.asyncio
from link_rig import Member, Planner, bound, over_loopback, until
from zmq.auth import load_certificate

from kvgrove_link.frames import configure
from kvgrove_link.gatekeeper import Gatekeeper, dial_with
from kvgrove_link.link_keys import OPERATOR, DirectoryKeys, HeldKeys, KeyPair, LinkKeysUnusable, certificate
from kvgrove_link.link_keys import fresh_pair as pair
from kvgrove_link.security import LinksOpen, link_keys
from kvgrove_protocol.control import DAEMON, GATEWAY, TO_PLANNER, Hello

ROLES = (OPERATOR, DAEMON, GATEWAY)
_STAYS_OUT_S = 0.5


def keyrings(pairs: dict[str, KeyPair]) -> dict[str, HeldKeys]:
    publics = {role: (each.public,) for role, each in pairs.items()}
    return {role: HeldKeys(each, lambda: publics) for role, each in pairs.items()}


@pytest.fixture
def pairs() -> dict[str, KeyPair]:
    return {role: pair() for role in ROLES}


def test_members_with_keys_of_their_role_get_in(pairs: dict[str, KeyPair]) -> None:
    rings = keyrings(pairs)

    @over_loopback
    async def run(context: zmq.asyncio.Context) -> None:
        planner = Planner(context, keys=rings[OPERATOR])
        members = [Member(context, planner.socket.address, keys=rings[role], role=role) for role in (DAEMON, GATEWAY)]
        await until(lambda: all(member.leased for member in members))
        for member in members:
            await member.link.close()
            await member.task
        assert planner.socket.counters.refused == {}
        await planner.stop()

    run()


@pytest.mark.parametrize("who", ["no keys", "a stale key", "another server's key"])
def test_a_peer_without_the_right_keys_gets_nothing_and_is_counted(pairs: dict[str, KeyPair], who: str) -> None:
    rings = keyrings(pairs)
    publics = {OPERATOR: (pairs[OPERATOR].public,)}
    keys = {
        "no keys": None,
        "a stale key": HeldKeys(pair(), lambda: publics),
        "another server's key": HeldKeys(pairs[DAEMON], lambda: {OPERATOR: (pair().public,)}),
    }[who]
    why = {"no keys": "no_curve", "a stale key": "unknown_key", "another server's key": "no_curve"}[who]

    @over_loopback
    async def run(context: zmq.asyncio.Context) -> None:
        planner = Planner(context, keys=rings[OPERATOR])
        member = Member(context, planner.socket.address, keys=keys)
        await until(lambda: planner.socket.counters.refused.get(why, 0) > 1)
        await asyncio.sleep(_STAYS_OUT_S)
        assert planner.heard == []
        assert not member.link.connected
        await member.link.close()
        await member.task
        await planner.stop()

    run()


def test_a_key_of_one_role_does_not_make_a_member_of_another(pairs: dict[str, KeyPair]) -> None:
    rings = keyrings(pairs)

    @over_loopback
    async def run(context: zmq.asyncio.Context) -> None:
        planner = Planner(context, keys=rings[OPERATOR])
        member = Member(context, planner.socket.address, keys=rings[GATEWAY], role=DAEMON)
        await until(lambda: member.link.counters.lost.get("wrong_role", 0) > 0)
        assert not any(isinstance(heard, Hello) for heard in planner.heard)
        assert planner.socket.counters.wrong_role > 0
        await member.link.close()
        await member.task
        await planner.stop()

    run()


def test_a_socket_admits_only_the_roles_that_have_business_with_it(pairs: dict[str, KeyPair]) -> None:
    rings = keyrings(pairs)

    @over_loopback
    async def run(context: zmq.asyncio.Context) -> None:
        refused: list[str] = []
        gate = Gatekeeper(context, rings[DAEMON], refused=refused.append)
        server = context.socket(zmq.ROUTER)
        configure(server)
        gate.guard(server, "data", (GATEWAY,))
        server.bind("tcp://127.0.0.1:*")
        address = server.getsockopt_string(zmq.LAST_ENDPOINT)
        clients = {}
        for role in (OPERATOR, GATEWAY):
            client = clients[role] = context.socket(zmq.DEALER)
            client.setsockopt(zmq.LINGER, 0)
            dial_with(client, rings[role], DAEMON, 0)
            client.connect(address)
            await client.send(role.encode())
        async with asyncio.timeout(20):
            _, heard = await server.recv_multipart()
        await until(lambda: "unknown_key" in refused)
        assert heard == b"gateway"
        assert await server.poll(200) == 0
        for client in clients.values():
            client.close()
        server.close()
        gate.close()

    run()


def test_an_operators_key_is_changed_without_a_member_staying_out(pairs: dict[str, KeyPair]) -> None:
    """The new public key is known beside the old one first; then the operator starts anew with it."""
    publics = {role: (each.public,) for role, each in pairs.items()}
    after = pair()

    @over_loopback
    async def run(context: zmq.asyncio.Context) -> None:
        before = Planner(context, keys=HeldKeys(pairs[OPERATOR], lambda: publics))
        address = before.socket.address
        member = Member(context, address, keys=HeldKeys(pairs[DAEMON], lambda: publics))
        await until(lambda: member.leased)
        publics[OPERATOR] = (pairs[OPERATOR].public, after.public)
        await before.stop()
        later = await bound(context, address, term=2, keys=HeldKeys(after, lambda: publics))
        await until(lambda: any(isinstance(heard, Hello) for heard in later.heard))
        publics[OPERATOR] = (after.public,)
        await member.link.close()
        await member.task
        await later.stop()

    run()


def test_a_members_key_that_was_taken_away_opens_nothing_any_more(pairs: dict[str, KeyPair]) -> None:
    publics = {role: (each.public,) for role, each in pairs.items()}

    @over_loopback
    async def run(context: zmq.asyncio.Context) -> None:
        planner = Planner(context, keys=HeldKeys(pairs[OPERATOR], lambda: publics))
        first = Member(context, planner.socket.address, keys=HeldKeys(pairs[DAEMON], lambda: publics))
        await until(lambda: first.leased)
        await first.link.close()
        await first.task
        publics[DAEMON] = (pair().public,)
        again = Member(context, planner.socket.address, keys=HeldKeys(pairs[DAEMON], lambda: publics))
        await until(lambda: planner.socket.counters.refused.get("unknown_key", 0) > 0)
        assert not again.link.connected
        await again.link.close()
        await again.task
        await planner.stop()

    run()


# -- folders of keys


@pytest.fixture
def folder(tmp_path: Path, pairs: dict[str, KeyPair]) -> Path:
    for role, each in pairs.items():
        (tmp_path / f"{role}.key").write_bytes(certificate(each.public))
    (tmp_path / "daemon.key_secret").write_bytes(certificate(pairs[DAEMON].public, pairs[DAEMON].secret))
    return tmp_path


def test_a_folder_holds_ones_own_pair_and_the_public_keys_of_all_roles(folder: Path, pairs: dict[str, KeyPair]) -> None:
    keys = DirectoryKeys(folder, DAEMON)
    assert keys.own() == pairs[DAEMON]
    assert keys.public(OPERATOR) == (pairs[OPERATOR].public,)
    assert [keys.role_of(each.public) for each in pairs.values()] == list(ROLES)
    assert keys.role_of(pair().public) is None


def test_further_keys_of_a_role_count_beside_the_current_one_as_soon_as_they_lie_there(
    folder: Path, pairs: dict[str, KeyPair]
) -> None:
    keys, coming = DirectoryKeys(folder, DAEMON), pair()
    (folder / "operator.2027.key").write_bytes(certificate(coming.public))
    assert keys.public(OPERATOR) == (pairs[OPERATOR].public, coming.public)
    assert keys.role_of(coming.public) == OPERATOR


def test_a_damaged_certificate_is_named_and_shuts_nobody_else_out(folder: Path, pairs: dict[str, KeyPair]) -> None:
    (folder / "gateway.key").write_text('curve\n    public-key = "short"\n')
    keys = DirectoryKeys(folder, DAEMON)
    with pytest.raises(LinkKeysUnusable, match=r"gateway\.key: no certificate.*40 characters"):
        keys.public(GATEWAY)
    assert keys.role_of(pairs[OPERATOR].public) == OPERATOR


def test_a_missing_certificate_is_named_with_the_option(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    keys = DirectoryKeys(folder, DAEMON)
    with pytest.raises(LinkKeysUnusable, match=r"--link-keys .*daemon\.key_secret: No such file") as refused:
        keys.own()
    assert refused.value.field == "--link-keys"
    with pytest.raises(LinkKeysUnusable, match=r"no operator\.key"):
        keys.public(OPERATOR)


def test_certificates_are_those_that_pyzmq_reads(tmp_path: Path) -> None:
    each = pair()
    (tmp_path / "x").write_bytes(certificate(each.public, each.secret))
    assert load_certificate(tmp_path / "x") == (each.public, each.secret)


def test_links_without_keys_are_asked_for_and_stay_on_the_machine(folder: Path) -> None:
    here = [("--control", "tcp://127.0.0.1:7400"), ("--listen", "ipc:///run/x")]
    with pytest.raises(LinksOpen, match="--plain-links where all links stay"):
        link_keys(None, False, DAEMON, here)
    assert link_keys(None, True, DAEMON, here) is None
    for address in ("tcp://0.0.0.0:7400", "tcp://*:7400", "tcp://operator:7400", "tcp://10.0.0.1:7400"):
        with pytest.raises(LinksOpen, match="--control"):
            link_keys(None, True, DAEMON, [("--control", address)])
    assert link_keys(folder, False, DAEMON, [("--control", "tcp://10.0.0.1:7400")]) is not None


def test_secrets_are_not_in_what_is_printed(pairs: dict[str, KeyPair]) -> None:
    assert pairs[DAEMON].secret.decode() not in repr(pairs) + repr(keyrings(pairs))


def test_frames_of_a_plain_link_have_no_role() -> None:
    from kvgrove_link.gatekeeper import role_of_frame

    assert role_of_frame(zmq.Frame(TO_PLANNER.encode(Hello(member="a", role=DAEMON, boot="b")))) is None
