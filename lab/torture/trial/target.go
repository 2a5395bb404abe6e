package trial

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stilelock/stile/lab/torture/locker"
	"github.com/stilelock/stile/lab/torture/mutant"
)

// Target is the locker under test, and the cluster on which it acquires locks.
type Target struct {
	// Locker is one of [locker.Kinds].
	Locker string
	// Mutant is the name of a mutant of Stile, or empty.
	Mutant string
	// Cluster is one of [site.Kinds].
	Cluster string
}

// clusters returns the kinds of clusters that each locker supports.
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

// Targets returns all targets without mutants.
func Targets() []Target {
	var all []Target
	for _, kind := range slices.Backward(locker.Kinds()) { // Stile sorts last, and comes first here
		for _, cluster := range clusters()[kind] {
			all = append(all, Target{Locker: kind, Cluster: cluster})
		}
	}
	return all
}

// ParseTarget parses a target: LOCKER@CLUSTER, or stile+MUTANT@CLUSTER.
func ParseTarget(text string) (Target, error) {
	subject, cluster, _ := strings.Cut(text, "@")
	name, mutantName, isMutant := strings.Cut(subject, "+")
	t := Target{Locker: name, Mutant: mutantName, Cluster: cluster}
	supported := clusters()[name]
	switch {
	case supported == nil:
		return Target{}, fmt.Errorf("target %q: unknown locker %q: use one of %s", text, name, strings.Join(locker.Kinds(), ", "))
	case !slices.Contains(supported, cluster):
		return Target{}, fmt.Errorf("target %q: %s supports the clusters %s, as in %s@%s", text, name, strings.Join(supported, ", "), subject, supported[0])
	case isMutant && name != "stile":
		return Target{}, fmt.Errorf("target %q: only stile has mutants", text)
	case isMutant:
		if _, err := mutant.ByName(mutantName); err != nil {
			return Target{}, fmt.Errorf("target %q: %w", text, err)
		}
	}
	return t, nil
}

// String is the inverse of ParseTarget.
func (t Target) String() string {
	subject := t.Locker
	if t.Mutant != "" {
		subject += "+" + t.Mutant
	}
	return subject + "@" + t.Cluster
}

// store returns the kind of the store, for the observer.
func (t Target) store() string { return strings.TrimRight(t.Cluster, "0123456789") }

// token computes a token from the order of an entry in the store's data.
func (t Target) token(order uint64) uint64 {
	if t.Locker == "stile" {
		return order << 11
	}
	return order
}
