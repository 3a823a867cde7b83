"""Tool calls that a person allows: their part of the catalogues."""

FAILPOINTS = {
    "permit.asked": "approval server: the call that a person allowed is about to run, its yes is not used up",
}
