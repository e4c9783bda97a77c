"""Who is connected to a server, and what clients have said of themselves."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flwr.serverapp import Grid

from protofed.data.preparation import Shape
from protofed.deploy.exchange import Question, exchange
from protofed.deploy.layouts import Form, form_of, model_of
from protofed.deploy.server_settings import Settings, read_nodes
from protofed.deploy.spoken import spoken
from protofed.deploy.wire import LARGEST, OLDEST, PROTOCOL, Packet, Range, check_protocol, pack, spoken_by, unpack
from protofed.errors import LostError, RefusedError
from protofed.experiment import Experiment
from protofed.internal.version import VERSION
from protofed.methods import build_method
from protofed.runs.network_label import MOST_CLASSES, NetworkLabel, is_usable

LOG = logging.getLogger("flwr")
LARGEST_SAMPLE = 2**24
"""Numbers of a client's sample: the server makes one of the size that the client names."""
LONGEST_NAMES = 400_000
"""Characters of all names of classes and domains together: every message has them."""
MOST_SAMPLES = 10**9
"""That a client may say it trains on."""
LONGEST_LAYOUT = 64
"""Characters."""
SEES_SAMPLES = "encoder.weight"
"""What a layer that sees samples may be called: methods that share a part of the model name heads."""
PAUSE = 1.0
"""Seconds between two looks for clients."""
AWAY = "not connected"
REMOVED = "it was removed from the federation"
NO_DATA = "it brings no data, but others do: say --data"
NO_PART = "it joined after the run began, of whose dataset it has no part: say --data"
SOME_DATA = "it brings data, and nobody did when the run began"
OTHER_LAYOUT = "its columns, channels or words are not those of the others, whose weights that see them it would share"
NEW_TOKENS = "it has token ids that the run began without"


class Known(NamedTuple):
    """A client that has said who it is."""

    node: int
    protocols: Range  # that it speaks
    brings: bool  # data of its own
    samples: int  # that it says it trains on
    shape: Shape
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    layout: str | None  # a digest of what the numbers of its samples stand for; nothing of pictures, None if not said


