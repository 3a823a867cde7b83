"""An agent run for an attempt of a turn, with its own folder, events and limits."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import structlog

from api_client.contract.answer_format import add_format
from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.completion import ErrorKind
from api_client.contract.errors import SettingsError
from api_client.contract.events import Body
from api_client.contract.failpoints import FailpointError, pass_failpoint, pass_failpoint_async
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from api_client.contract.work import find_work
from api_client.policies.stored_policies import name_template
from api_client.turns.record.transition import to_policy_attempts
from api_client.turns.record.turn_policy import find_turn_policy
from worker.enforcement.answer_continuation import trim_partial_marks
from worker.enforcement.attempt import find_best_attempt, latest_attempts
from worker.enforcement.feedback import continuation_feedback
from worker.enforcement.policy import weigh_attempts
from worker.files.template import read_template
from worker.files.workspace import DeliveryTakenError, has_answer
from worker.runners.base import (
    AdoptingRunner,
    AgentEvent,
    AnyRunner,
    Emit,
    Order,
    Runner,
    RunResult,
    Stop,
    config_error,
    continues_answer,
    needs_folder,
    not_begun,
    reads_files,
    runs_in_loop,
)
from worker.runners.sandbox.guard_client import shared_processes
from worker.runners.sandbox.process_tags import kill_earlier_deliveries
from worker.turns import folders
from worker.turns.continued_output import Continuation, ResumedOutput
from worker.turns.engine_parts import EngineParts
from worker.turns.event_writer import EventWriter
from worker.turns.interruptions.kind import RunContext
from worker.turns.interruptions.registry import find_kind, list_kinds
from worker.turns.leases.lease import Lease
from worker.turns.run_equipment import EquipmentContext, RunControl, is_equipment_loaded, load_equipment
from worker.turns.work import find_turn_work

log = structlog.get_logger()


class AgentRun:
    """Runs the agent once for an attempt of a turn, after preparing the run's folder, prompt and event log.

    Attributes:
        unsent: the run's last events, to be stored together with the next transition.
        answer_used: the run's nonce once the run has used up a person's answer; empty before.
        broken: the text of an interrupted delivery to continue. before_answer: the agent's text before a question.
    """

    def __init__(
        self,
        parts: EngineParts,
        lease: Lease,
        history: Sequence[AttemptRecord],
        broken: str = "",
        before_answer: str | None = None,
    ) -> None:
        self._parts = parts
        self._before_answer = before_answer
        self._lease = lease
        self._turn = lease.claim.turn
        self._history = history
        self.prompt = history[-1].feedback if history else self._turn.request.prompt
        self._so_far = trim_partial_marks(history[-1].text) if history and history[-1].goes_on else ""
        self.unsent: list[Body] = []
        self.answer_used, self._nonce, self._at_end = "", "", contextlib.ExitStack()
        if broken:
            self._so_far = trim_partial_marks(broken)
            self.prompt = continuation_feedback(self._so_far, self._turn.request.locale)

    async def run_agent(self) -> RunResult:
        """Run the agent until it ends, and return the result. A failed start becomes a result with an error.

        Raises ``LeaseLost``, or ``NotAdmitted`` if an admission refused the run.
        """
        try:
            runner, order = (
                await self._parts.threads.do_file_work(self._prepare_run, True)
                if self._may_block()
                else self._prepare_run(False)
            )
            await self._lease.confirm_holder(self._parts.ledger)
            order = self._equip_order(order)
        except SettingsError as error:
            log.error("attempt.not_started", error=str(error)[:200])
            return config_error(str(error))
        except (DeliveryTakenError, OSError) as error:
            log.error("attempt.not_started", error=str(error)[:200])
            host = isinstance(error, OSError) and await self._parts.threads.do_file_work(
                self._parts.host.is_to_blame, error, self._turn.delivery
            )
            return not_begun(str(error), host=host)
        writer = EventWriter(self._parts.ledger, self._lease.claim)
        try:
            continuation: Continuation | ResumedOutput | None = None
            if self._before_answer is not None and continues_answer(runner, order):
                continuation = ResumedOutput(self._before_answer, writer.queue_event)
            elif self._so_far:
                continuation = Continuation(self._so_far, writer.queue_event)
            emit = continuation.handle_event if continuation else writer.queue_event
            result: RunResult | None = None
            if (
                order.recorded
                and order.delivery > 1
                and not self._lease.continued
                and isinstance(runner, AdoptingRunner)
            ):
                result = await self._adopt_earlier_run(runner, order, emit)
            if result is None and self._parts.admissions:
                await self._parts.admissions.admit_run(self._turn, order.model)
            if result is None and order.interruption and needs_folder(runner):
                result = await self._move_earlier_files(order, order.interruption.delivery)
            result = result or await self._run_equipped(runner, order, emit)
            if self._parts.host.note_run_end(result.completion):
                await self._parts.threads.do_file_work(self._parts.host.probe_now)
            if result.completion.kind is ErrorKind.HOST:
                result = await self._parts.threads.do_file_work(
                    self._parts.host.reclassify_result, result, self._turn.delivery
                )
            if result.kept_seconds:
                await self._parts.ledger.set_affinity(order.turn_id, order.session_id, result.kept_seconds)
            return continuation.join_result(result) if continuation else result
        finally:
            self._at_end.close()
            self.unsent = await writer.close()

    async def _adopt_earlier_run(self, runner: AdoptingRunner, order: Order, emit: Emit) -> RunResult | None:
        """Return the finished result of a run whose worker died, or None. Reusing it saves a second paid run."""
        result = await self._parts.threads.do_file_work(self._find_finished_run, runner, order)
        if result:
            emit(AgentEvent(kind="output", text=result.text))
            await pass_failpoint_async("run.adopted")
        return result

    def _find_finished_run(self, runner: AdoptingRunner, order: Order) -> RunResult | None:
        asked = self._turn.interruption
        if asked and not find_kind(asked).may_adopt_run(self._turn, asked):
            return None
        asked_in = asked.delivery if asked else 0  # the interruption already holds everything from before
        for number in range(order.delivery - 1, asked_in, -1):
            folder = folders.locate_other_delivery(order.directory, self._turn, order.attempt, number)
            if result := runner.adopt(replace(order, delivery=number, directory=folder, recorded=False)):
                log.warning("run.adopted", delivery=number)
                evidence = {**result.completion.evidence, "adopted": number}
                return replace(result, completion=replace(result.completion, evidence=evidence), adopted=number)
        return None

    async def _move_earlier_files(self, order: Order, asked_in: int) -> RunResult | None:
        """Move files written before the agent's question into the resumed run's folder. Return any error result."""
        take = self._parts.threads.do_file_work
        try:
            await take(folders.take_over_files, self._parts.settings, self._turn, order.attempt, asked_in)
        except OSError as error:
            return not_begun(f"the files from before the question could not be moved: {error}", host=True)
        return None

    async def _run_equipped(self, runner: AnyRunner, order: Order, emit: Emit) -> RunResult:
        control = RunControl(self._lease, emit)
        context = EquipmentContext(
            turn=self._turn,
            settings=self._parts.settings,
            token=self._lease.claim.token,
            control=control,
            use_up=self._use_up,
        )
        stop: RunControl | Lease = self._lease
        async with contextlib.AsyncExitStack() as held:
            try:
                if not is_equipment_loaded():
                    await self._parts.threads.do_file_work(load_equipment)
                for equipment in load_equipment():
                    if equipped := equipment.equip_run(order, context):
                        order, stop = await held.enter_async_context(equipped), control
            except SettingsError as error:
                return config_error(str(error))
            except OSError as error:
                return not_begun(str(error), host=False)
            result = await self._run_runner(runner, order, emit, stop)
        return result if stop is self._lease else control.apply_to(result)

    async def _run_runner(self, runner: AnyRunner, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run the agent and return its result. A runner's exception or invalid value becomes an error result."""
        try:
            result: object = await (  # a plug-in may return anything
                runner.run_async(order, emit, stop)
                if runs_in_loop(runner)
                else self._run_in_thread(cast("Runner", runner), order, emit, stop)
            )
        except Exception as error:
            await self._parts.threads.do_run(shared_processes().end_agent, order.process_tag)
            if self._lease.reason or isinstance(error, MemoryError | FailpointError):
                raise  # the worker is stopping, failing or has lost the turn, so another delivery follows
            log.exception("runner.raised", runner=runner.name)
            said = (
                f"runner {runner.name!r} raised {type(error).__name__}; the worker's log has its text (runner.raised)"
            )
            return not_begun(said, host=False) if isinstance(error, OSError) else config_error(said)
        if isinstance(result, RunResult):
            problem = result.interruption.problem if result.interruption else ""
            return config_error(f"runner {runner.name!r}: {problem}") if problem else result
        await self._parts.threads.do_run(shared_processes().end_agent, order.process_tag)
        return config_error(f"runner {runner.name!r} returned {type(result).__name__}; it must return a RunResult")

    async def _run_in_thread(self, runner: Runner, order: Order, emit: Emit, stop: Stop) -> RunResult:
        loop = asyncio.get_running_loop()

        def emit_from_thread(event: AgentEvent) -> None:
            loop.call_soon_threadsafe(emit, event)

        return await self._parts.threads.do_run(runner.run, order, emit_from_thread, stop)

    def _may_block(self) -> bool:
        turn, lease = self._turn, self._lease
        if not find_work(turn.request).in_session or lease.lapsed or (turn.delivery > 1 and not lease.continued):
            return True
        if folders.may_write_files(self._parts.settings, turn, self._parts.runners):
            return True
        return not lease.continued and has_answer(folders.locate_turn_folder(self._parts.settings, turn))

    def _equip_order(self, order: Order) -> Order:
        context = RunContext(
            turn=self._turn,
            settings=self._parts.settings,
            policy=partial(self._parts.policies.find_policy, self._turn),
            use_up=self._use_up,
            at_end=self._at_end.callback,
        )
        try:
            for kind in list_kinds():
                order = kind.extend_order(order, context)
        except BaseException:
            self._at_end.close()
            raise
        return order

    def _use_up(self) -> bool:
        """Mark a person's answer as used by this run. Return False if it was already used. Call from a thread."""
        self._nonce = self._nonce or secrets.token_hex(12)
        done = self._parts.threads.run_in_loop(self._parts.ledger.use_up(self._lease.claim, self._nonce))
        self.answer_used = self._nonce if done else ""
        return done

    def _prepare_run(self, may_block: bool) -> tuple[AnyRunner, Order]:
        pass_failpoint("run.claimed")
        attempt = self._lease.claim.chain_task.attempt
        if (
            may_block
            and self._lease.continued
            and folders.may_be_recorded(self._parts.settings, self._turn, self._parts.runners)
        ):
            folders.forget_runs(self._parts.settings, self._turn, range(attempt - 1, attempt))
        self.prompt = (
            find_turn_work(self._turn).write_prompt(self._parts.settings, self._turn, self._history) or self.prompt
        )
        prepared = self._build_order(may_block)
        pass_failpoint("folder.made")
        return prepared

    def _confirm_lease(self) -> None:
        if self._lease.lapsed:  # without a lapse the event loop need not be asked
            self._parts.threads.run_in_loop(self._lease.confirm_holder(self._parts.ledger))

    def _prepare_folder(self, settings: Settings, runner: AnyRunner) -> None:
        turn = self._turn
        needed = not find_work(turn.request).in_session or needs_folder(runner)
        folders.prepare_delivery(
            settings,
            turn,
            self._lease.claim.chain_task.attempt,
            self._history,
            self._confirm_lease,
            needed=needed,
            template=self._load_template(settings) if needed else "",
            token=self._lease.claim.token,
            tools=reads_files(runner),
        )
        if (
            turn.delivery > 1
            and not self._lease.continued
            and (left := kill_earlier_deliveries(turn.turn_id, turn.delivery))
        ):
            log.error("attempt.left_processes", pids=left)

    def _build_order(self, may_block: bool) -> tuple[AnyRunner, Order]:
        turn = self._turn
        name = turn.stage_model or turn.request.model
        settings = self._parts.settings.for_model(name)
        model = settings.models.get(name)
        if model is None:
            raise SettingsError([f"this worker offers no model {name!r}; see HELIX_MODELS"])
        runner, option = self._parts.runners(model)
        attempt = self._lease.claim.chain_task.attempt
        if may_block:
            self._prepare_folder(settings, runner)
        prompt, messages = add_format(turn.request, self.prompt)
        order = Order(
            turn_id=turn.turn_id,
            session_id=turn.request.session_id,
            attempt=attempt,
            delivery=turn.delivery,
            prompt=prompt,
            messages=messages,
            workdir=folders.locate_turn_folder(settings, turn),
            directory=folders.locate_own_folder(settings, turn, attempt),
            agent_session=turn.agent_session,
            so_far=self._so_far,
            rejected=_find_rejected_answer(turn, self._history) if self._history else "",
            model=name,
            option=option,
            locale=turn.request.locale,
            deadline=self._lease.deadline,
            idle_seconds=settings.idle_seconds,
            kill_grace_seconds=settings.kill_grace_seconds,
            inputs=find_turn_work(turn).list_inputs(settings, turn),
            action_log=settings.action_log,
            owner="" if not find_work(turn.request).in_session or self._parts.host.sick else turn.request.owner,
            recorded=may_block and folders.is_recorded(runner),
            interruption=turn.interruption,
        )
        return runner, order

    def _load_template(self, settings: Settings) -> str:
        turn = self._turn
        if turn.request.template and not turn.stage_model:
            text = self._parts.policies.find_template(turn)
            if text is not None:
                return text
            log.warning("prompt.gone", template=turn.request.template)
        return read_template(name_template(turn, settings), turn.request.locale)


def _find_rejected_answer(turn: Turn, records: Sequence[AttemptRecord]) -> str:
    attempts = weigh_attempts(latest_attempts(to_policy_attempts(records)), find_turn_policy(turn))
    kept = find_best_attempt(attempts)
    return kept.answer if kept else ""
