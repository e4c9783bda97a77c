"""Secure aggregation: the server learns the sum of what clients add, and of no client what it added.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, in the version for a
server that need not follow the protocol. A round has five steps:

1. `Member.keys`: every client makes fresh keys and sends the public ones, signed.
2. `Member.share`: it splits its two secrets into shares for all others, sealed so that the server only carries them.
3. `Member.mask`: it sends y_u = x_u + PRG(b_u) + Σ_{v>u} PRG(s_uv) − Σ_{v<u} PRG(s_uv) modulo 2^64.
4. `Member.agree`: it signs who is said to have sent y.
5. `Member.reveal`: if enough others have signed the same, it reveals of who has sent y its share of b, of who has not
   its share of the key behind the s_uv; `unmask` takes the masks off the sum.

What is assumed. Clients know each other's public keys for signatures (signatures.py): then a server that exchanges keys
on the way, or tells clients of different sets, gets no sum. Where they do not know them, it must do as it should
(honest but curious), for clients hear of each other through it alone. Together with up to t − 1 clients it learns the
sum of the others. A client reveals one kind of share of each client, once, and only for a sum of t clients or more; and
t > n/2, so that there are no two groups of t clients for the two kinds. With c clients that tell both it takes 2t > n +
c; t is ⌊n/2⌋ + 1, so c is 0, or 1 for an even n. A round that is played again is summed over the same clients or not at
all: two sums differ by what some added.

Clients are trusted: one that adds nonsense spoils the sum, and wrong shares end the round (they are noticed).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from torch import Tensor

from protofed.errors import RefusedError
from protofed.messages import Upload
from protofed.methods.base import Summed
from protofed.trust.summation import terms

Words = NDArray[np.uint64]
"""Integers modulo 2^64."""
Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Names, types and shapes of what is added, in the order in which they are put into one row."""

FRACTION = 32
"""Bits behind the point: a number is rounded to a multiple of 2^−32, so a sum of n is off by at most n · 2^−33."""
PRIME = 2**521 - 1
"""Shares are numbers modulo this one."""
SHARE, SECRET, NONCE, TAG = 66, 32, 12, 16
"""Bytes."""
PUBLIC, SEALED = 3 * SECRET, NONCE + 2 * SHARE + TAG
"""Bytes of what a client sends first (two public keys, a digest of b), and of its shares for one other."""
REMEMBERED = 3
"""Rounds of which a client remembers who was summed: as many as it could be asked for again."""


class UnmaskError(Exception):
    """There is no sum; the text says why."""


def threshold(clients: int) -> int:
    """How many of a round's clients must stay to its end: more than half, and never one alone."""
    return max(2, clients // 2 + 1)


# Numbers as integers.


def added(uploads: Upload, loss: float, how: Summed) -> dict[str, Tensor]:
    """What the one client of `uploads` adds to a round's sum; its loss is nobody else's business either."""
    mine = {path: tensor[0] for path, tensor in terms(uploads, how).items()}
    return mine | {"loss": torch.tensor(loss, dtype=torch.float64)}


def layout_of(parts: Mapping[str, Tensor]) -> Layout:
    """Of what one client adds."""
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in parts.items()}


def length(layout: Layout) -> int:
    """How many numbers that are."""
    return sum(int(np.prod(shape)) for _, shape in layout.values())


def integers(parts: Mapping[str, Tensor], clients: int) -> Words:
    """What one of some clients adds, in one row; refused where their sum might not fit: wrapping would not be seen."""
    rows = []
    for name, tensor in parts.items():
        scaled = tensor.detach().cpu().double() * (2.0**FRACTION if tensor.is_floating_point() else 1.0)
        if not bool((scaled.abs() < 2.0**63 / clients).all()):
            most = 2.0 ** (63 - FRACTION if tensor.is_floating_point() else 63) / clients
            raise RefusedError(f"{name} holds a number beyond ±{most:.3g}, the most that {clients} clients may add")
        rows.append((scaled.round() if tensor.is_floating_point() else tensor.cpu()).to(torch.int64).flatten())
    return torch.cat(rows).numpy().view(np.uint64)


def numbers(total: Words, layout: Layout) -> dict[str, Tensor]:
    """A sum of rows as what it stands for."""
    found: dict[str, Tensor] = {}
    row, at = torch.from_numpy(total.view(np.int64)), 0
    for name, (dtype, shape) in layout.items():
        part = row[at : at + int(np.prod(shape))].view(shape)
        found[name] = (part.double() / 2.0**FRACTION if dtype.is_floating_point else part).to(dtype)
        at += part.numel()
    return found


# Secrets in shares (Shamir): a secret is a polynomial's value at 0, client k holds its value at k + 1.


