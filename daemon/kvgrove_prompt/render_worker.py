"""``python -m kvgrove_prompt.render_worker FD``: renders other people's templates, and nothing else.

Compiling is done here too: a template's constant expressions are computed then. Memory is limited, files cannot be
written, and an alarm ends the process when an order takes far too long, also if its parent is gone by then. It is given
no environment to speak of, so it holds no secret; it keeps no text from one order to the next.
"""

import resource
import signal
import socket
import sys
from collections import OrderedDict

from kvgrove_prompt.errors import InvalidMessages, TemplateUnsupported
from kvgrove_prompt.render_wire import Order, Reply, receive_order, send
from kvgrove_prompt.rendering import render
from kvgrove_prompt.sandbox import Sandbox

MEMORY_BYTES = 2 << 30
TEMPLATES = 64
"""Compiled ones kept."""


def serve(link: socket.socket) -> None:
    """Carry out orders until the other side has gone."""
    compiled: OrderedDict[bytes, Sandbox] = OrderedDict()
    while (order := receive_order(link)) is not None:
        signal.setitimer(signal.ITIMER_REAL, 2 * order.seconds)  # the alarm's default action ends the process
        reply = carry_out(order, compiled)
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(link, reply)


def carry_out(order: Order, compiled: OrderedDict[bytes, Sandbox]) -> Reply:
    """The reply to ``order``; keeps its template in ``compiled``."""
    try:
        sandbox = compiled.get(order.template)
        if sandbox is None:
            if not order.source:
                return Reply(unknown=True)
            sandbox = compiled[order.template] = Sandbox(order.source, max_chars=order.max_chars)
            while len(compiled) > TEMPLATES:
                compiled.popitem(last=False)
        compiled.move_to_end(order.template)
        return Reply() if order.job is None else Reply(render(sandbox, order.job))
    except (InvalidMessages, TemplateUnsupported) as error:
        return Reply(error=error.code, field=error.field or "", message=error.message)
    except MemoryError:
        return Reply(
            error=TemplateUnsupported.code, field="chat_template", message="the chat template takes too much memory"
        )


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent's to handle: it may still have requests to answer
    with socket.socket(fileno=int(sys.argv[1])) as link:
        serve(link)


if __name__ == "__main__":
    main()
