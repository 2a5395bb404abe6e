# `make` lists the targets. Every change must pass `make test` and `make check`.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

# The modules that users import or install, and the other modules. Each is checked by itself and without the workspace, so
# with the versions that its users get.
MODULES := . adapters/stilecertmagic adapters/stilecron adapters/stilegocron adapters/stilegoose adapters/stilek8s adapters/stilemigrate adapters/stileotel guard/s3guard store/etcdstore store/redisstore store/redlockstore store/zkstore storeurl cmd/stile
BESIDE  := examples examples/leader examples/migration lab
# Not in the workspace, as tools: Prometheus' requirements would raise the versions that the command is built with.
PROMTEST := cmd/stile/internal/metrics/promtest
each_module = for m in $(MODULES); do cd $(CURDIR)/$$m;

BIN      := $(CURDIR)/.bin
CHECKERS := $(BIN)/gofumpt $(BIN)/golangci-lint $(BIN)/typecheck $(BIN)/prose
started  := $(shell date +%s)

# Each recipe decides itself whether to use the workspace: GOWORK must be empty unless the recipe sets it.
unexport GOWORK

# Environment of compilers and linters, never of tests. They run for seconds only, so they do less work if they collect
# garbage less often.
rare_gc := GOGC=400 GOMEMLIMIT=2GiB

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 15

# Three commands: go test ./... while you work on a package, make test to run all tests, make check before you submit a change.

.PHONY: test
test: servers $(BIN)/gotestsum ## run all tests of the library and the command, with real servers and the race detector
	STARTED=$(started) $(BIN)/gotestsum --format=pkgname --jsonfile=$(BIN)/test.json \
		--post-run-command=tools/test-summary --raw-command -- tools/test-events

.PHONY: check
check: fmt vet lint prose tidy types examples alerts release-check lab torture-smoke ## the other checks: formatting, linters, other systems, faults

N        ?= 10
BUSY     ?= 0
PACKAGES ?=
.PHONY: test-again
test-again: ## N whole runs in fresh clones, or of PACKAGES=timing, with BUSY busy processes (N=10 BUSY=0)
	tools/test-again $(N) $(BUSY) $(PACKAGES)

# Static, as the packages are: the program starts half a millisecond sooner.
static := CGO_ENABLED=0 GOWORK=off go build

.PHONY: build
build: ## build the stile command into .bin
	cd cmd/stile && $(static) -o $(BIN)/ .

.PHONY: build-lean
build-lean: build ## build the stile command without the server into .bin/lean, and stiled, which has it
	cd cmd/stile && $(static) -tags lean,grpcnotrace -o $(BIN)/lean/stile . && ln -f $(BIN)/stile $(BIN)/lean/stiled

.PHONY: man
man: build ## write the man pages to .bin/man
	rm -rf $(BIN)/man
	$(BIN)/stile man $(BIN)/man

.PHONY: tools
tools: servers $(BIN)/gotestsum $(CHECKERS) ## install what test and check need: pinned programs into .bin, Debian packages

.PHONY: servers
servers: $(BIN)/etcd $(BIN)/etcdctl
	tools/packages

# Without the workspace, because golangci-lint's requirements must not change the versions that Stile is built with.
tool = cd $(<D) && GOGC=off GOMEMLIMIT=1GiB GOWORK=off go build -o $@
$(BIN)/etcd $(BIN)/etcdctl: tools/etcd/go.mod tools/etcd/go.sum
$(BIN)/gotestsum: tools/gotestsum/go.mod tools/gotestsum/go.sum
$(BIN)/gofumpt $(BIN)/golangci-lint $(BIN)/typecheck $(BIN)/prose: tools/go.mod tools/go.sum
$(BIN)/etcd:          ; $(tool) go.etcd.io/etcd/server/v3
$(BIN)/etcdctl:       ; $(tool) go.etcd.io/etcd/etcdctl/v3
$(BIN)/gotestsum:     ; $(tool) gotest.tools/gotestsum
$(BIN)/gofumpt:       ; $(tool) mvdan.cc/gofumpt
$(BIN)/golangci-lint: ; $(tool) github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(BIN)/typecheck:     ; $(tool) ./typecheck
$(BIN)/typecheck: tools/typecheck/main.go
$(BIN)/prose:         ; $(tool) ./prose
$(BIN)/prose: tools/prose/main.go tools/prose/phrases.txt

.PHONY: fmt
fmt: $(BIN)/gofumpt ## check the formatting (.bin/gofumpt -w . repairs it)
	@unformatted=$$($(BIN)/gofumpt -l .); \
	if [ -n "$$unformatted" ]; then echo "not formatted; run .bin/gofumpt -w on:" $$unformatted; exit 1; fi

.PHONY: vet
vet: MODULES += $(BESIDE)
vet: ## run go vet
	$(each_module) $(rare_gc) GOWORK=off go vet ./...; done

.PHONY: lint
lint: MODULES += $(BESIDE) $(PROMTEST) tools tools/release
lint: $(BIN)/golangci-lint ## run golangci-lint
	$(each_module) $(rare_gc) GOWORK=off $(BIN)/golangci-lint run ./...; done

.PHONY: prose
prose: $(BIN)/prose ## check documentation, comments and messages: spelling, links, line width, replaced phrases
	$(BIN)/prose
	cd tools && GOWORK=off go test ./prose

