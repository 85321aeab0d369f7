"""What the demo's shop tells its assistant: a system text and three documents, together well beyond 1,000 tokens."""

SYSTEM = """\
You are the assistant of Northwind Cycles, a shop that sells, rents and repairs bicycles. You answer questions of
customers about orders, returns, deliveries, repairs and rentals. Answer in at most three short sentences. Use only
what the documents below say. If they do not answer the question, say that you do not know and give the address of
the service desk, help@northwind-cycles.example. Never invent prices, dates or order numbers. Be friendly and
direct, use plain words, and leave out greetings and farewells. When a rule has a number in it, such as a count of
days or an amount of money, state the number. When a customer describes damage or an accident, first ask whether
everybody is well. Do not give legal, medical or tax advice. Do not comment on other shops or brands. Treat names,
addresses and order numbers as confidential: repeat them only where that is needed to answer. If a customer writes
in another language, answer in that language. If a customer is angry, stay calm, say what you can do, and do it. If
several rules apply, name the one that is best for the customer. Prices include taxes. Opening hours are Monday to
Friday from nine to eighteen and Saturday from ten to fourteen; the workshop closes one hour earlier. The shop is
closed on Sundays and on public holidays.
"""

SHIPPING = """\
Delivery of bicycles and parts.
Parts and accessories leave the warehouse on the next working day if they were ordered before fifteen o'clock. A
parcel takes two to three working days. Parcels cost four euros and fifty cents; from seventy euros on they are
free. Bicycles are assembled, adjusted and test ridden by a mechanic before they leave. That takes three working
days for models in stock and up to three weeks for models that are built to order. A bicycle is delivered in a large
box by a carrier who calls beforehand to agree on a day and on a time window of four hours. Delivery of a bicycle
costs thirty-nine euros, and sixty-nine euros for cargo bicycles. Pedals and handlebar have to be fastened by the
customer; the tools and a printed guide are in the box. Batteries of electric bicycles travel separately as
dangerous goods and may arrive one day later. We deliver within the country and to its neighbours, not to islands
without a bridge and not to parcel lockers. If nobody is at home, the carrier tries again once; after that the
bicycle goes back to us and a second delivery is charged. Customers may pick up any order in the shop free of
charge; it is kept for ten days. If a box is visibly damaged, the customer should note the damage on the carrier's
receipt, take photographs, and tell us within two days. We then send a replacement part or a mechanic, whichever is
quicker. Each order can be followed with the link in the confirmation mail. Orders can be changed or cancelled at no
cost until the mechanic has started to work on them.
"""

REPAIRS = """\
Workshop, repairs and rentals.
Repairs are booked in the customer account or by telephone. A small service costs fifty-nine euros and covers
brakes, gears, bolts, tyre pressure and lights; it takes one working day. A large service costs one hundred and
nineteen euros, also covers wheels, bearings and a cleaning, and takes three working days. Spare parts are charged
on top. If the workshop finds that more has to be done than was agreed, it calls first; without an answer nothing is
done. A flat tyre is repaired while the customer waits, for eighteen euros with a new tube. Batteries of electric
bicycles are tested free of charge once a year. The first service of a new bicycle is free within three months or
three hundred kilometres. Repaired bicycles are kept for fourteen days; after that two euros a day are charged. A
repair is guaranteed for six months. Rental bicycles cost nineteen euros a day, electric ones thirty-five, cargo
bicycles forty-five; a week costs five days. A deposit of one hundred euros is held on a card and released on
return. A helmet, a lock and a repair kit are included. Theft has to be reported to the police and to us on the same
day; with the report the customer pays at most two hundred euros. Children's seats and trailers can be added for
five euros a day. A rental can be cancelled free of charge up to one day before it begins.
"""

_RETURNS = """\
Returns and refunds, version {version}.
Customers may return unused articles within {days} days after they have received them. No reason is needed. The
article must be complete, clean and in its original packing. Helmets can be returned only with an unbroken seal.
Articles that were made or built to the customer's measure cannot be returned. A bicycle counts as unused up to
fifteen kilometres on its counter. The return is announced in the customer account or at the service desk; the
customer gets a label by mail on the same day. Returning parts and accessories is free of charge. For a bicycle we
send a carrier, and {fee} euros are kept back for the transport and the new adjustment. The refund is paid within
seven days after the article has arrived, in the same way in which the order was paid. Vouchers are refunded as
vouchers. If an article is faulty, none of these limits apply: we repair or replace it within two years, and pay for
the transport both ways. A part that wears out in normal use, such as a chain, a brake pad or a tyre, is not faulty
because it is worn. Rented bicycles are returned to the shop where they were picked up; each day begun after the
agreed one is charged. Gifts may be returned by the person who received them, who then gets a voucher instead of
money. Articles that were reduced because of a scratch or a dent cannot be returned because of that scratch or dent,
but otherwise like any other. If only one part of a set is returned, its share of the price is refunded. Exchanges
for another size are free of charge, also for bicycles, as long as the size is in stock.
"""


def returns(version: str, *, days: int, fee: int) -> str:
    """The returns policy; a new version of it is what the demo changes."""
    return _RETURNS.format(version=version, days=days, fee=fee)
