"""The asynchronous Python client of an installation, which the web relay and the CLI use."""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

from api_client.broker.announcer import Announcer
from api_client.budgets.budget_admission import BudgetLedger
from api_client.contract.admission import Admission
from api_client.contract.catalogue import load_declarations
from api_client.contract.errors import SettingsError
from api_client.contract.intake_pause import IntakePaused
from api_client.contract.order_log import Orders
from api_client.contract.plugins import ADMISSION, UnusablePlugin, find_plugins, make_plugin
from api_client.contract.session_files import StoredSessions, find_session_files
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.figures.figure_reader import FigureReader
from api_client.index.dead_letters import DeadLetters
from api_client.index.lists import TurnLists
from api_client.index.text_index import TextIndex
from api_client.interruptions.escalation_admission import EscalationAdmission
from api_client.notifications.notification_monitor import NotificationReporter
from api_client.notifications.outbox import NotificationOutbox
from api_client.pauses.pauses import Pauses
from api_client.policies.flows import FlowVersions
from api_client.policies.policy_admission import PolicyChoice, PolicyKeeper
from api_client.policies.policy_files import PolicyFiles
from api_client.policies.prompts import SessionTemplates
from api_client.relay_state.open_questions import OpenQuestions
from api_client.relay_state.openwebui_seen import OpenWebUIRequests
from api_client.relay_state.sign_ins import SignIns
from api_client.relay_state.signed_links import SignedLinks
from api_client.relay_state.submission_limits import SubmissionLimits
from api_client.store import Store
from api_client.store.audit import AuditLog
from api_client.turns.canceller import Canceller
from api_client.turns.finished_turns import FinishedTurns
from api_client.turns.inbox import Inbox
from api_client.turns.phase_client import PhaseSubmitter
from api_client.turns.reader import TurnReader
from api_client.turns.request_check import RequestCheck
from api_client.turns.sessions import Sessions
from api_client.turns.submitter import Submitter
from api_client.workers.installation_state import Workers
from api_client.workers.monitor import Monitor
from api_client.workers.probe import Prober
from api_client.workers.stuck_turns import StuckTurns


class TurnsClient:
    """Submits, reads and cancels turns of an installation, over one connection to the store.

    One client serves many tasks of one event loop. Close it, or use it as ``async with TurnsClient(settings)``.
    """

    def __init__(self, settings: Settings) -> None:
        self.store = Store(settings)
        self.settings = self.store.settings
        self.policies = PolicyFiles(settings)
        self.flows = FlowVersions(self.store)
        self.prompts = SessionTemplates(settings)
        self._announcer = Announcer(settings)
        self.reader = TurnReader(self.store)
        self.canceller = Canceller(self.store, self.reader, self._announcer)
        self.spending = BudgetLedger(self.store)
        self.submitter = Submitter(self.store, self._announcer, self.canceller, self._make_admissions(), IntakePaused)
        self.phases = PhaseSubmitter(self.store, self.submitter)
        self.audit = AuditLog(self.store)
        self.orders: Orders = self.audit
        self.inbox = Inbox(self.store, self.reader, self._announcer, self.orders)
        self.dead_letters = DeadLetters(self.store, self.reader)
        self.lists = TurnLists(self.store)
        self.texts = TextIndex(self.store)
        self.pauses = Pauses(self.store, self.orders)
        self.notifications = NotificationOutbox(self.store, self.orders)
        self.prober = Prober(self.store, self._announcer)
        self.sessions = Sessions(self.store)
        self.monitors: list[Monitor] = [
            each(getattr(self, each.part)) for each in load_declarations("MONITORS").values()
        ]
        self.workers = Workers(self.store, self.prober, self.monitors)
        self.monitors.append(StuckTurns(self.workers))
        self.reporters = [NotificationReporter(self.store, self.notifications)]
        self.figures = FigureReader(self.store)
        self.untraced = FinishedTurns(self.store, "traces")
        # State of the relay that is in the store besides turns.
        self.allowances = SubmissionLimits(self.store)
        self.open_questions = OpenQuestions(self.store)
        self.sign_ins = SignIns(self.store)
        self.links = SignedLinks(self.store)
        plugin = find_session_files(settings.files)
        self.session_files: StoredSessions | None = plugin.read(self.store) if plugin else None
        self.openwebui_seen = OpenWebUIRequests(self.store)

    def _make_admissions(self) -> list[Admission]:
        choice, check = PolicyChoice(self.settings, self.policies, self.flows), RequestCheck(self.settings)
        end = EscalationAdmission(self.settings)
        try:
            installed = [make_plugin(ADMISSION, name, self.store) for name in find_plugins(ADMISSION)]
        except UnusablePlugin as error:
            raise SettingsError([str(error)]) from error
        built_in = load_declarations("ADMISSIONS").values()
        declared = [each(self.store) for each in built_in if getattr(self.settings, each.setting)]
        return [choice, check, end, *installed, PolicyKeeper(self.store, choice, check, self.prompts), *declared]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client's connections. Submitted turns continue to run."""
        await self.reader.close()
        await self.store.close()
        self._announcer.close()

    async def complete_request(self, request: TurnRequest, named: Collection[str]) -> TurnRequest:
        """Return the request with its flow version, and with the policy file's values for fields not in ``named``.

        Raises ``BadRequest``, and ``SettingsError`` if a file of the settings was never usable.
        """
        return self.policies.apply_policy(await self.flows.assign_flow(request), named=named)