.PHONY: tidy
tidy: MODULES += $(BESIDE) $(PROMTEST) tools tools/etcd tools/gotestsum tools/release
tidy: ## check that every go.mod and go.sum is tidy
	$(each_module) GOWORK=off go mod tidy -diff; done

.PHONY: types
types: $(BIN)/typecheck ## type-check all code, including tests, for the other systems
	$(each_module) for os in darwin windows; do \
		echo "$$m for $$os"; GOOS=$$os $(rare_gc) GOWORK=off $(BIN)/typecheck ./...; done; done
	cd cmd/stile && for os in linux darwin windows; do \
		echo "cmd/stile without the server for $$os"; GOOS=$$os GOFLAGS=-tags=lean $(rare_gc) GOWORK=off $(BIN)/typecheck ./... || exit; done

.PHONY: examples
examples: servers ## run examples/, with real servers
	tools/run-examples

# Without the test cache, which does not notice changes of files in other modules.
.PHONY: alerts
alerts: servers ## run the queries of docs/alerts.yml and docs/grafana.json with Prometheus' engine, and provoke each alert
	cd $(PROMTEST) && GOWORK=off go test -count=1 -vet=off -timeout=10m .

.PHONY: cross
cross: ## build for the other systems, before a release (everyday check: types, which is much faster)
	$(each_module) for os in linux darwin windows; do \
		echo "$$m for $$os"; GOWORK=off GOOS=$$os go build ./...; done; done

# All modules are released together, with one version. In the repository they have no versions of each other and replace each
# other by directories, which a release must not. So a release is a separate commit, on no branch, in which the modules require
# each other's released version. It has a tag for each module: v0.1.0, store/redisstore/v0.1.0 and so on. All tags are pushed
# at once.
#
# The packages of the command are built from these modules: archives, .deb, an image, SBOMs and checksums. Only Linux can make
# them. The same commit, version and Go version give the same bytes.
VERSION ?=
TAG     ?=
.PHONY: release
release: ## write modules and packages of release VERSION=v0.1.0 to .bin/release and print its tags; TAG=yes sets them
	@cd tools/release && GOWORK=off go run . $(if $(filter yes,$(TAG)),-tag) -dir $(BIN)/release -version '$(VERSION)' $(MODULES)

.PHONY: release-check
release-check: servers ## release the last commit for one platform, twice; install the package, build a program
	cd tools/release && GOWORK=off go test -count=1 -timeout=30m .

STORE   ?= etcd
CONTEST ?=
.PHONY: bench
bench: servers build-lean ## compare with other locks on STORE=etcd, redis or zk, stile run with flock (STORE=startup), a server with and without its page (STORE=page); CONTEST=lockall
	cd lab && GOWORK=off go run ./bench -store $(STORE) -contest '$(CONTEST)' -etcd $(BIN)/etcd -stile $(BIN)/stile -lean $(BIN)/lean/stile

.PHONY: bench-holds
bench-holds: ## measure 100 000 locks of one process on Redis
	cd store/redisstore && GOWORK=off go test -run='^$$' -bench=ManyHolds -benchtime=1x .

.PHONY: lab
lab: servers ## run the tests of the torture harness and of the other programs in lab/
	cd lab && GOWORK=off go test -race -vet=off -shuffle=on -p=3 -parallel=8 -timeout=30m \
		./torture/locker ./torture/site ./torture/nemesis ./torture/worker ./...

.PHONY: torture-smoke
torture-smoke: servers ## six minutes: check that every mutant is caught, and put Stile under faults (docs/torture.md)
	go run ./lab/torture smoke

SEEDS ?= 11,12,13,14,15
ROW   ?=
.PHONY: torture
torture: servers ## three and a half hours: all targets under all faults, a run for each of SEEDS=11,12,.. or of ROW=zk3-storm; resumes
	go run ./lab/torture matrix --seeds '$(SEEDS)' --row '$(ROW)'

PAUSES ?= 300
.PHONY: torture-guards
torture-guards: servers ## three minutes: stop holders within guarded writes, PAUSES=300 times for each guard, thirty side by side
	cd lab && GOWORK=off go test -count=1 -v -timeout=30m -run='TestPauses$$' ./guards -pauses=$(PAUSES) | grep -E 'seed|violat|^(---|FAIL|ok)|^    ---'

.PHONY: soak
soak: build ## ten minutes: measure stile serve with 10 000 sessions and 100 000 entries
	go run ./lab/soak -stile $(BIN)/stile

MEASURE ?= all
.PHONY: scale
scale: STORE = all
scale: servers build ## 25 minutes: what grows with waiters, held locks, names and sessions, on STORE=etcd, redis, zk, memory or all; MEASURE=waiters; resumes
	cd lab && GOWORK=off go build -o $(BIN)/scale ./scale
	$(BIN)/scale -store $(STORE) -measure $(MEASURE) -etcd $(BIN)/etcd -stile $(BIN)/stile -results $(BIN)/scale.jsonl

FUZZTIME ?= 10s
.PHONY: fuzz-short
fuzz-short: MODULES += lab
fuzz-short: ## run every fuzz target for FUZZTIME (10s)
	$(each_module) \
	for dir in $$(GOWORK=off go list -f '{{.Dir}}' ./...); do \
		for target in $$(cat $$dir/*_test.go 2>/dev/null | sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p'); do \
			GOWORK=off go test -run='^$$' -fuzz="^$$target$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=1s $$dir; \
		done; \
	done; done

.PHONY: clean
clean: ## remove .bin
	rm -rf $(BIN)
