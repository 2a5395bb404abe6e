# Stile. `make` lists what there is to make; `make test` is what must pass.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

# The modules that are tested, one by one and without the workspace: with the versions that their users get.
MODULES := . cmd/stile
each_module = for m in $(MODULES); do cd $(CURDIR)/$$m;

BIN      := $(CURDIR)/.bin
CHECKERS := $(BIN)/gofumpt $(BIN)/golangci-lint $(BIN)/typecheck

# For what compiles or checks, never for what is tested: it lives for seconds, and saves a third of its computing if it
# collects no garbage before it has much of it.
spendthrift := GOGC=off GOMEMLIMIT=2GiB

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 14

# What runs tests sleeps for half of the time. What reads code takes what is left of the processors, and nothing else. Each does
# one thing after the other.
.PHONY: test
test: ## everything that must pass: what CI runs
	$(MAKE) -j2 code behaviour

.PHONY: code
code:
	MAKEFLAGS= nice -n 19 $(MAKE) fmt vet lint tidy types

.PHONY: behaviour
behaviour:
	MAKEFLAGS= $(MAKE) servers explore race lab torture-smoke

.PHONY: check
check: tools fmt vet lint tidy ## the same without the race detector and the other systems
	$(each_module) GOWORK=off go test ./...; done

.PHONY: build
build: ## the stile command, into .bin
	cd cmd/stile && GOWORK=off go build -o $(BIN)/ .

.PHONY: man
man: build ## the man pages, into .bin/man
	rm -rf $(BIN)/man
	$(BIN)/stile man $(BIN)/man

.PHONY: tools
tools: servers $(CHECKERS) ## the servers and checkers that the tests need: pinned ones into .bin, others as Debian packages

.PHONY: servers
servers: $(BIN)/etcd $(BIN)/etcdctl
	tools/packages

# Without the workspace: the versions that golangci-lint needs are not to be those that Stile is built with.
tool = cd $(<D) && $(spendthrift) GOWORK=off go build -o $@
$(BIN)/etcd $(BIN)/etcdctl: tools/etcd/go.mod tools/etcd/go.sum
$(BIN)/gofumpt $(BIN)/golangci-lint $(BIN)/typecheck: tools/go.mod tools/go.sum
$(BIN)/etcd:          ; $(tool) go.etcd.io/etcd/server/v3
$(BIN)/etcdctl:       ; $(tool) go.etcd.io/etcd/etcdctl/v3
$(BIN)/gofumpt:       ; $(tool) mvdan.cc/gofumpt
$(BIN)/golangci-lint: ; $(tool) github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(BIN)/typecheck:     ; $(tool) ./typecheck
$(BIN)/typecheck: tools/typecheck/main.go

.PHONY: fmt
fmt: $(BIN)/gofumpt ## check the formatting (to repair it: .bin/gofumpt -w .)
	@unformatted=$$($(BIN)/gofumpt -l .); \
	if [ -n "$$unformatted" ]; then echo "not formatted, run .bin/gofumpt -w on:" $$unformatted; exit 1; fi

.PHONY: vet
vet: ## go vet, over the workspace
	$(spendthrift) go vet work

.PHONY: lint
lint: MODULES += lab
lint: $(BIN)/golangci-lint ## golangci-lint
	$(each_module) $(spendthrift) GOWORK=off $(BIN)/golangci-lint run ./...; done

.PHONY: tidy
tidy: ## check that every go.mod and go.sum is tidy
	$(each_module) GOWORK=off go mod tidy -diff; done
	for m in tools tools/etcd; do cd $(CURDIR)/$$m; GOWORK=off go mod tidy -diff; done

.PHONY: types
types: $(BIN)/typecheck ## check that everything compiles on the other systems, tests too, as far as types can tell
	$(each_module) for os in darwin windows; do \
		echo "$$m for $$os"; GOOS=$$os $(spendthrift) GOWORK=off $(BIN)/typecheck ./...; done; done

.PHONY: explore
explore: ## walk through all states of the keeper's core (left out by race: it has one goroutine)
	GOWORK=off go test -run='^TestExplore' ./keeper

# Built first, so that no test waits for a compiler. More tests at a time than there are processors: most of them sleep.
.PHONY: race
race: servers ## all tests, with the race detector
	$(each_module) $(spendthrift) GOWORK=off go build -race ./...; \
		GOWORK=off go test -race -vet=off -shuffle=on -parallel=8 ./...; done

.PHONY: cross
cross: ## build for the other systems, before a release (types, which is much faster, is the everyday check)
	$(each_module) for os in linux darwin windows; do \
		echo "$$m for $$os"; GOWORK=off GOOS=$$os go build ./...; done; done

.PHONY: bench-etcd
bench-etcd: $(BIN)/etcd ## measure against the stock etcd mutex
	go run ./internal/etcdbench

.PHONY: bench-startup
bench-startup: build ## measure stile run against flock
	cd cmd/stile && GOWORK=off go run ./internal/startupbench -stile $(BIN)/stile

.PHONY: bench-zk
bench-zk: ## measure against go-zookeeper's Lock
	go run ./internal/zkbench

.PHONY: bench-redis
bench-redis: servers ## measure against redsync, redislock and rueidislock, and 100 000 locks of one process
	cd lab && GOWORK=off go run ./redisbench
	GOWORK=off go test -run='^$$' -bench=ManyHolds -benchtime=1x ./store/redisstore

# More packages at a time than there are processors: what they start sleeps for most of the time.
.PHONY: lab
lab: servers ## try Stile together with other lockers, which only the lab module depends on
	cd lab && $(spendthrift) GOWORK=off go vet ./... && GOWORK=off go test -vet=off -p=4 ./...

.PHONY: torture-smoke
torture-smoke: servers ## two minutes: every mutant is caught, and Stile itself put under faults (docs/torture.md)
	go run ./lab/torture smoke

.PHONY: torture
torture: servers ## an hour: all targets under all faults, as a table
	go run ./lab/torture matrix

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
