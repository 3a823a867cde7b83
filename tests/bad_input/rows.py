"""The 72 kinds of bad input that the relay, the command line, the store and agents must take, each with its tests.

A row is a number, what comes in, and the tests that hold it: ``file::test``, relative to ``tests/``. A test named here
must exist; a row without one must say why. ``differs`` says where what is built is not what was first proposed.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        what: what comes in.
        tests: those that hold it. real: those of them that need the real Claude CLI (``make e2e-claude``).
        untested: why there is no test; empty when there is.
        differs: how what is built differs from the proposal, and why.
    """

    what: str
    tests: tuple[str, ...] = ()
    real: tuple[str, ...] = ()
    untested: str = ""
    differs: str = ""


_BAD = "unit/web/test_bad_requests.py::"
_FIELD = f"{_BAD}test_a_field_that_is_wrong_is_named"
_JSON = f"{_BAD}test_json_that_readers_would_not_agree_on_is_refused"
_ONE_KEY = "unit/web/test_access.py::test_without_a_known_key_there_is_one_answer"
_ASK = "unit/web/test_ask.py::"
_PHASE = "unit/verification/test_phase.py::"
_HEADER = "unit/enforcement/test_adr.py::"
_FOREIGN = "unit/enforcement/test_foreign_input.py::"
_WORKSPACE = "unit/runners/test_workspace.py::"
_MAIN = "unit/cli/test_main.py::"
_SETTINGS = "unit/test_settings.py::"

