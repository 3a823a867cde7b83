"""The failpoints of the code: what has happened when a process passes one."""

#: Boundaries of the crash matrix -> what has happened when a process passes the point.
POINTS = {
    "turn.announced": "submit: the turn is stored and announced, the caller not answered",
    "turn.stored": "submit: the turn is stored, not announced",
    "task.received": "task: Celery's message is taken, the turn not claimed",
    "run.claimed": "run: the turn is claimed, the delivery has no folder",
    "folder.made": "run: the folder is made, no agent started",
    "agent.started": "run: the agent is started, nothing read from it",
    "output.received": "run: in the middle of the agent's output",
    "agent.ended": "run: the agent ended, its verdict not found",
    "run.adopted": "run: a finished run of a lost delivery is adopted, nothing committed",
    "answer.accepted": "validate: the answer is accepted, nothing stored or published",
    "answer.published": "validate: the answer and .done are published, nothing committed",
    "run.committed": "run: the run is committed, its validation not begun",
    "validation.started": "validate: in the middle of validation",
    "link.decided": "any task: decided, not committed",
    "turn.finished": "any task: the turn is finished, the session's next turn not announced",
    "result.sent": "relay: the turn's end is sent, [DONE] not",
    "turn.reaped": "reaper: the turn is taken back, not announced",
    "answer.sealed": "validate: the answer is sealed, a file of it not written",
}
#: The same of optional capabilities.
CAPABILITY_POINTS = {
    "restore.file": "restore: a file was put in its place",
    "restore.keys": "restore: some keys were copied into the store",
    "policy.kept": "submit: policy and template are in the store, the turn is not",
    "notification.due": "notifier: a notification is to be sent, no target has it",
    "notification.taken": "notifier: a target took a notification, the outbox does not know",
    "files.restored": "any task: the session's folder is what its snapshot says, nothing done yet",
    "files.uploaded": "any task: the session's files are uploaded, no transition or seal says so",
    "permit.asked": "approval server: the call that a person allowed is about to run, its yes is not used up",
    "message.moved": "kept agent: the files of its message are moved, the marks are not",
    "spare.moved": "spare: its folder is the session's, which its sandbox does not show yet",
    "spare.shown": "spare: its sandbox shows the session, its process has not been told",
}
