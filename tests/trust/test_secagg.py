"""Secure aggregation: the sum is exact, whoever leaves on the way, and the server sees nothing else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.errors import RefusedError
from protofed.trust.secagg import (
    FRACTION,
    PUBLIC,
    SEALED,
    SECRET,
    SHARE,
    Layout,
    Member,
    UnmaskError,
    Words,
    _own_mask,
    _put_pair_mask,
    integers,
    join,
    layout_of,
    length,
    numbers,
    split,
    threshold,
    unmask,
    usable,
)


@dataclass
class Server:
    """What a server sees of a round, and no more."""

    publics: dict[int, bytes] = field(default_factory=dict)
    sealed: dict[int, dict[int, bytes]] = field(default_factory=dict)
    masked: dict[int, Words] = field(default_factory=dict)
    agreed: set[int] = field(default_factory=set)
    told: dict[int, dict[int, bytes]] = field(default_factory=dict)

    def inbox(self, member: int) -> dict[int, bytes]:
        return {other: boxes[member] for other, boxes in self.sealed.items() if other != member}

    def sum(self, clients: int) -> Words:
        keys = {member: self.publics[member] for member in self.sealed}
        return unmask(self.masked, keys, self.told, threshold(clients))


def again(member: Member) -> Member:
    """As it comes back from the client's memory."""
    return Member.decode(member.encode())


def until_masked(
    rows: Mapping[int, Words],
    before_keys: Collection[int] = (),
    sharing: Collection[int] = (),
    late: Collection[int] = (),
) -> tuple[Server, dict[int, Member]]:
    """A round up to step 3, without those who leave before each of the first three steps."""
    server = Server()
    members = {number: Member.begin(number, rows, 0, None) for number in rows if number not in before_keys}
    server.publics = {number: member.keys() for number, member in members.items()}
    members = {number: again(member) for number, member in members.items() if number not in sharing}
    server.sealed = {number: member.share(server.publics) for number, member in members.items()}
    members = {number: again(member) for number, member in members.items() if number not in late}
    for number, member in members.items():
        member.receive(server.inbox(number))
        server.masked[number] = member.mask(rows[number])
    return server, {number: again(member) for number, member in members.items()}


def finish(
    server: Server, members: Mapping[int, Member], silent: Collection[int] = (), undecided: Collection[int] = ()
) -> Words:
    """Steps 4 and 5, in which some are silent, and the sum."""
    for number in members.keys() - {*undecided}:
        members[number].agree(server.masked.keys())
        server.agreed.add(number)
    for number in server.agreed - {*silent}:
        server.told[number] = again(members[number]).reveal(server.agreed)
    return server.sum(len(next(iter(members.values())).who))


def revealed(member: Member, there: Collection[int]) -> dict[int, bytes]:
    """Steps 4 and 5 of a client, if all agree."""
    member.agree(there)
    return member.reveal(there)


def plain(rows: Iterable[Words]) -> list[int]:
    """The sum as whole numbers, without any arithmetic of ours."""
    return [sum(column) for column in zip(*(row.view(np.int64).tolist() for row in rows), strict=True)]


def drawn(clients: int, size: int = 6, seed: int = 0) -> dict[int, Words]:
    draws = np.random.default_rng(seed)
    most = 2**63 // clients
    return {number: draws.integers(-most + 1, most, size).view(np.uint64) for number in range(clients)}


