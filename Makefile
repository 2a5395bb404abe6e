# Stile. `make` lists what there is to make; `make test` is what must pass.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

# The modules that are tested, one by one and without the workspace: with the versions that their users get.
MODULES := . cmd/stile
each_module = for m in $(MODULES); do cd $(CURDIR)/$$m;

BIN   := $(CURDIR)/.bin
TOOLS := $(BIN)/etcd $(BIN)/etcdctl $(BIN)/gofumpt $(BIN)/golangci-lint

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 14

.PHONY: test
test: tools fmt vet lint tidy explore race lab cross ## everything that must pass: what CI runs

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
tools: $(TOOLS) ## the servers and checkers that the tests need: pinned ones into .bin, others as Debian packages
	tools/packages

# Without the workspace: the versions that golangci-lint needs are not to be those that Stile is built with.
tool = cd tools && GOWORK=off go build -o $@
$(TOOLS): tools/go.mod tools/go.sum
$(BIN)/etcd:          ; $(tool) go.etcd.io/etcd/server/v3
$(BIN)/etcdctl:       ; $(tool) go.etcd.io/etcd/etcdctl/v3
$(BIN)/gofumpt:       ; $(tool) mvdan.cc/gofumpt
$(BIN)/golangci-lint: ; $(tool) github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: fmt
fmt: $(BIN)/gofumpt ## check the formatting (to repair it: .bin/gofumpt -w .)
	@unformatted=$$($(BIN)/gofumpt -l .); \
	if [ -n "$$unformatted" ]; then echo "not formatted, run .bin/gofumpt -w on:" $$unformatted; exit 1; fi

.PHONY: vet
vet: ## go vet, over the workspace
	go vet work

.PHONY: lint
lint: $(BIN)/golangci-lint ## golangci-lint
	$(each_module) GOWORK=off $(BIN)/golangci-lint run ./...; done

.PHONY: tidy
tidy: ## check that every go.mod and go.sum is tidy
	$(each_module) GOWORK=off go mod tidy -diff; done
	cd tools && GOWORK=off go mod tidy -diff

.PHONY: explore
explore: ## walk through all states of the keeper's core (left out by race: it has one goroutine)
	GOWORK=off go test -run='^TestExplore' ./keeper

# Built first, so that no test shares the machine with a compiler.
.PHONY: race
race: $(BIN)/etcd $(BIN)/etcdctl ## all tests, with the race detector
	$(each_module) GOWORK=off go build -race ./...; GOWORK=off go test -race -shuffle=on ./...; done

.PHONY: cross
cross: ## build for the other systems
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
bench-redis: tools ## measure against redsync, redislock and rueidislock
	cd lab && GOWORK=off go run ./redisbench

.PHONY: lab
lab: tools ## try Stile together with other lockers, which only the lab module depends on
	cd lab && GOWORK=off go vet ./... && GOWORK=off go test ./...

FUZZTIME ?= 10s
.PHONY: fuzz-short
fuzz-short: ## every fuzz target for FUZZTIME (10s)
	$(each_module) \
	for file in $$(grep -rl --include='*_test.go' '^func Fuzz' . || true); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' $$file); do \
			GOWORK=off go test -run='^$$' -fuzz="^$$target$$" -fuzztime=$(FUZZTIME) ./$$(dirname $$file); \
		done; \
	done; done

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN)
