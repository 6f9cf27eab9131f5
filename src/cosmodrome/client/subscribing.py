"""How an application says which messages of a topic it wants."""

from __future__ import annotations

from dataclasses import dataclass

from cosmodrome.errors import WrongType
from cosmodrome.filter import sql92, tags
from cosmodrome.model import Subscription


@dataclass(frozen=True, slots=True)
class Sql:
    """A SQL92 condition on the properties of a message, where a tag expression could stand: `Sql("price > 5")`."""

    condition: str

    def __post_init__(self) -> None:
        if not isinstance(self.condition, str):
            raise WrongType(f"the condition of a Sql is {self.condition!r}; it must be text")


Expression = str | Sql


def subscription(topic: str, expression: Expression, version: int) -> Subscription:
    """What `expression` asks of `topic`; SubscriptionParseFailed says what is wrong with it."""
    if isinstance(expression, str):
        return tags.subscription(topic, expression, version)
    if not isinstance(expression, Sql):
        raise WrongType(f'the expression for {topic} is {expression!r}; it must be "*", tags like "a || b", or a Sql')
    sql92.compile(expression.condition)  # told here and now rather than by a broker's log
    return Subscription(topic, expression.condition, version=version, expression_type=sql92.EXPRESSION_TYPE)
