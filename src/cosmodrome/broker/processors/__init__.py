"""One function per request: decode, check, act, answer. They raise on refusal; `broker.answer` makes codes of it."""
