"""Signatures of clients: made with one key, refused of any other."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key

from protofed.errors import RefusedError
from protofed.trust.signatures import SIGNATURE, UNSIGNED, Signatory

KEYS = [generate_private_key(SECP384R1()) for _ in range(3)]
MEMBERS = {number: key.public_key() for number, key in enumerate(KEYS)}
EVERYONE = [Signatory(key, MEMBERS) for key in KEYS]
SAID = b"what is said"


def test_what_each_has_signed_is_known_to_be_signed_by_it() -> None:
    for _ in range(20):  # numbers of a signature may be short
        signatures = {number: one.sign(SAID) for number, one in enumerate(EVERYONE)}
        assert {len(signature) for signature in signatures.values()} == {SIGNATURE}
        EVERYONE[0].check(dict.fromkeys(MEMBERS, SAID), signatures)


def test_what_is_not_signed_by_whose_it_is_is_refused() -> None:
    right = {number: one.sign(SAID) for number, one in enumerate(EVERYONE)}
    flipped = right[1][:-1] + bytes([right[1][-1] ^ 1])
    for wrong in (UNSIGNED, right[0], right[2], flipped, b"\xff" * SIGNATURE, EVERYONE[1].sign(SAID + b"!")):
        with pytest.raises(RefusedError, match="what client 1 is said to have signed is not signed by it"):
            EVERYONE[0].check(dict.fromkeys(MEMBERS, SAID), right | {1: wrong})
    with pytest.raises(RefusedError, match="client 2 is said"):
        EVERYONE[0].check(dict.fromkeys(MEMBERS, SAID), {0: right[0], 1: right[1]})
    with pytest.raises(RefusedError, match="client 3 is not in its list of members"):
        EVERYONE[0].check({3: SAID}, {3: right[0]})


def test_without_keys_nothing_is_signed_and_without_a_list_nothing_checked() -> None:
    assert Signatory().sign(SAID) == UNSIGNED
    Signatory().check({7: SAID}, {})
    with pytest.raises(RefusedError):
        EVERYONE[0].check({1: SAID}, {1: Signatory().sign(SAID)})