def split(secret: bytes, members: Collection[int], least: int) -> dict[int, bytes]:
    """Shares of a secret, of which `least` are needed to know anything of it."""
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(least - 1))]
    shares = {}
    for member in members:
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * (member + 1) + coefficient) % PRIME
        shares[member] = value.to_bytes(SHARE, "big")
    return shares


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret that these are shares of, if they are enough and right; otherwise something else."""
    value = 0
    for member, share in shares.items():
        up, down = 1, 1
        for other in shares.keys() - {member}:
            up, down = up * (other + 1) % PRIME, down * (other - member) % PRIME
        value = (value + int.from_bytes(share, "big") * up * pow(down, -1, PRIME)) % PRIME
    return value.to_bytes(SHARE, "big")[-SECRET:]


# Keys and masks.


def _public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def usable(public: bytes) -> bool:
    """Whether two public keys lead to secrets that not everybody knows."""
    try:
        for begin in (0, SECRET):
            _common(os.urandom(SECRET), public[begin : begin + SECRET], "trying it")
    except RefusedError:
        return False
    return True


def _derived(secret: bytes, purpose: str) -> bytes:
    return HKDF(SHA256(), SECRET, None, f"protofed secure aggregation, {purpose}".encode()).derive(secret)


def _common(mine: bytes, theirs: bytes, purpose: str) -> bytes:
    """The key that two clients have in common, for one purpose."""
    try:
        shared = X25519PrivateKey.from_private_bytes(mine).exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        raise RefusedError("a public key is not valid") from None
    return _derived(shared, purpose)


def _stream(key: bytes, size: int) -> Words:
    """PRG: the key stream of AES in counter mode; every key has one use."""
    data = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(8 * size))
    return np.frombuffer(data, "<u8").astype(np.uint64, copy=False)


def _own_mask(seed: bytes, size: int) -> Words:
    """PRG(b)."""
    return _stream(_derived(seed, "own mask"), size)


def _put_pair_mask(row: Words, secret: bytes, number: int, public: bytes, other: int) -> None:
    """Add what `number` adds for `other`, PRG(s) or −PRG(s): the two cancel."""
    mask = _stream(_common(secret, public[SECRET : 2 * SECRET], "mask"), len(row))
    if number < other:
        row += mask
    else:
        row -= mask


@dataclass
class Member:
    """A client's side of a round. Every step is taken once, in order; what is not needed any longer is forgotten."""

    number: int
    who: list[int]  # was to take part in the round
    round: int
    run: str = ""
    summed: dict[int, list[int]] = field(default_factory=dict)  # by round: the only clients whose sum may be known
    step: str = "new"
    beginning: str = ""  # a digest of what it trained from
    agreed: list[int] = field(default_factory=list)  # whose sum it helps to unmask
    sealing: bytes = field(default_factory=lambda: os.urandom(SECRET), repr=False)
    masking: bytes = field(default_factory=lambda: os.urandom(SECRET), repr=False)  # s_u
    seed: bytes = field(default_factory=lambda: os.urandom(SECRET), repr=False)  # b_u
    publics: dict[int, bytes] = field(default_factory=dict)
    held: dict[int, bytes] = field(default_factory=dict, repr=False)  # by client: its shares of b and of s

    @classmethod
    def begin(
        cls, number: int, who: Collection[int], number_of_round: int, before: Member | None, run: str = ""
    ) -> Member:
        """With new secrets, whatever became of those before; not for a round that is too old to be remembered."""
        summed = {} if before is None else before.summed
        if summed and number_of_round <= max(summed) - REMEMBERED:
            raise RefusedError(f"round {number_of_round + 1} is long over")
        return cls(number, sorted(set(who)), number_of_round, run, summed)

    def keys(self) -> bytes:
        """Step 1: public keys for sealing and for masks, and a digest of b, by which wrong shares are noticed."""
        self._take("new", "keys")
        return _public(self.sealing) + _public(self.masking) + hashlib.sha256(self.seed).digest()

    def share(self, publics: Mapping[int, bytes]) -> dict[int, bytes]:
        """Step 2: sealed shares for all others whose keys these are."""
        self._check(publics)
        if any(len(public) != PUBLIC for public in publics.values()):
            raise RefusedError("a public key is not valid")
        if not publics.keys() <= set(self.who):  # the threshold is of those who were to take part
            raise RefusedError("there are keys of clients that were not to take part")
        if publics[self.number][:SECRET] != _public(self.sealing):
            raise RefusedError("its own keys are others")
        self._take("keys", "shared")
        self.publics, least = dict(publics), threshold(len(self.who))
        of_seed, of_masking = (split(secret, publics, least) for secret in (self.seed, self.masking))
        shares = {member: of_seed[member] + of_masking[member] for member in publics}
        self.held = {self.number: shares.pop(self.number)}
        return {member: self._seal(member, both) for member, both in shares.items()}

    def receive(self, sealed: Mapping[int, bytes]) -> None:
        """Before step 3: the shares of the others that have taken step 2."""
        self._check({self.number, *sealed})
        if not sealed.keys() <= self.publics.keys() - {self.number}:
            raise RefusedError("it was sent shares of clients without keys")
        self._take("shared", "received")
        self.held |= {member: self._unseal(member, box) for member, box in sealed.items()}

    def mask(self, row: Words) -> Words:
        """Step 3: y_u. The secrets behind it are forgotten: another row under the same masks would tell both."""
        self._take("received", "masked")
        masked = row + _own_mask(self.seed, len(row))
        for other in self.held.keys() - {self.number}:
            _put_pair_mask(masked, self.masking, self.number, self.publics[other], other)
        self.sealing = self.masking = self.seed = b""
        return masked

    def agree(self, there: Collection[int]) -> None:
        """Step 4: these are said to have sent y; it helps to unmask their sum, and no other."""
        there = set(there)
        self._check(there)
        if not there <= self.held.keys():
            raise RefusedError("it is asked for the sum of clients without shares")
        if self.summed.get(self.round, sorted(there)) != sorted(there):
            raise RefusedError(f"round {self.round + 1} has been summed over other clients")
        self._take("masked", "agreed")
        self.agreed = sorted(there)

    def reveal(self, signed: Collection[int]) -> dict[int, bytes]:
        """Step 5, if these have agreed too: of who is in the sum a share of b, of the others of s; never both."""
        there = set(self.agreed)
        if not set(signed) <= there or len(set(signed)) < threshold(len(self.who)):
            raise RefusedError(f"{len(set(signed) & there)} clients have agreed to this sum: too few")
        self._take("agreed", "done")
        self.summed[self.round] = self.agreed
        self.summed = {number: self.summed[number] for number in sorted(self.summed)[-REMEMBERED:]}
        told = {member: both[:SHARE] if member in there else both[SHARE:] for member, both in self.held.items()}
        self.end()
        return told

    def end(self) -> None:
        """The round is over, or goes on without this client; nothing of it is needed any longer."""
        self.step, self.sealing, self.masking, self.seed = "done", b"", b"", b""
        self.publics, self.held = {}, {}

    def says_keys(self, number: int, public: bytes) -> bytes:
        """What a client signs in step 1."""
        return self._statement("keys", number, public.hex())

    def says_set(self) -> bytes:
        """What all sign in step 4: for these keys, which are no other attempt's, whose sum is unmasked."""
        publics = hashlib.sha256(b"".join(self.publics[member] for member in sorted(self.publics))).hexdigest()
        return self._statement("set", sorted(self.publics), publics, self.agreed)

    def encode(self) -> bytes:
        """For the client's memory, between two steps."""
        return json.dumps(asdict(self), default=bytes.hex).encode()

    @classmethod
    def decode(cls, data: bytes) -> Member:
        """What `encode` made."""
        found = json.loads(data)
        for name in ("sealing", "masking", "seed"):
            found[name] = bytes.fromhex(found[name])
        for name in ("publics", "held"):
            found[name] = {int(member): bytes.fromhex(text) for member, text in found[name].items()}
        found["summed"] = {int(number): who for number, who in found["summed"].items()}
        return cls(**found)

    def _statement(self, *what: object) -> bytes:
        return json.dumps(["protofed secure aggregation", self.run, self.round, self.who, *what]).encode()

    def _take(self, before: str, after: str) -> None:
        if self.step != before:
            raise RefusedError("a step of secure aggregation comes twice, or too early")
        self.step = after

    def _check(self, there: Collection[int]) -> None:
        """This client is among them, and they are enough to hide it in their sum."""
        if self.number not in there:
            raise RefusedError("it is asked about others only")
        if len(there) < threshold(len(self.who)):
            raise RefusedError(f"{len(there)} clients are too few to hide among")

    def _seal(self, other: int, both: bytes) -> bytes:
        nonce, key = os.urandom(NONCE), _common(self.sealing, self.publics[other][:SECRET], "shares")
        return nonce + AESGCM(key).encrypt(nonce, both, f"{self.number} to {other}".encode())

    def _unseal(self, other: int, box: bytes) -> bytes:
        key = _common(self.sealing, self.publics[other][:SECRET], "shares")
        try:
            both = AESGCM(key).decrypt(box[:NONCE], box[NONCE:], f"{other} to {self.number}".encode())
        except (InvalidTag, ValueError):
            raise RefusedError(f"the shares of client {other} are damaged") from None
        if len(both) != 2 * SHARE:
            raise RefusedError(f"the shares of client {other} are not valid")
        return both


def unmask(
    masked: Mapping[int, Words], publics: Mapping[int, bytes], told: Mapping[int, Mapping[int, bytes]], least: int
) -> Words:
    """The server's part: the sum of the rows under the masks.

    `publics` are the keys of all who took step 2, and `told` what those revealed who took step 5.
    """
    for step, there in (("sent what they add", masked), ("helped to unmask the sum", told)):
        if len(there) < least:
            raise UnmaskError(f"{len(there)} clients have {step}, and {least} are needed")
    used = sorted(told)[:least]
    total = np.zeros_like(next(iter(masked.values())))
    for row in masked.values():
        total += row
    for member, public in publics.items():
        secret = join({other: told[other][member] for other in used})
        if member in masked:
            right = hashlib.sha256(secret).digest() == public[2 * SECRET :]
        else:
            right = _public(secret) == public[SECRET : 2 * SECRET]
        if not right:
            raise UnmaskError(f"the shares of client {member}'s secret do not fit together")
        if member in masked:
            total -= _own_mask(secret, len(total))
        else:  # what it would have added for the others is what they have taken away
            for other in masked:
                _put_pair_mask(total, secret, member, publics[other], other)
    return total
