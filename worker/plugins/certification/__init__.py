"""The certification kit, which drives a runner's real program through situations and checks its verdicts."""

COMMANDS = {
    "worker.certify": (
        "worker.plugins.certification.certify_command:certify_runner",
        "Drive a runner's real program through good and bad endings; say what its word is worth.",
    )
}
