package trial

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stilelock/stile/lab/torture/locker"
	"github.com/stilelock/stile/lab/torture/mutant"
)

// Target is what takes the locks, and on what.
type Target struct {
	// Locker is one of [locker.Kinds].
	Locker string
	// Mutant is the name of one, if Stile is broken on purpose; else empty.
	Mutant string
	// Cluster is one of [site.Kinds].
	Cluster string
}

// clusters says on what each locker works.
func clusters() map[string][]string {
	redis := []string{"redis"}
	return map[string][]string{
		"stile":       {"etcd", "etcd3", "redis", "redlock3", "redlock5", "zk", "zk3"},
		"concurrency": {"etcd", "etcd3"},
		"redsync":     {"redis", "redlock3", "redlock5"},
		"redislock":   redis,
		"rueidislock": {"redis", "redlock3", "redlock5"},
		"gozk":        {"zk", "zk3"},
	}
}

// Targets returns all targets but the mutants.
func Targets() []Target {
	var all []Target
	for _, kind := range slices.Backward(locker.Kinds()) { // Stile is the last by its name, and the first here
		for _, cluster := range clusters()[kind] {
			all = append(all, Target{Locker: kind, Cluster: cluster})
		}
	}
	return all
}

// ParseTarget reads a target: LOCKER@CLUSTER, or stile+MUTANT@CLUSTER.
func ParseTarget(text string) (Target, error) {
	who, cluster, _ := strings.Cut(text, "@")
	name, broken, isMutant := strings.Cut(who, "+")
	t := Target{Locker: name, Mutant: broken, Cluster: cluster}
	on := clusters()[name]
	switch {
	case on == nil:
		return Target{}, fmt.Errorf("target %q: no locker is called %q: there are %s", text, name, strings.Join(locker.Kinds(), ", "))
	case !slices.Contains(on, cluster):
		return Target{}, fmt.Errorf("target %q: %s works on %s: %s@%s, for example", text, name, strings.Join(on, ", "), who, on[0])
	case isMutant && name != "stile":
		return Target{}, fmt.Errorf("target %q: only stile has mutants", text)
	case isMutant:
		if _, err := mutant.Named(broken); err != nil {
			return Target{}, fmt.Errorf("target %q: %w", text, err)
		}
	}
	return t, nil
}

// String is the inverse of ParseTarget.
func (t Target) String() string {
	who := t.Locker
	if t.Mutant != "" {
		who += "+" + t.Mutant
	}
	return who + "@" + t.Cluster
}

// store is the kind of the servers, for the observer.
func (t Target) store() string { return strings.TrimRight(t.Cluster, "0123456789") }

// token makes a token of the order that an entry has in the store's own data.
func (t Target) token(order uint64) uint64 {
	if t.Locker == "stile" {
		return order << 11
	}
	return order
}
