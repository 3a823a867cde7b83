"""Policy files, flow versions and session templates, and their application to turns."""