class Connections:
    """Who is connected. A node is one client, and a client one node, for a whole run."""

    def __init__(self, grid: Grid, experiment: Experiment, settings: Settings, run: str) -> None:
        self.grid, self.experiment, self.settings, self.run = grid, experiment, settings, run
        self.known: dict[int, Known] = {}
        self.classes: list[str] | None = None  # of the run, once it has begun
        self.brings: bool | None = None  # likewise
        self.protocol: int | None = None  # likewise
        self.layout: str | None = None  # likewise, where clients share weights that see samples; nothing for any
        self.tokens: int | None = None  # likewise, of all clients whose token ids are arrays'
        self.form: Form | None = None  # likewise, what they share of their models
        self._forms: dict[tuple[Any, ...], Form] = {}  # of models, for samples of a shape
        self.refused: dict[int, str] = {}  # nodes
        self.failed: dict[int, str] = {}  # nodes that did not say who they are when they were last asked
        self.registered: dict[int, int] = {}  # the node of each client, where keys say that
        self._read_registered()
        self._members: Sequence[int] = self.members()

    def members(self) -> Sequence[int]:
        """Who may take part from now on: who is a member of the federation, which may change while a run goes on.

        Where keys do not say who is who, it is as many clients as the experiment has.

        Raises:
            LostError: there is nobody any longer.
        """
        self._read_registered()
        self._members = sorted(self.registered) if self.settings.nodes else range(self.experiment.number_of_clients)
        if not self._members:
            raise LostError("the federation has no clients", "`protofed deploy admit` lets some in")
        return self._members

    def settle(self) -> int:
        """The protocol of a run that begins: the highest that the server and all who are there speak.

        Whoever does not speak it then, or comes later and does not, is refused.
        """
        self.protocol = min([PROTOCOL, *(client.protocols[1] for client in self.known.values())])
        for number, client in list(self.known.items()):
            if why := self._objection_to(client.protocols):
                del self.known[number]
                self._refuse(client.node, why)
        return self.protocol

    def _read_registered(self) -> None:
        """What the federation's server has written, if that is new."""
        registered = read_nodes(Path(self.settings.nodes)) if self.settings.nodes else {}
        if registered != self.registered:
            self.registered, self.refused = registered, {}  # who was refused may be a member now
            self.known = {number: one for number, one in self.known.items() if registered.get(number) == one.node}

    def domains(self, begun: Sequence[str]) -> list[str]:
        """Those that a run began with, and those of who came later: results are told by domain, nothing else is."""
        return list(dict.fromkeys([*begun, *(name for _, one in sorted(self.known.items()) for name in one.domains)]))

    def facts(self, **more: Any) -> dict[str, Any]:
        """What every message says."""
        protocol = OLDEST if self.protocol is None else self.protocol
        named = {"protocol": protocol, "version": VERSION, "run": self.run, "experiment": spoken(self.experiment)}
        return named | more

    def check_protocol(self, facts: Mapping[str, Any]) -> None:
        """Refuse an answer in another protocol than the run's."""
        if self.protocol is not None:
            check_protocol((facts["protocol"], facts["protocol"]), (self.protocol, self.protocol))

    def connected(self) -> dict[int, int]:
        """The nodes of the clients that are there now; new ones are asked who they are."""
        self._read_registered()
        nodes = set(self.grid.get_node_ids())
        self.refused = {node: why for node, why in self.refused.items() if node in nodes}  # it may return mended
        self.failed = {}
        new = nodes - {client.node for client in self.known.values()} - self.refused.keys()
        if new:
            questions = dict.fromkeys(
                sorted(new), Question("query.hello", pack(self.facts(protocols=[OLDEST, PROTOCOL])))
            )
            answers = exchange(self.grid, questions, "hello", self.settings.deadline, self._read_hello)
            for node, (number, client) in sorted(answers.given.items(), key=lambda item: item[1][0]):
                self._bind(node, number, client)
            self._sort_out()
            self.failed = answers.left_out
            for node, reason in self.failed.items():
                LOG.warning("node %d is left out: %s", node, reason)
        known = {number: client.node for number, client in sorted(self.known.items()) if number in self._members}
        return {number: node for number, node in known.items() if node in nodes}

    def absent(self, members: Collection[int]) -> dict[int, str]:
        """Why some clients do not take part; whose node it was that failed is known from their keys."""
        reasons, nodes = self.refused | self.failed, self.registered
        absent = REMOVED if nodes else AWAY
        return {member: reasons.get(nodes[member], AWAY) if member in nodes else absent for member in members}

    def wait(self, number: int, seconds: float, who: Collection[int]) -> list[int]:
        """Until so many of some clients are there, or the time is over."""
        until = time.monotonic() + seconds
        while True:
            found = [member for member in self.connected() if member in who]
            left = until - time.monotonic()
            if len(found) >= number or left <= 0:
                return found
            time.sleep(min(PAUSE, left))

    def _read_hello(self, node: int, packet: Packet) -> tuple[int, Known]:
        facts, _ = unpack(packet, LARGEST)
        spoken = spoken_by(facts)
        if why := self._objection_to(spoken):
            raise RefusedError(why)
        number, samples, shape = facts.get("id"), facts.get("samples"), facts.get("shape")
        brings, tokens, masked = facts.get("brings"), facts.get("tokens"), facts.get("masked")
        names = [facts.get("classes"), facts.get("domains")]
        if not (isinstance(number, int) and isinstance(brings, bool) and isinstance(shape, list)):
            raise RefusedError("it does not say who it is")
        if not (isinstance(samples, int) and 1 <= samples <= MOST_SAMPLES):
            raise RefusedError("it does not say how many samples it trains on")
        if not (isinstance(tokens, int) and isinstance(masked, bool) and all(isinstance(size, int) for size in shape)):
            raise RefusedError("its samples have no usable shape")
        if not is_usable(shape, tokens) or math.prod(shape) > LARGEST_SAMPLE:
            raise RefusedError("its samples have no usable shape")
        if not all(isinstance(some, list) and some and all(_is_name(name) for name in some) for some in names):
            raise RefusedError("it does not name its classes")
        classes, domains = (tuple(some) for some in names)  # type: ignore[arg-type]  # lists of names, as was checked
        if len(classes) > MOST_CLASSES:
            raise RefusedError("its classes are too many")
        layout = facts.get("layout")  # which older clients do not say
        if not isinstance(layout, str | None) or len(layout or "") > LONGEST_LAYOUT:
            raise RefusedError("it does not say what its samples are")
        return number, Known(node, spoken, brings, samples, Shape(shape, tokens, masked), classes, domains, layout)

    def _bind(self, node: int, number: int, client: Known) -> None:
        why = None
        joined = number >= self.experiment.number_of_clients  # after the run began
        if number < 0 or (joined and number not in self.registered):
            why = f"there is no client {number}"
        elif number in self.known:
            why = f"client {number} is another node"
        elif self.registered and self.registered.get(number) != node:
            why = f"its key is not that of client {number}"
        elif joined and not client.brings:
            why = NO_PART
        elif not joined and self.brings not in (None, client.brings):
            why = NO_DATA if self.brings else SOME_DATA
        elif self.tokens is not None and self._has_ids(client) and client.shape.tokens > self.tokens:
            why = NEW_TOKENS
        elif (unlike := self._unlike(number, client)) is not None:
            why = unlike
        elif len("".join([*self._names(), *client.classes, *client.domains])) > LONGEST_NAMES:
            why = "the names of its classes and domains are too long"
        elif self.classes is not None and not set(client.classes) <= set(self.classes):
            why = "it has classes that the run began without"
        if why is None:
            self.known[number] = self._with_all_ids(client)
            LOG.info("client %d is node %d and trains on %d samples", number, node, client.samples)
        else:
            self._refuse(node, why)

    def _objection_to(self, spoken: Range) -> str | None:
        """Why a client cannot be talked to, if so."""
        try:
            check_protocol(spoken, (OLDEST, PROTOCOL) if self.protocol is None else (self.protocol, self.protocol))
        except RefusedError as error:
            return str(error)
        return None

    def _names(self) -> set[str]:
        """Of the classes and domains that are known so far."""
        return {*(self.classes or ()), *(name for one in self.known.values() for name in (*one.classes, *one.domains))}

    def _sort_out(self) -> None:
        """Before a run begins: all bring data, or none does. Who forgot it would train on something else unnoticed."""
        if self.brings is None and any(client.brings for client in self.known.values()):
            for number, client in list(self.known.items()):
                if not client.brings:
                    del self.known[number]
                    self._refuse(client.node, NO_DATA)

    def settle_layout(self) -> None:
        """Of a run that begins: what most of those that are there have, if they share weights that see samples.

        Whoever has another one then, or comes later and has, is refused: columns that are in another order, or words
        under other numbers, would be averaged unnoticed. So is whose samples make the shared weights others.
        """
        self.layout = ""
        if build_method(self.experiment.method, self.experiment.params).shares(SEES_SAMPLES):
            said = Counter(client.layout for _, client in sorted(self.known.items()) if client.layout is not None)
            self.layout = said.most_common(1)[0][0] if said else ""
        self._refuse_unlike()
        self.tokens = max([client.shape.tokens for client in self.known.values() if self._has_ids(client)], default=0)
        self.known = {number: self._with_all_ids(client) for number, client in self.known.items()}
        forms = Counter(self._form(number, client.shape) for number, client in sorted(self.known.items()))
        self.form = forms.most_common(1)[0][0] if forms else None
        self._refuse_unlike()

    def go_on(self, label: NetworkLabel) -> None:
        """What holds for a run that began before."""
        self.classes, self.brings, self.protocol = label["classes"], label["brings"], label["protocol"]
        shape = Shape(label["shapes"][0], label["tokens"][0], label["masked"][0])
        self.layout, self.tokens, self.form = label["layout"], max(label["tokens"]), self._form(0, shape)

    def _refuse_unlike(self) -> None:
        """Refuse whose samples are not those of the others."""
        for number, client in list(self.known.items()):
            if (why := self._unlike(number, client)) is not None:
                del self.known[number]
                self._refuse(client.node, why)

    def _unlike(self, number: int, client: Known) -> str | None:
        """Why a client's samples are not those of the run, if so; where there is no model for most it is no one's."""
        if self.layout and client.layout not in (None, self.layout):
            return OTHER_LAYOUT
        if self.form is None or isinstance(self.form, str):
            return None
        form = self._form(number, self._with_all_ids(client).shape)
        return None if form == self.form else form if isinstance(form, str) else OTHER_LAYOUT

    def _form(self, number: int, shape: Shape) -> Form:
        model = model_of(self.experiment, number)
        key = model, tuple(shape), shape.tokens, shape.masked
        if key not in self._forms:
            self._forms[key] = form_of(self.experiment, model, shape)
        return self._forms[key]

    @staticmethod
    def _has_ids(client: Known) -> bool:
        """Whether its token ids are an array's, which mean what its owner says; those of a text are in its layout."""
        return not client.layout and client.shape.tokens > 0

    def _with_all_ids(self, client: Known) -> Known:
        """As many token ids as all clients have together."""
        if not (self.tokens and self._has_ids(client)):
            return client
        return client._replace(shape=Shape(client.shape, self.tokens, client.shape.masked))

    def _refuse(self, node: int, why: str) -> None:
        self.refused[node] = why
        LOG.warning("node %d is refused: %s", node, why)


def _is_name(name: object) -> bool:
    """Whether it is a text that can be written and shown."""
    return isinstance(name, str) and name.isprintable() and name != ""
