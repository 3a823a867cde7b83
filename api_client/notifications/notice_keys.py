"""The keys of notices."""

from __future__ import annotations

from api_client.contract.keys import KeyNames, named_key, named_keys


class NoticeKeys(KeyNames):
    """The Redis key names for the notifications of an installation."""

    #: Hash: notices that are to be sent or were given up, by id.
    notices = named_key("notices")
    #: Sorted set: when each of them is to be tried, in milliseconds.
    due = named_key("notices:due")
    #: Sorted set: those that were given up, by when.
    dead = named_key("notices:dead")
    #: Sorted set: every notice that was put, by when, so that none is put twice.
    said = named_key("notices:said")
    #: String: the process that sends notices now; lives a minute.
    sender = named_key("notices:sender")
    #: String: a relay has just looked for troubles of this monitor.
    watched = named_keys("notices:watched:")

    def looked(self, listed: str) -> str:
        """Return the key of the time up to which a list of turns was searched for notifications."""
        return self.key_named(f"notices:looked:{listed.rpartition(':')[2]}")