ROWS: dict[int, Row] = {
    1: Row("no key, Bearer alone, a wrong key, two headers", (_ONE_KEY,)),
    2: Row("a key in the query or in x-api-key", (_ONE_KEY,)),
    3: Row("a body that is empty, null, a list or a text", (_JSON,)),
    4: Row(
        "broken or truncated JSON", (_JSON, f"{_BAD}test_every_message_says_which_field_what_came_and_what_is_allowed")
    ),
    5: Row("100,000 nested lists", (_JSON,)),
    6: Row("an integer of 5,000 digits", (_JSON,)),
    7: Row("NaN, Infinity, 1e999", (_JSON,)),
    8: Row("a key twice", (_JSON,)),
    9: Row(
        "invalid UTF-8, UTF-16, a byte order mark",
        (_JSON, f"{_BAD}test_a_byte_order_mark_and_ignored_parameters_are_fine"),
    ),
    10: Row("half a surrogate", (_JSON,)),
    11: Row(
        "NUL and other controls", (_JSON, "bad_input/test_http.py::test_11_controls_other_than_nul_stay_in_the_record")
    ),
    12: Row("another content type", (f"{_BAD}test_only_plain_json_is_read",)),
    13: Row(
        "a body over the limit, its length true, false or not told",
        (f"{_BAD}test_a_body_over_the_limit_is_refused", f"{_BAD}test_a_huge_body_is_neither_kept_nor_read_to_its_end"),
    ),
    14: Row(
        "a body or a head that comes byte by byte, or never ends",
        (
            f"{_BAD}test_a_body_that_never_ends_is_given_up",
            "unit/web/test_connection.py::test_a_head_that_never_ends_is_not_waited_for",
        ),
    ),
    15: Row("a compressed body", (f"{_BAD}test_only_plain_json_is_read",)),
    16: Row("messages missing, empty, null or a text", (_FIELD,)),
    17: Row(
        "a last message that is not the user's", (_FIELD, f"{_ASK}test_only_a_page_may_end_with_the_assistants_text")
    ),
    18: Row("an unknown role, content of another type", (_FIELD,)),
    19: Row("content in parts", (_FIELD, f"{_ASK}test_text_parts_are_joined")),
    20: Row("an address in a message", ("bad_input/test_http.py::test_20_an_address_in_a_message_is_never_asked",)),
    21: Row("nothing visible, or a character too many", (_FIELD,)),
    22: Row("n other than 1", (_FIELD,)),
    23: Row("stream that is no boolean", (_FIELD,)),
    24: Row(
        "parameters without a meaning here",
        (f"{_BAD}test_a_byte_order_mark_and_ignored_parameters_are_fine",),
        differs="ignored without a warning header: docs/http-api.md lists them",
    ),
    25: Row("response_format", (_FIELD,), differs="no schema is read at all: only text is taken"),
    26: Row("max_tokens out of range", (_FIELD,)),
    27: Row("an unknown model", (_FIELD, f"{_BAD}test_what_came_is_never_echoed_beyond_80_characters")),
    28: Row("unknown validators, deadlines and attempts out of range", (_FIELD, _JSON)),
    29: Row(
        "an idempotency key that is none",
        (f"{_BAD}test_an_idempotency_key_is_printable_ascii", f"{_BAD}test_two_idempotency_keys_are_one_too_many"),
    ),
    30: Row(
        "an idempotency key with another body",
        ("integration/test_web_store.py::test_an_idempotency_key_stands_for_one_turn",),
    ),
    31: Row(
        "hostile chat ids, another owner's",
        (
            f"{_ASK}test_any_chat_id_becomes_a_harmless_name",
            f"{_ASK}test_another_owners_chat_id_opens_nothing",
            "integration/test_two_owners.py::test_foreign_object_idempotency_keys_and_chats_are_told_apart_by_owner",
        ),
    ),
    32: Row(
        "a forged user",
        (
            "unit/web/test_keys.py::test_a_key_that_does_not_forward_is_itself_whatever_user_it_names",
            "unit/web/test_keys.py::test_a_token_that_is_not_right_names_nobody",
        ),
    ),
    33: Row(
        "line ends and other characters in headers",
        (
            "bad_input/test_http.py::test_33_a_line_end_in_a_header_makes_no_header_of_an_answer",
            "bad_input/test_http.py::test_33_the_id_of_an_answer_is_ours_whatever_was_sent",
        ),
    ),
    34: Row(
        "ids of turns: foreign, random, none at all",
        (
            "unit/web/test_access.py::test_another_owners_turn_does_not_exist",
            "bad_input/test_http.py::test_34_an_id_that_is_none_is_not_found_like_a_foreign_one",
        ),
        differs="equal timing was measured (12.5 and 12.6 ms), not tested: no test measures time",
    ),
    35: Row(
        "Last-Event-ID of another log, too large, or none",
        (
            f"{_BAD}test_a_last_event_id_that_is_none_is_refused",
            "unit/web/test_turns.py::test_a_reader_of_another_log_is_told_to_start_over",
        ),
    ),
    36: Row("cancel twice, cancel what is finished", ("unit/web/test_turns.py::test_cancelling_twice_answers_twice",)),
    37: Row(
        "wrong methods and addresses",
        (
            f"{_BAD}test_every_address_answers_with_the_error_object",
            "integration/test_web_limits.py::test_head_works_where_get_does_and_ends_at_once",
        ),
    ),
    38: Row(
        "smuggling, HTTP/0.9, a chunk of 2 GB",
        (
            f"{_BAD}test_a_body_with_two_lengths_is_refused",
            "bad_input/test_http.py::test_38_what_readers_could_read_in_two_ways_is_refused_on_the_wire",
            "bad_input/test_http.py::test_38_a_chunk_of_two_gigabytes_is_not_waited_for",
        ),
    ),
    39: Row(
        "1,000 streams, a full queue, a busy session",
        (
            "integration/test_web_store.py::test_a_relay_serves_more_streams_than_the_usual_limit_of_open_files_allows",
            "integration/test_web_store.py::test_a_relay_before_a_long_queue_takes_in_no_more_until_a_turn_has_ended",
            "integration/test_web_store.py::test_a_busy_chat_can_refuse",
        ),
    ),
    40: Row(
        "a store that is away, full or read-only at submit",
        (
            "integration/test_web_store.py::test_a_store_that_is_away_is_a_503_within_two_seconds",
            "fault/test_broker_trouble.py::test_while_nothing_can_be_stored_callers_hear_it_at_once_and_afterwards_all_goes_on",
            "fault/test_broker_disk.py::test_while_the_brokers_disk_is_full_nothing_is_stored_by_half_and_afterwards_all_goes_on",
        ),
    ),
    41: Row(
        "prompts of background tasks, forged ones and ones that hurt",
        (
            "unit/web/test_ask.py::test_the_header_decides",
            "unit/web/test_ask.py::test_what_a_user_wrote_is_a_turn_whatever_it_looks_like",
            "unit/web/test_hostile_texts.py::test_no_background_request_holds_up_the_loop",
        ),
    ),
    42: Row(
        "line ends and frames in a text",
        ("unit/web/test_reply.py::test_line_ends_of_every_kind_stay_inside_the_string",),
    ),
    43: Row(
        "an event object in an agent's text",
        ("unit/web/test_reply.py::test_an_event_object_in_an_agents_text_is_text",),
    ),
    44: Row(
        "markup in what anybody wrote",
        ("integration/test_pages.py::test_what_anybody_wrote_is_text_and_never_markup",),
        differs="the relay does not change an answer's text: what shows it must treat it as text",
    ),
    45: Row(
        "forged markers",
        (
            "bad_input/test_agent.py::test_45_a_step_is_one_of_the_six_words_in_ascii",
            "unit/enforcement/test_step_marker.py::test_a_users_marker_and_trigger_words_name_no_step",
            "unit/enforcement/test_step_marker.py::test_a_marker_in_code_or_a_quote_does_not_count",
            "unit/enforcement/test_step_marker.py::test_the_last_of_several_markers_counts_and_several_are_a_warning",
        ),
    ),
    46: Row(
        "markup or 10 kB in a status line",
        ("unit/web/test_reply.py::test_whatever_an_event_holds_only_our_own_status_lines_leave",),
    ),
    47: Row(
        "unknown options, missing arguments, an id that is not there",
        (
            f"{_MAIN}test_wrong_use_is_one_line_on_stderr_and_exit_code_2",
            "integration/test_cli.py::test_a_turn_that_does_not_exist_is_exit_code_1_and_one_line",
        ),
    ),
    48: Row("addresses that cannot work", (f"{_SETTINGS}test_an_address_that_cannot_work_is_refused_and_never_shown",)),
    49: Row(
        "numbers that are none",
        (
            f"{_SETTINGS}test_a_number_out_of_range_is_refused_with_its_name_and_range",
            f"{_SETTINGS}test_a_whole_number_is_plain_digits_in_range",
        ),
    ),
    50: Row(
        "HELIX_ROOT missing, a file, read-only, a link to /, on a full disk",
        (
            "bad_input/test_cli.py::test_50_a_root_that_is_none_stops_the_command_at_once",
            "bad_input/test_cli.py::test_50_a_root_that_cannot_be_written_is_named_with_the_reason",
            "bad_input/test_cli.py::test_50_a_disk_without_room_is_one_line",
        ),
    ),
    51: Row("standard output that closes", (f"{_MAIN}test_a_reader_that_goes_away_is_no_error",)),
    52: Row(
        "terminals: not UTF-8, narrow, without colours, none",
        (
            f"{_MAIN}test_a_terminal_that_cannot_show_a_letter_gets_a_question_mark",
            f"{_MAIN}test_a_narrow_terminal_is_no_error",
            "unit/cli/test_timeline.py::test_no_color_is_honoured",
            "unit/cli/test_timeline.py::test_a_pipe_gets_plain_lines_with_their_numbers",
        ),
    ),
    53: Row(
        "replaying what goes on, a dead letter twice",
        (
            "integration/test_actions.py::test_a_turn_that_goes_on_is_not_replayed_and_one_that_lives_not_dropped",
            "integration/lua/test_dead_letters.py::test_a_dead_letter_stays_until_it_is_dropped_and_its_replay_is_one_new_turn",
        ),
    ),
    54: Row(
        "alias bombs",
        (
            f"{_HEADER}test_an_alias_bomb_is_not_expanded_and_many_aliases_are_refused",
            f"{_PHASE}test_hostile_or_broken_yaml_is_one_clear_error",
        ),
    ),
    55: Row(
        "an alias of itself, deep nesting",
        (
            f"{_HEADER}test_an_alias_of_itself_is_read",
            f"{_HEADER}test_deep_nesting_is_refused",
            f"{_PHASE}test_hostile_or_broken_yaml_is_one_clear_error",
        ),
    ),
    56: Row(
        "tags, NUL, tabs, several documents, keys twice, words that are no texts in YAML 1.1",
        (
            f"{_HEADER}test_custom_tags_tabs_and_broken_syntax_are_issues_with_a_line",
            f"{_HEADER}test_unreadable_characters_are_an_issue",
            f"{_HEADER}test_a_key_twice_is_told_with_its_line",
            f"{_HEADER}test_several_documents_are_refused",
            f"{_HEADER}test_values_stay_the_text_they_are",
        ),
    ),
    57: Row(
        "ADRs of 10 MB, of 100,000 headings, of brackets",
        (
            "unit/enforcement/test_validators.py::test_an_answer_beyond_all_measure_is_not_examined",
            f"{_HEADER}test_an_endless_header_is_refused",
            f"{_FOREIGN}test_no_text_makes_anything_raise",
        ),
    ),
    58: Row(
        "texts that regular expressions choke on",
        (
            f"{_FOREIGN}test_twice_the_text_takes_about_twice_the_time",
            "unit/web/test_reply.py::test_twice_the_text_takes_about_twice_the_time",
            "unit/web/test_hostile_texts.py::test_no_text_of_a_body_holds_up_the_loop",
        ),
    ),
    59: Row(
        "paths out of the project, impossible names",
        (
            "unit/enforcement/test_file_existence.py::test_a_path_that_leaves_the_project_is_outside",
            "unit/enforcement/test_file_existence.py::test_whether_something_exists_outside_cannot_be_asked",
            "unit/enforcement/test_file_existence.py::test_a_name_no_file_can_have_is_never_looked_up",
            f"{_PHASE}test_what_is_wrong_with_a_phase_is_said_in_a_sentence",
        ),
    ),
    60: Row(
        "links, loops, pipes, devices, huge and very many files, also swapped in between",
        (
            f"{_WORKSPACE}test_links_pipes_folders_second_names_and_huge_files_are_left_out",
            f"{_WORKSPACE}test_only_so_many_files_are_read",
            "unit/enforcement/test_file_existence.py::test_links_inside_the_project_are_followed_and_loops_are_missing",
            "integration/test_gates.py::test_pipes_and_second_names_are_no_files",
            "integration/test_gates.py::test_an_output_beyond_the_limits_is_not_examined",
            f"{_PHASE}test_what_is_no_plain_file_is_refused_at_once_with_file_and_line",
            "integration/test_two_owners.py::test_an_input_that_is_a_link_or_a_pipe_is_refused_with_its_place",
        ),
    ),
    61: Row(
        "validators that raise, hang, end or change what they see",
        (
            "unit/enforcement/test_validators.py::test_a_validator_that_fails_is_an_issue_and_the_others_still_judge",
            "unit/enforcement/test_validators.py::test_a_validator_cannot_change_what_the_next_one_sees",
            "integration/test_judges.py::test_a_validator_that_hangs_or_dies_is_blamed_and_the_others_are_heard",
        ),
    ),
    62: Row(
        "damaged records",
        (
            "bad_input/test_store.py::test_62_a_damaged_record_holds_up_no_other_turn",
            "bad_input/test_store.py::test_62_an_extra_field_is_left_alone",
            "integration/lua/test_reap.py::test_a_damaged_record_is_put_aside_and_holds_up_no_other_turn",
            "integration/test_pages.py::test_a_damaged_record_hides_no_other",
        ),
        differs="20 MB, not 512: it would only test this machine's memory",
    ),
    63: Row(
        "messages in the queues of others",
        ("bad_input/test_store.py::test_63_messages_of_others_are_refused_and_the_worker_goes_on",),
    ),
    64: Row("lists that name no turn", ("bad_input/test_store.py::test_64_lists_that_name_no_turn_hold_up_nobody",)),
    65: Row(
        "garbage on a turn's channel",
        ("bad_input/test_store.py::test_65_what_others_shout_on_a_turns_channel_is_not_believed",),
    ),
    66: Row(
        "an agent's output: invalid, endless, cut lines",
        (
            "unit/runners/test_claude_run_files.py::test_a_strange_line_breaks_nothing",
            "unit/runners/test_claude_answer.py::test_a_line_that_means_nothing_is_skipped_and_counted",
            "fault/test_scripted_runner.py::test_a_line_without_an_end_is_a_limit_error",
            "fault/test_scripted_runner.py::test_separators_inside_a_text_do_not_cut_it",
            "fault/test_scripted_runner.py::test_half_a_line_at_the_end_is_skipped_and_counted",
        ),
    ),
    67: Row(
        "two results, strange figures",
        (
            "unit/runners/test_claude_run_files.py::test_the_last_result_counts",
            "bad_input/test_agent.py::test_67_a_number_that_makes_no_sense_counts_as_nothing",
            "unit/runners/test_claude_run_files.py::test_only_a_transcript_of_the_runs_own_home_is_kept",
        ),
        differs="a strange figure counts as nothing, and is not flagged",
    ),
    68: Row(
        "sequences that drive a terminal, forged log lines",
        (
            "unit/cli/test_timeline.py::test_what_an_agent_writes_never_drives_the_terminal",
            "unit/enforcement/test_isolation.py::test_an_answer_cannot_drive_the_terminal",
            "unit/test_logs.py::test_an_exception_is_one_line_in_json",
        ),
    ),
    69: Row(
        "files that steer: .done, CLAUDE.md, settings, status.json, messages.json",
        (
            "bad_input/test_agent.py::test_69_files_that_steer_are_the_workers_own_and_71_no_log_holds_a_key",
            f"{_WORKSPACE}test_a_new_attempt_takes_the_done_mark_away_and_leaves_the_answer",
        ),
        real=("claude/test_safety.py::test_settings_in_the_agents_folder_do_not_disarm_the_hooks",),
    ),
    70: Row(
        "response.md as a link, a pipe, a folder, too large, not UTF-8",
        (
            f"{_WORKSPACE}test_links_pipes_folders_second_names_and_huge_files_are_left_out",
            f"{_WORKSPACE}test_a_linked_output_folder_is_not_read",
            f"{_WORKSPACE}test_what_the_agent_wrote_is_found",
        ),
    ),
    71: Row(
        "keys in an agent's output",
        (
            "bad_input/test_agent.py::test_69_files_that_steer_are_the_workers_own_and_71_no_log_holds_a_key",
            "integration/test_log_lines.py::test_a_turn_is_found_by_its_ids_and_no_line_holds_a_secret_or_a_text",
            "integration/test_bundle.py::test_secrets_are_masked_by_value_and_by_look",
        ),
        differs="no issue secret_leak: an answer's text stays as it is; logs and bundles hold no secret",
    ),
    72: Row(
        "prompts that look like commands",
        (
            "unit/runners/test_claude_run_files.py::test_any_message_is_bytes_that_begin_with_our_line",
            "unit/consultant/test_session.py::test_what_users_write_cannot_leave_its_code_block",
        ),
        real=(
            "claude/test_safety.py::test_a_message_is_text_and_nothing_else",
            "claude/test_route.py::test_a_hostile_message_through_the_route_is_text_and_nothing_else",
        ),
    ),
}