WHEN = ("before_keys", "sharing", "late", "undecided", "silent")
AT_THE_END = ("undecided", "silent")


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 8])
def test_the_sum_is_exact_with_no_one_and_the_most_dropouts_at_every_step(clients: int) -> None:
    rows, most = drawn(clients), clients - threshold(clients)
    for gone, when in itertools.product({0, min(1, most), most}, WHEN):
        leaving = {when: range(gone)}
        ending = {when: leaving.pop(when) for when in AT_THE_END if when in leaving}
        server, members = until_masked(rows, **leaving)
        there = range(clients) if ending else range(gone, clients)
        assert finish(server, members, **ending).view(np.int64).tolist() == plain(rows[k] for k in there)


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("when", WHEN)
def test_one_dropout_more_fails_cleanly(clients: int, when: str) -> None:
    leaving = {when: range(clients - threshold(clients) + 1)}
    ending = {when: leaving.pop(when) for when in AT_THE_END if when in leaving}

    def played() -> None:
        server, members = until_masked(drawn(clients), **leaving)
        finish(server, members, **ending)

    with pytest.raises((UnmaskError, RefusedError), match=r"too few|needed"):
        played()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_added_and_whoever_leaves_the_sum_is_that_of_the_plain_integers(data: st.DataObject) -> None:
    clients = data.draw(st.integers(2, 7))
    shapes = data.draw(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=4))
    kinds = data.draw(
        st.lists(
            st.sampled_from([torch.float32, torch.float64, torch.int64]), min_size=len(shapes), max_size=len(shapes)
        )
    )
    seed = data.draw(st.integers(0, 2**32))
    large = data.draw(st.floats(-20, 30 - np.log2(clients) - 0.01))  # magnitudes up to the bound

    def one(number: int) -> dict[str, torch.Tensor]:
        draws = torch.Generator().manual_seed(seed + number)
        made = [torch.rand(shape, generator=draws, dtype=torch.float64) * 2 - 1 for shape in shapes]
        return {str(place): (tensor * 2.0**large).to(kinds[place]) for place, tensor in enumerate(made)}

    added = {number: one(number) for number in range(clients)}
    layout: Layout = layout_of(added[0])
    rows = {number: integers(parts, clients) for number, parts in added.items()}
    assert {len(row) for row in rows.values()} == {length(layout)}
    order = data.draw(st.permutations(range(clients)))
    gone = data.draw(st.integers(0, clients - threshold(clients)))
    steps = data.draw(st.lists(st.sampled_from(WHEN), min_size=gone, max_size=gone))
    leaving = {when: [k for k, step in zip(order, steps, strict=False) if step == when] for when in WHEN}
    ending = {when: leaving.pop(when) for when in AT_THE_END}
    server, members = until_masked(rows, **leaving)
    total = finish(server, members, **ending)
    assert total.view(np.int64).tolist() == plain(rows[k] for k in members)
    for name, tensor in numbers(total, layout).items():
        each = torch.stack([added[k][name].double().flatten() for k in members], 1).tolist()
        exact = torch.tensor([math.fsum(values) for values in each], dtype=torch.float64).view(tensor.shape)
        assert tensor.dtype == layout[name][0]
        error = len(members) * 2.0 ** -(FRACTION + 1) if tensor.is_floating_point() else 0.0
        rounding = 1e-6 if tensor.dtype == torch.float32 else 1e-14
        torch.testing.assert_close(tensor.double(), exact, rtol=rounding, atol=error * 1.01)


