# Stile. `make` lists what there is to make; `make test` and `make check` are what must pass.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

# The modules that users get, and those beside them. All are checked one by one and without the workspace: with the versions
# that their users get.
MODULES := . store/etcdstore store/redisstore store/redlockstore store/zkstore storeurl cmd/stile
BESIDE  := examples lab
each_module = for m in $(MODULES); do cd $(CURDIR)/$$m;

BIN      := $(CURDIR)/.bin
CHECKERS := $(BIN)/gofumpt $(BIN)/golangci-lint $(BIN)/typecheck $(BIN)/prose
started  := $(shell date +%s)

# Each recipe says itself whether it means the workspace, which is what an empty GOWORK stands for.
unexport GOWORK

# For what compiles or checks, never for what is tested: it lives for seconds, and works less if it collects garbage less
# often than a program that stays.
spendthrift := GOGC=400 GOMEMLIMIT=2GiB

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 15

# Three commands: go test ./... for the code at hand, make test for a stranger, make check for who changes something.

.PHONY: test
test: servers $(BIN)/gotestsum ## all tests of library and command, with real servers and the race detector
	STARTED=$(started) $(BIN)/gotestsum --format=pkgname --jsonfile=$(BIN)/test.json \
		--post-run-command=tools/test-summary --raw-command -- tools/test-events

.PHONY: check
check: fmt vet lint prose tidy types examples release-check lab torture-smoke ## what else must pass: formatting, linters, other systems, faults

N        ?= 10
BUSY     ?= 0
PACKAGES ?=
.PHONY: test-again
test-again: ## N whole runs in fresh clones, or of PACKAGES=timing, beside BUSY busy processes (N=10 BUSY=0)
	tools/test-again $(N) $(BUSY) $(PACKAGES)

.PHONY: build
build: ## the stile command, into .bin
	cd cmd/stile && GOWORK=off go build -o $(BIN)/ .

.PHONY: man
man: build ## the man pages, into .bin/man
	rm -rf $(BIN)/man
	$(BIN)/stile man $(BIN)/man

.PHONY: tools
tools: servers $(BIN)/gotestsum $(CHECKERS) ## what test and check need: pinned programs into .bin, others as Debian packages

.PHONY: servers
servers: $(BIN)/etcd $(BIN)/etcdctl
	tools/packages

# Without the workspace: the versions that golangci-lint needs are not to be those that Stile is built with.
tool = cd $(<D) && $(spendthrift) GOWORK=off go build -o $@
$(BIN)/etcd $(BIN)/etcdctl: tools/etcd/go.mod tools/etcd/go.sum
$(BIN)/gotestsum: tools/gotestsum/go.mod tools/gotestsum/go.sum
$(BIN)/gofumpt $(BIN)/golangci-lint $(BIN)/typecheck $(BIN)/prose $(BIN)/release: tools/go.mod tools/go.sum
$(BIN)/etcd:          ; $(tool) go.etcd.io/etcd/server/v3
$(BIN)/etcdctl:       ; $(tool) go.etcd.io/etcd/etcdctl/v3
$(BIN)/gotestsum:     ; $(tool) gotest.tools/gotestsum
$(BIN)/gofumpt:       ; $(tool) mvdan.cc/gofumpt
$(BIN)/golangci-lint: ; $(tool) github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(BIN)/typecheck:     ; $(tool) ./typecheck
$(BIN)/typecheck: tools/typecheck/main.go
$(BIN)/prose:         ; $(tool) ./prose
$(BIN)/prose: tools/prose/main.go tools/prose/phrases.txt
$(BIN)/release:       ; $(tool) ./release
$(BIN)/release: tools/release/main.go

.PHONY: fmt
fmt: $(BIN)/gofumpt ## check the formatting (to repair it: .bin/gofumpt -w .)
	@unformatted=$$($(BIN)/gofumpt -l .); \
	if [ -n "$$unformatted" ]; then echo "not formatted, run .bin/gofumpt -w on:" $$unformatted; exit 1; fi

.PHONY: vet
vet: MODULES += $(BESIDE)
vet: ## go vet
	$(each_module) $(spendthrift) GOWORK=off go vet ./...; done

