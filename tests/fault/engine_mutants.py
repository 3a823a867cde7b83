"""Mutants of the engine and of the record: each breaks one guard, and a test must fail for each."""

from dataclasses import dataclass

_TURNS = "worker/turns/"
_LEASES = _TURNS + "leases/"
_RECORD = "api_client/turns/record/"
_UNIT = "tests/unit/turns/"
_STORE = "tests/integration/lua/"
_ENGINE = "tests/integration/test_engine.py"
_IN_PLACE = "tests/integration/test_in_place.py"
_AT_ONCE = "tests/integration/test_in_loop_validation.py"
_ACCEPTING = "tests/fault/test_accepting.py"
_GOLDEN = "tests/integration/test_golden_records.py"


@dataclass(frozen=True, slots=True)
class EngineMutant:
    """A mutant: ``old``, which occurs once in ``path``, is replaced, and ``test`` in ``file`` must notice."""

    name: str
    path: str
    old: str
    new: str
    file: str
    test: str

    @property
    def node(self) -> str:
        """Return the test's id in pytest."""
        return f"{self.file}::{self.test}"


MUTANTS = [
    # Who may take a turn, and when
    EngineMutant(
        "a reaper never waits for calm",
        _LEASES + "reaper.py",
        "may_take = steady and looked.watched_seconds >= self._settings.lease_seconds",
        "may_take = True",
        _STORE + "test_grace_period.py",
        "test_after_an_outage_the_holder_of_a_finished_run_commits_before_a_reaper_takes_it",
    ),
    EngineMutant(
        "a reaper that has just begun waits anew",
        _RECORD + "lua/grace_period.lua",
        "tonumber(kept[1] or ''), tonumber(kept[2] or ''), kept[3]",
        "tonumber(kept[1] or ''), nil, kept[3]",
        _STORE + "test_grace_period.py",
        "test_a_pause_of_all_reapers_or_a_clock_set_back_begins_the_time_anew",
    ),
    EngineMutant(
        "an outage of all reapers is no pause",
        _RECORD + "lua/grace_period.lua",
        " or now - seen > tonumber(ARGV[1]) then",
        " then",
        _STORE + "test_grace_period.py",
        "test_a_pause_of_all_reapers_or_a_clock_set_back_begins_the_time_anew",
    ),
    EngineMutant(
        "every reaper looks",
        _RECORD + "lua/grace_period.lua",
        "if since and by and by",
        "if false and by",
        _STORE + "test_grace_period.py",
        "test_one_reaper_looks_for_all_and_another_takes_over_within_a_pause",
    ),
    EngineMutant(
        "a clock that was set back is left to who looked last",
        _RECORD + "lua/grace_period.lua",
        " and not set_back and now - seen <",
        " and now - seen <",
        _STORE + "test_grace_period.py",
        "test_turns_are_looked_at_again_by_whoever_sees_that_the_clock_was_set_back",
    ),
    EngineMutant(
        "a reaper without a broker goes on to look for all",
        _LEASES + "reaper.py",
        "turn_id, session_id)) is False:",
        "turn_id, session_id)) is Ellipsis:",
        _STORE + "test_grace_period.py",
        "test_a_reaper_whose_messages_do_not_go_out_lets_another_look",
    ),
    EngineMutant(
        "a reaper reads once a look",
        _LEASES + "reaper.py",
        " and time.monotonic() < until:",
        " and False:",
        _STORE + "test_grace_period.py",
        "test_the_turns_of_many_dead_workers_are_announced_in_one_look",
    ),
    EngineMutant(
        "a clock that jumps is trusted",
        "api_client/turns/record/grace_period.py",
        "if abs(drift) > _JUMP_SECONDS:",
        "if False:",
        _UNIT + "test_lease.py",
        "test_a_clock_that_was_set_back_is_told_once",
    ),
    EngineMutant(
        "a clock that was set back is not seen",
        "api_client/turns/record/grace_period.py",
        "self.jumped_back = drift < -_JUMP_SECONDS",
        "self.jumped_back = False",
        _UNIT + "test_lease.py",
        "test_a_clock_that_was_set_back_is_told_once",
    ),
    EngineMutant(
        "the delivery before the last strike is carried on beside others",
        _TURNS + "service.py",
        " or turn.strikes >= parts.settings.strikes - 1:",
        ":",
        _IN_PLACE,
        "test_the_delivery_before_the_last_strike_is_left_to_a_process_that_does_nothing_else",
    ),
    # Late holders
    EngineMutant(
        "late writers keep their right",
        "worker/files/session_fence.py",
        "            if name != self._name:\n                _remove_holder(name, self._all)",
        "            pass",
        "tests/unit/consultant/test_session_fence.py",
        "test_what_a_killed_holder_or_an_agent_left_is_cleared_away",
    ),
    EngineMutant(
        "a file is written past its holder's folder",
        "worker/files/session_fence.py",
        "by_way_of=self.drafts",
        "by_way_of=folder",
        "tests/unit/consultant/test_session_fence.py",
        "test_a_holder_that_was_overtaken_is_told",
    ),
    EngineMutant(
        "a holder keeps its turn to the last moment of the lease",
        _LEASES + "lease.py",
        "= seconds * (1 - _MARGIN)",
        "= seconds",
        _UNIT + "test_lease.py",
        "test_a_beat_counts_from_when_it_was_sent_and_brings_no_stopped_run_back",
    ),
    EngineMutant(
        "a run outlives its lease",
        _LEASES + "lease.py",
        "            if now > self._acknowledged + self._held_seconds:\n                # The",
        "            if False:\n                # The",
        _UNIT + "test_lease.py",
        "test_a_beat_counts_from_when_it_was_sent_and_brings_no_stopped_run_back",
    ),
    EngineMutant(
        "a lost lease is forgotten when a beat succeeds later",
        _LEASES + "lease.py",
        'self._reason = "fenced"\n',
        'return "fenced"\n',
        _UNIT + "test_lease.py",
        "test_a_beat_counts_from_when_it_was_sent_and_brings_no_stopped_run_back",
    ),
    EngineMutant(
        "a cancel hides that the lease is lost",
        _LEASES + "lease.py",
        'if not self._reason or reason == "fenced":',
        "if not self._reason:",
        _UNIT + "test_lease.py",
        "test_a_lost_lease_overrules_any_other_reason_and_nothing_overrules_it",
    ),
    EngineMutant(
        "a holder that was frozen does not ask the store",
        _LEASES + "lease.py",
        "        if self.lapsed:\n            self.record_renewal(await ledger",
        "        if False:\n            self.record_renewal(await ledger",
        _UNIT + "test_lease.py",
        "test_after_a_freeze_the_store_is_asked_before_anything_is_touched_and_not_otherwise",
    ),
    EngineMutant(
        "a lease counts from when its holder had the answer",
        _LEASES + "lease.py",
        "        self._acknowledged = asked_at",
        "        self._acknowledged = time.monotonic()",
        _UNIT + "test_lease.py",
        "test_a_beat_counts_from_when_it_was_sent_and_brings_no_stopped_run_back",
    ),
    EngineMutant(
        "a stuck loop keeps its leases",
        _LEASES + "lease.py",
        "return not stuck",
        "return True",
        _UNIT + "test_loop.py",
        "test_leases_are_kept_no_more_when_the_main_loop_is_stuck_and_again_when_it_turns",
    ),
    EngineMutant(
        "of a round a fenced lease is kept",
        _LEASES + "lease.py",
        'if found == "fenced" and not lease.giving_back:',
        "if False:",
        _UNIT + "test_loop.py",
        "test_of_one_round_each_lease_learns_its_own",
    ),
    EngineMutant(
        "a turn that is being given back is taken for lost",
        _LEASES + "lease.py",
        " and not lease.giving_back:",
        ":",
        _UNIT + "test_loop.py",
        "test_a_turn_that_its_holder_is_giving_back_is_not_reported_as_lost_and_one_that_went_on_is",
    ),
    EngineMutant(
        "an agent that finished while its worker was frozen is taken for ended by it",
        "worker/runners/sandbox/supervision.py",
        "if ended.code == 0 and not ended.cause and not self._forgot:",
        "if False:",
        "tests/unit/runners/test_runner_registry.py",
        "test_an_agent_that_had_finished_when_its_lease_was_found_over_was_not_ended_and_is_heard_to_its_last_line",
    ),
    EngineMutant(
        "those whom a turn avoids take it",
        "api_client/turns/record/lua/claim.lua",
        "and string.find(worker .. '$', word, 1, true) then",
        "and false then",
        "tests/integration/lua/test_ledger.py",
        "test_those_whom_a_turn_avoids_leave_it_to_others_for_some_seconds_and_no_longer",
    ),
    EngineMutant(
        "a turn that was just claimed does not hear that all must stop",
        _LEASES + "lease.py",
        "            if self._all_stop:",
        "            if False:",
        _UNIT + "test_loop.py",
        "test_a_turn_that_was_claimed_just_before_all_were_told_to_stop_stops_too",
    ),
    # Numbered commands, and what a store forgets
    EngineMutant(
        "the first forgotten command is left out",
        _RECORD + "changes.py",
        "claim.outbox[said.known : number - 1]",
        "claim.outbox[said.known + 1 : number - 1]",
        _UNIT + "test_queue.py",
        "test_a_holder_sends_again_what_the_store_forgot_and_then_goes_on",
    ),
    EngineMutant(
        "a holder that goes on counts its commands anew",
        _RECORD + "changes.py",
        "            following.outbox = claim.outbox\n",
        "",
        _STORE + "test_advance.py",
        "test_an_advance_whose_reply_was_lost_is_answered_not_repeated",
    ),
    EngineMutant(
        "what a store forgot is not sent again",
        _RECORD + "changes.py",
        "if (yield from self._send_with_texts(claim, forgotten)) == HeldBack():",
        "if False:",
        _UNIT + "test_queue.py",
        "test_a_holder_sends_again_what_the_store_forgot_and_then_goes_on",
    ),
    EngineMutant(
        "counters are folded twice",
        _RECORD + "lua/fold.lua",
        "~= ARGV[1] then return 0 end",
        "== '' then return 0 end",
        _STORE + "test_counters.py",
        "test_two_reapers_that_read_the_same_counters_fold_them_once",
    ),
    # What a holder knows, and what is asked for only where it can be there
    EngineMutant(
        "what a holder knew of an attempt outlives its change",
        "api_client/turns/record/claim.py",
        " if number != transition.attempt}",
        "}",
        _UNIT + "test_record.py",
        "test_an_attempt_that_changes_again_is_read_again",
    ),
    EngineMutant(
        "no pause is ever asked for",
        "api_client/store/lua/pauses.lua",
        "    if look().pauses then",
        "    if false then",
        _STORE + "test_held_turns.py",
        "test_a_turn_that_was_announced_before_is_refused_to_its_worker",
    ),
    # Texts
    EngineMutant(
        "a long answer is stored again with the verdict",
        _RECORD + "encoding.py",
        "elif find_place(name, text) != name:",
        "elif False:",
        _STORE + "test_long_texts.py",
        "test_an_answer_lies_in_the_store_once_and_every_reader_finds_it",
    ),
    EngineMutant(
        "who takes over behind the seal has no answer",
        _RECORD + "encoding.py",
        'texts.get(place, "") if place else answer["response"]',
        'answer["response"]',
        _STORE + "test_long_texts.py",
        "test_who_takes_over_behind_the_seal_has_the_whole_answer[long]",
    ),
    EngineMutant(
        "a long message is stored again as the prompt",
        _RECORD + "encoding.py",
        'elif name == "prompt" and text == asked:',
        "elif False:",
        _STORE + "test_long_texts.py",
        "test_an_answer_lies_in_the_store_once_and_every_reader_finds_it",
    ),
    EngineMutant(
        "an attempt does not find the message it was asked with",
        "api_client/contract/record.py",
        "texts = {**facts, ASKED: asked}",
        "texts = facts",
        _STORE + "test_long_texts.py",
        "test_an_answer_lies_in_the_store_once_and_every_reader_finds_it",
    ),
    EngineMutant(
        "a long request is not read with the claim",
        _RECORD + "changes.py",
        "        if has_separate_texts(record):  # long",
        "        if False:  # long",
        _STORE + "test_long_texts.py",
        "test_who_takes_over_behind_the_seal_has_the_whole_answer[long]",
    ),
    EngineMutant(
        "the texts of the version before are kept for ever",
        "api_client/store/lua/record.lua",
        "(turn.apart or turn.request_bytes) and",
        "turn.apart and",
        _GOLDEN,
        "test_a_turn_of_an_earlier_version_is_found_and_finished",
    ),
    EngineMutant(
        "long texts are kept for ever",
        "api_client/store/lua/record.lua",
        "(turn.apart or turn.request_bytes) and",
        "turn.request_bytes and",
        _STORE + "test_long_texts.py",
        "test_no_key_of_a_finished_turn_with_long_texts_lives_for_ever",
    ),
    EngineMutant(
        "an answer goes with its attempts before its record does",
        "api_client/index/clearing.py",
        'if lives["attempts"] < lives["records"]:',
        "if False:",
        _STORE + "test_long_texts.py",
        "test_a_long_answer_stays_when_attempts_are_cleared_up_before_records",
    ),
    # An agent's output
    EngineMutant(
        "what waits when the agent ends is dropped",
        "worker/turns/event_writer.py",
        "        left, self._waiting = self._waiting, []\n",
        "        left, self._waiting = [], []\n",
        _UNIT + "test_record.py",
        "test_what_waits_when_the_agent_ends_is_left_to_the_commit",
    ),
    EngineMutant(
        "a long rest is left to the commit",
        "worker/turns/event_writer.py",
        "self._closing = _count_characters(self._waiting) <= _LEFT",
        "self._closing = True",
        _UNIT + "test_record.py",
        "test_a_long_rest_is_appended_in_pieces_and_not_left_to_the_commit",
    ),
    EngineMutant(
        "a run with half a log counts",
        "worker/turns/event_writer.py",
        "        if self._fault:\n            raise self._fault\n",
        "",
        _UNIT + "test_loop.py",
        "test_a_run_whose_log_cannot_be_written_does_not_count",
    ),
    EngineMutant(
        "the output that was not sent is forgotten",
        _TURNS + "task_work.py",
        "unsent=run.unsent,",
        "unsent=[],",
        _ENGINE,
        "test_output_that_waits_when_the_agent_ends_is_in_the_log_before_its_end",
    ),
    # Slots, and which turn comes next
    EngineMutant(
        "a process takes more turns than it has slots",
        "worker/turns/slots.py",
        "            if self._busy.get(queue, 0) >= self._limits.get(queue, 0):\n                return False\n",
        "",
        _UNIT + "test_queue.py",
        "test_a_turn_that_was_judged_does_not_run_again_in_place_where_no_slot_is_free_for_it",
    ),
    EngineMutant(
        "a slot that gets free wakes nobody",
        "worker/turns/slots.py",
        "            self._on_free()",
        "            pass",
        _UNIT + "test_queue.py",
        "test_a_message_that_came_too_late_to_be_left_alone_has_a_seat_beyond_the_limit",
    ),
    EngineMutant(
        "turns that failed hold up all others",
        "worker/turns/next_queue.py",
        "if self._in_a_row < PREFERRED_IN_A_ROW:",
        "if True:",
        _UNIT + "test_queue.py",
        "test_it_gets_three_of_four_places_while_others_wait",
    ),
    EngineMutant(
        "announcements pile up",
        _RECORD + "announcements.py",
        "    elif head.at > turn.at:\n        return None\n",
        "    elif True:\n        return None\n",
        _UNIT + "test_queue.py",
        "test_it_is_looked_at_again_before_its_deadline_and_within_a_bounded_time",
    ),
    EngineMutant(
        "a message that got lost is never announced again",
        _RECORD + "announcements.py",
        "    elif head.at > turn.at:\n        return None\n",
        "",
        _UNIT + "test_queue.py",
        "test_a_message_that_is_not_there_any_more_is_announced_again[head1]",
    ),
    # Hand-overs
    EngineMutant(
        "a process that ends goes on with the next task",
        _TURNS + "service.py",
        "if context.alone or lease.reason or parts.host.sick or",
        "if context.alone or parts.host.sick or",
        _IN_PLACE,
        "test_a_process_that_ends_hands_over_instead_of_going_on",
    ),
    EngineMutant(
        "a sick host takes turns",
        _TURNS + "service.py",
        "        if why := self.parts.host.sick or",
        "        if why := '' or",
        _ENGINE,
        "test_a_sick_host_gives_the_turn_back_unharmed_and_takes_none_until_it_is_well",
    ),
    EngineMutant(
        "a process that ends takes turns",
        _TURNS + "service.py",
        '"it ends" if self.parts.ends() else ""',
        '""',
        _ENGINE,
        "test_a_process_that_ends_claims_nothing_and_gives_back_at_once_what_has_not_started",
    ),
    EngineMutant(
        "a process that ends starts agents",
        _TURNS + "service.py",
        "            if self.parts.ends() and find_queue",
        "            if False and find_queue",
        _ENGINE,
        "test_a_process_that_ends_claims_nothing_and_gives_back_at_once_what_has_not_started",
    ),
    EngineMutant(
        "the session's next turn is left to a reaper",
        _TURNS + "service.py",
        "            if done.head and (head_link",
        "            if False and (head_link",
        _ENGINE,
        "test_the_next_turn_of_the_session_is_announced_when_this_one_ends",
    ),
    EngineMutant(
        "an answer that was accepted is judged again",
        _TURNS + "service.py",
        "            if lease.claim.accepted:",
        "            if False:",
        _ACCEPTING,
        "test_an_answer_whose_worker_dies_while_it_publishes_is_finished_by_another_and_not_judged_again",
    ),
    EngineMutant(
        "an answer is published without a seal",
        "worker/turns/publisher.py",
        "if await parts.ledger.seal_answer(",
        "if True or await parts.ledger.seal_answer(",
        _ACCEPTING,
        "test_a_cancel_while_an_answer_is_published_is_too_late[answer.published]",
    ),
    # A run and the verdict on its answer in one
    EngineMutant(
        "an answer is validated at once though validation is paused",
        _RECORD + "lua/commit.lua",
        "if run_ended == '1' and validated == '1' and not is_sealed() and",
        "if false and",
        _AT_ONCE,
        "test_a_pause_of_judging_keeps_the_answer_and_judges_it_afterwards[folder-to be rejected]",
    ),
    EngineMutant(
        "a run that was sealed is run again",
        _RECORD + "lua/seal.lua",
        "  set('state', 'validating')\n",
        "",
        _AT_ONCE,
        "test_an_answer_that_was_sealed_with_its_run_is_finished_by_the_next_holder[folder]",
    ),
    EngineMutant(
        "files that a rule could look beside are judged in the loop",
        "worker/turns/validation.py",
        "            if not case.bounded:\n                return None\n        attempt",
        "        attempt",
        _AT_ONCE,
        "test_files_of_an_answer_are_judged_and_published_with_it[child]",
    ),
    EngineMutant(
        "what was recorded of a run stays when the next one begins",
        _TURNS + "agent_run.py",
        "            folders.forget_runs(self._parts.settings, self._turn, range(attempt - 1, attempt))",
        "            pass",
        _AT_ONCE,
        "test_what_was_recorded_of_a_run_goes_with_the_next_run_or_with_the_answer",
    ),
    EngineMutant(
        "what was recorded of a run stays when its answer is published",
        "worker/turns/publisher.py",
        "    forget_runs(parts.settings, turn, ended)\n",
        "",
        _AT_ONCE,
        "test_what_was_recorded_of_a_run_goes_with_the_next_run_or_with_the_answer",
    ),
    EngineMutant(
        "what an earlier holder left recorded stays",
        _TURNS + "folders.py",
        "range(attempt if continued else 1, attempt + 1)",
        "range(attempt, attempt + 1)",
        _UNIT + "test_record.py",
        "test_a_holder_removes_what_is_recorded_of_its_own_run_and_of_those_before_it_that_others_held",
    ),
]