def test_what_might_wrap_is_refused() -> None:
    for clients in (1, 2, 3, 100):
        most = 2.0**31 / clients
        just = torch.tensor([most * (1 - 1e-12), -most * (1 - 1e-12)], dtype=torch.float64)
        rows = [integers({"w": just}, clients)] * clients
        total = rows[0] * np.uint64(clients)
        assert total.view(np.int64).tolist() == plain(rows)  # it has not wrapped
        for bad in (most, -most, most * 2, float("inf"), float("nan")):
            with pytest.raises(RefusedError, match="w holds a number beyond"):
                integers({"v": torch.zeros(2), "w": torch.tensor([0.0, bad], dtype=torch.float64)}, clients)
    for number in (2**63 // 2, -(2**63) // 2, -(2**63)):
        with pytest.raises(RefusedError, match="beyond"):
            integers({"steps": torch.tensor(number)}, 2)


def everything(server: Server) -> tuple[list[Words], bytes]:
    """All rows that the server has, and all other bytes."""
    books = [server.publics, *server.sealed.values(), *server.told.values()]
    return list(server.masked.values()), b"".join(data for book in books for data in book.values())


def test_the_server_has_seen_nothing_of_a_client() -> None:
    """No client's integers, no sum of two, and no difference between two rounds, in anything it received."""
    first, second = drawn(4, 50, seed=1), drawn(4, 50, seed=2)
    rounds = []
    for rows in (first, second):
        server, members = until_masked(rows, late=[3])
        finish(server, members)
        rounds.append(server)
    seen = {number for server in rounds for row in everything(server)[0] for number in row.tolist()}
    pairs = list(itertools.combinations(range(4), 2))
    hidden = [*first.values(), *second.values(), *(second[k] - first[k] for k in range(4))]
    hidden += [rows[one] + rows[other] for rows in (first, second) for one, other in pairs]
    for row in hidden:
        assert not seen & set(row.tolist())
        for server in rounds:
            assert not [number for number in row if number.tobytes() in everything(server)[1]]
    before, after = (server.masked for server in rounds)
    for one, other in itertools.product(before.values(), after.values()):
        assert not {*(other - one).tolist()} & {number for row in hidden for number in row.tolist()}
    for server, rows in zip(rounds, (first, second), strict=True):
        for some in (1, 2):  # the masks of fewer than all do not cancel
            for group in itertools.combinations(server.masked, some):
                found = sum(server.masked[k] for k in group)
                assert not {*np.asarray(found).tolist()} & {*sum(rows[k] for k in group).tolist()}  # type: ignore[union-attr]
        assert server.sum(4).tolist() == sum(rows[k] for k in range(3)).tolist()  # type: ignore[union-attr]


def test_the_secrets_that_the_server_is_told_unmask_nobody() -> None:
    """Of each client it learns b, and the masks of pairs stay on, or s, and the mask of its own stays on."""
    rows = drawn(4)
    server, members = until_masked(rows)
    late = server.masked.pop(3)  # it comes after the others have been told that client 3 has left
    assert finish(server, {k: members[k] for k in range(3)}).tolist() == sum(rows[k] for k in range(3)).tolist()  # type: ignore[union-attr]
    secrets = {k: join({other: told[k] for other, told in server.told.items()}) for k in range(4)}
    for k in range(3):
        opened = server.masked[k] - _own_mask(secrets[k], 6)
        assert not set(opened.tolist()) & set(rows[k].tolist())
        _put_pair_mask(opened, secrets[3], 3, server.publics[k], k)  # cancels the one that it has in common with 3
        assert not set(opened.tolist()) & set(rows[k].tolist())
    opened = -late
    for k in range(3):
        _put_pair_mask(opened, secrets[3], 3, server.publics[k], k)
    own = -opened - rows[3]
    assert len(set(own.tolist()) - {0}) == 6  # still on
    for k in range(3):
        assert not set(own.tolist()) & set(_own_mask(secrets[k], 6).tolist())  # and nobody else's


def test_masked_rows_look_like_noise() -> None:
    rows = {number: np.zeros(20_000, np.uint64) for number in range(3)}
    server, _ = until_masked(rows)
    for row in server.masked.values():
        bits = np.unpackbits(row.view(np.uint8))
        assert abs(bits.mean() - 0.5) < 0.005
        assert len(set(row.tolist())) == len(row)


def test_with_fewer_shares_than_the_threshold_nothing_is_known() -> None:
    rows = drawn(5)
    server, members = until_masked(rows)
    least = threshold(5)
    held = {number: dict(member.held) for number, member in members.items()}
    finish(server, members)
    for group in itertools.combinations(range(5), least - 1):  # the server and t − 1 clients, with all they hold
        for victim in set(range(5)) - set(group):
            for part in (slice(None, SHARE), slice(SHARE, None)):
                guess = join({k: held[k][victim][part] for k in group})
                enough = join({k: held[k][victim][part] for k in (*group, victim)})
                assert guess != enough
        some = {k: server.told[k] for k in group}
        with pytest.raises(UnmaskError, match="2 clients have helped"):
            unmask(server.masked, server.publics, some, least)
        with pytest.raises(UnmaskError, match="do not fit"):
            unmask(server.masked, server.publics, some, least - 1)


def test_two_shares_of_three_fit_every_secret() -> None:
    """For any secret there is a third share that makes it: so the two say nothing."""
    shares = split(b"a" * 32, range(5), 3)
    two = {k: shares[k] for k in (1, 4)}
    found = {join(two | {2: bytes(65) + bytes([third])}) for third in range(200)}
    assert len(found) == 200
    assert join({k: shares[k] for k in (0, 2, 3)}) == b"a" * 32


@pytest.mark.parametrize("gone", [(), (1,)])
@pytest.mark.parametrize("victim", [1, 2])
def test_wrong_shares_are_noticed(gone: tuple[int, ...], victim: int) -> None:
    server, members = until_masked(drawn(4), late=gone)
    finish(server, members)
    right = server.told[0][victim]
    for wrong in (bytes(SHARE), right[:-1] + bytes([right[-1] ^ 1]), b"\xff" * SHARE):
        server.told[0][victim] = wrong
        with pytest.raises(UnmaskError, match=f"client {victim}'s secret do not fit"):
            server.sum(4)


def test_sealed_shares_are_for_one_client_and_of_one_client() -> None:
    server = Server()
    members = {number: Member.begin(number, range(3), 0, None) for number in range(3)}
    server.publics = {number: member.keys() for number, member in members.items()}
    server.sealed = {number: member.share(server.publics) for number, member in members.items()}
    box = server.sealed[1][0]
    assert len(box) == SEALED
    for bad in (box[:-1] + bytes([box[-1] ^ 1]), server.sealed[1][2], server.sealed[2][0], server.sealed[0][1]):
        with pytest.raises(RefusedError, match="shares of client 1 are damaged"):
            again(members[0]).receive({1: bad, 2: server.sealed[2][0]})


def test_a_client_never_reveals_both_kinds_of_shares() -> None:
    _, members = until_masked(drawn(4))
    one = members[0]
    held = dict(one.held)
    told = revealed(one, [0, 1, 2])
    assert told == {k: held[k][:SHARE] if k < 3 else held[k][SHARE:] for k in range(4)}
    for there in ([0, 1, 2], [0, 1, 2, 3], [0, 2, 3]):
        with pytest.raises(RefusedError):
            revealed(one, there)
    assert (one.held, one.masking, one.seed) == ({}, b"", b"")
    assert not [share for share in held.values() if share.hex().encode() in one.encode()]


def test_a_round_is_summed_over_one_set_of_clients_however_often_it_is_played() -> None:
    """A server that crashed plays a round again; two sums of the same round would differ by what somebody added."""
    _, members = until_masked(drawn(4))
    revealed(members[0], [0, 1, 2])

    def replayed(before: Member, number_of_round: int) -> Member:
        others = {k: Member.begin(k, range(4), number_of_round, None) for k in (1, 2, 3)}
        everyone = {0: Member.begin(0, range(4), number_of_round, again(before))} | others
        publics = {k: member.keys() for k, member in everyone.items()}
        sealed = {k: member.share(publics) for k, member in everyone.items()}
        everyone[0].receive({k: sealed[k][0] for k in others})
        everyone[0].mask(np.zeros(3, np.uint64))
        return everyone[0]

    with pytest.raises(RefusedError, match="round 1 has been summed over other clients"):
        replayed(members[0], 0).agree([0, 1, 2, 3])
    same = replayed(members[0], 0)
    revealed(same, [2, 1, 0])
    later = replayed(same, 1)
    revealed(later, [0, 1, 2, 3])
    assert later.summed == {0: [0, 1, 2], 1: [0, 1, 2, 3]}


def test_a_client_does_not_hide_among_too_few() -> None:
    members = {number: Member.begin(number, range(5), 0, None) for number in range(5)}
    publics = {number: member.keys() for number, member in members.items()}
    one = members[0]
    with pytest.raises(RefusedError, match="2 clients are too few"):
        one.share({k: publics[k] for k in (0, 1)})
    with pytest.raises(RefusedError, match="others only"):
        one.share({k: publics[k] for k in (1, 2, 3)})
    with pytest.raises(RefusedError, match="own keys are others"):
        one.share(publics | {0: publics[1]})
    sealed = {number: member.share(publics) for number, member in members.items()}
    with pytest.raises(RefusedError, match="2 clients are too few"):
        one.receive({1: sealed[1][0]})
    with pytest.raises(RefusedError, match="without keys"):
        one.receive(dict.fromkeys((1, 2, 3, 9), sealed[1][0]))
    one.receive({k: sealed[k][0] for k in (1, 2, 3)})
    one.mask(np.zeros(2, np.uint64))
    for there, why in (([0, 1], "too few"), ([0, 0, 1, 1], "too few"), ([1, 2, 3], "others"), ([0, 1, 4], "without")):
        with pytest.raises(RefusedError, match=why):
            one.agree(there)
    for signed in ([], [0, 1, 2]):  # it has agreed to nothing
        with pytest.raises(RefusedError, match="too few"):
            one.reveal(signed)
    one.agree([0, 1, 2])
    with pytest.raises(RefusedError, match="twice"):  # another set
        one.agree([0, 1, 2, 3])
    for signed in ([0, 1], [0, 0, 1], [0, 1, 3], [0, 1, 2, 3]):
        with pytest.raises(RefusedError, match="too few"):
            one.reveal(signed)
    assert one.reveal([0, 1, 2]).keys() == {0, 1, 2, 3}
    alone = Member.begin(0, range(1), 0, None)
    public = alone.keys()
    with pytest.raises(RefusedError, match="1 clients are too few"):
        alone.share({0: public})


def test_what_is_signed_is_of_one_run_round_client_and_attempt() -> None:
    """What was signed elsewhere is of no use, and a set is signed for the keys of one attempt."""
    first, second = (until_masked(drawn(3))[1][0] for _ in range(2))
    for member in (first, second):
        member.agree([0, 1, 2])
    assert first.says_set() != second.says_set()  # other keys
    said = {first.says_keys(0, b"a"), first.says_keys(1, b"a"), first.says_keys(0, b"b"), first.says_set()}
    for other in (Member(0, [0, 1, 2], 0, "other"), Member(0, [0, 1, 2], 1), Member(0, [0, 1, 2, 3], 0)):
        said.add(other.says_keys(0, b"a"))
    assert len(said) == 7
    assert first.says_keys(0, b"a") == second.says_keys(0, b"a")
    _, members = until_masked(drawn(4))
    for number, there in ((0, [0, 1, 2]), (1, [0, 1, 2, 3])):
        members[number].agree(there)
    assert members[0].says_set() != members[1].says_set()


def test_no_step_is_taken_twice_or_early() -> None:
    server, members = until_masked(drawn(3))
    row = np.zeros(6, np.uint64)
    with pytest.raises(RefusedError, match="twice"):  # another row under the same masks would tell the difference
        members[0].mask(row)
    with pytest.raises(RefusedError, match="twice"):
        members[0].keys()
    with pytest.raises(RefusedError, match="twice"):
        members[0].receive(server.inbox(0))
    fresh = Member.begin(0, range(3), 0, None)
    with pytest.raises(RefusedError, match="early"):
        fresh.mask(row)
    public = fresh.keys()
    fresh.share({**server.publics, 0: public})
    with pytest.raises(RefusedError, match="twice"):
        fresh.share({**server.publics, 0: public})


def test_keys_that_are_none_are_refused() -> None:
    one = Member.begin(0, range(2), 0, None)
    public = one.keys()
    for bad in (b"", bytes(PUBLIC), bytes(PUBLIC - 1)):
        with pytest.raises(RefusedError, match="public key is not valid"):
            again(one).share({0: public, 1: bad})


def test_a_key_that_leads_to_no_secret_is_known_for_one() -> None:
    public = Member.begin(0, range(2), 0, None).keys()
    assert usable(public)
    assert not usable(bytes(PUBLIC))
    assert not usable(public[:SECRET] + bytes(SECRET) + public[2 * SECRET :])  # the second of the two


def test_who_was_not_to_take_part_gets_no_shares() -> None:
    """A server that names fewer than it hands out keys of would lower the threshold."""
    members = {number: Member.begin(number, (0, 1), 0, None) for number in range(4)}
    publics = {number: member.keys() for number, member in members.items()}
    for others in ((1, 2), (1, 2, 3)):
        with pytest.raises(RefusedError, match="not to take part"):
            again(members[0]).share({k: publics[k] for k in (0, *others)})
    assert members[0].share({k: publics[k] for k in (0, 1)}).keys() == {1}


def test_a_round_that_is_long_over_is_not_played_again() -> None:
    """Whose sum it was is forgotten."""
    before = Member(0, [0, 1], 9, summed={7: [0, 1], 8: [0, 1], 9: [0, 1]})
    assert Member.begin(0, (0, 1), 7, before).summed == before.summed
    with pytest.raises(RefusedError, match="round 7 is long over"):
        Member.begin(0, (0, 1), 6, before)


def test_secrets_are_new_in_every_round_and_not_shown() -> None:
    members = [Member.begin(0, range(3), 0, None) for _ in range(3)]
    assert len({secret for one in members for secret in (one.sealing, one.masking, one.seed)}) == 9
    assert "seed" not in repr(members[0])
    members[0].end()
    assert members[0].encode() == Member(0, [0, 1, 2], 0, step="done", sealing=b"", masking=b"", seed=b"").encode()


def test_more_than_half_must_stay() -> None:
    assert [threshold(n) for n in range(1, 9)] == [2, 2, 2, 3, 3, 4, 4, 5]
    assert all(2 * threshold(n) > n for n in range(1, 200))