.PHONY: lint
lint: MODULES += $(BESIDE) tools
lint: $(BIN)/golangci-lint ## golangci-lint
	$(each_module) $(spendthrift) GOWORK=off $(BIN)/golangci-lint run ./...; done

.PHONY: prose
prose: $(BIN)/prose ## check what people read: spelling, links, width, and phrases that must not come back
	$(BIN)/prose
	cd tools && GOWORK=off go test ./prose

.PHONY: tidy
tidy: MODULES += $(BESIDE) tools tools/etcd tools/gotestsum
tidy: ## check that every go.mod and go.sum is tidy
	$(each_module) GOWORK=off go mod tidy -diff; done

.PHONY: types
types: $(BIN)/typecheck ## check that everything compiles on the other systems, tests too, as far as types can tell
	$(each_module) for os in darwin windows; do \
		echo "$$m for $$os"; GOOS=$$os $(spendthrift) GOWORK=off $(BIN)/typecheck ./...; done; done

.PHONY: examples
examples: ## run what examples/ has to show
	tools/run-examples

.PHONY: cross
cross: ## build for the other systems, before a release (types, which is much faster, is the everyday check)
	$(each_module) for os in linux darwin windows; do \
		echo "$$m for $$os"; GOWORK=off GOOS=$$os go build ./...; done; done

# All modules are released together, in one version. In the repository they require each other in no version, and replace each
# other by folders; what is released must not. So a release is a commit of its own, on no branch, with the requirements written
# out, and has a tag for each module: v0.1.0, store/redisstore/v0.1.0 and so on. The tags are pushed all at once.
VERSION ?=
TAG     ?=
.PHONY: release
release: $(BIN)/release ## VERSION=v0.1.0, into a module proxy in .bin/proxy, and what would be tagged; with TAG=yes it is
	@$(BIN)/release $(if $(filter yes,$(TAG)),-tag) -proxy $(BIN)/proxy -version '$(VERSION)' $(MODULES)

.PHONY: release-check
release-check: ## install the command, and build a program, from a release of what is committed
	cd tools && GOWORK=off go test -count=1 ./release

STORE ?= etcd
.PHONY: bench
bench: servers build ## measure against others, on STORE=etcd, redis or zk, or stile run against flock, STORE=startup
	cd lab && GOWORK=off go run ./bench -store $(STORE) -etcd $(BIN)/etcd -stile $(BIN)/stile

.PHONY: bench-holds
bench-holds: ## 100 000 locks of one process on Redis
	cd store/redisstore && GOWORK=off go test -run='^$$' -bench=ManyHolds -benchtime=1x .

.PHONY: lab
lab: servers ## the tests of the harness that puts Stile under faults
	cd lab && GOWORK=off go test -race -vet=off -shuffle=on -p=3 -parallel=8 -timeout=30m \
		./torture/locker ./torture/site ./torture/nemesis ./torture/worker ./...

.PHONY: torture-smoke
torture-smoke: servers ## four minutes: every mutant is caught, and Stile itself put under faults (docs/torture.md)
	go run ./lab/torture smoke

SEEDS ?= 11,12,13,14,15
ROW   ?=
.PHONY: torture
torture: servers ## two hours: all targets under all faults, a run for each of SEEDS=11,12,.. or of ROW=zk3-storm; goes on where it was
	go run ./lab/torture matrix --seeds '$(SEEDS)' --row '$(ROW)'

.PHONY: soak
soak: build ## ten minutes: stile serve with 10 000 sessions and 100 000 entries
	go run ./lab/soak -stile $(BIN)/stile

FUZZTIME ?= 10s
.PHONY: fuzz-short
fuzz-short: MODULES += lab
fuzz-short: ## every fuzz target for FUZZTIME (10s)
	$(each_module) \
	for dir in $$(GOWORK=off go list -f '{{.Dir}}' ./...); do \
		for target in $$(cat $$dir/*_test.go 2>/dev/null | sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p'); do \
			GOWORK=off go test -run='^$$' -fuzz="^$$target$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=1s $$dir; \
		done; \
	done; done

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN)
