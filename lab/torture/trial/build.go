package trial

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/stilelock/stile/lab/torture/mutant"
	"github.com/stilelock/stile/lab/torture/workload"
)

// Programs are the paths of the programs that a trial runs.
type Programs struct {
	Worker string
	Stile  string // exists only if the workload needs it
}

// ProgramsIn returns the paths of the programs that [Build] has built into dir.
func ProgramsIn(dir string) Programs {
	return Programs{Worker: filepath.Join(dir, "worker"), Stile: filepath.Join(dir, "stile")}
}

// Hash returns a hash of the programs that a workload uses.
func (p Programs) Hash(load string) (string, error) {
	used := []string{p.Worker}
	if workload.RunsStile(load) {
		used = append(used, p.Stile)
	}
	sum := sha256.New()
	for _, path := range used {
		b, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		sum.Write(b)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// Build builds the programs for a trial into dir, with the edits of the target's mutant if it has
// one. The working directory must be inside the repository.
func Build(ctx context.Context, t Target, load, dir string) (Programs, error) {
	root, err := rootDir(ctx)
	if err != nil {
		return Programs{}, err
	}
	var flags []string
	if t.Mutant != "" {
		m, err := mutant.ByName(t.Mutant)
		if err != nil {
			return Programs{}, err
		}
		overlay, err := m.Overlay(root, dir)
		if err != nil {
			return Programs{}, err
		}
		flags = append(flags, "-overlay", overlay)
	}
	p := ProgramsIn(dir)
	if err := build(ctx, filepath.Join(root, "lab"), p.Worker, "./torture/worker", flags); err != nil {
		return Programs{}, err
	}
	if workload.RunsStile(load) {
		if err := build(ctx, filepath.Join(root, "cmd/stile"), p.Stile, ".", flags); err != nil {
			return Programs{}, err
		}
	}
	return p, nil
}

// rootDir returns the directory of the repository.
func rootDir(ctx context.Context) (string, error) {
	lab, err := goTool(ctx, "list", "-m", "-f", "{{.Dir}}", "github.com/stilelock/stile/lab")
	return filepath.Dir(lab), err
}

// RunTests runs the tests that are to catch a mutant, with its edits, up to ten times: on a busy machine, what must
// not happen may come too late to be seen. It reports whether one of them fails. dir is for temporary files. The
// working directory must be inside the repository.
func RunTests(ctx context.Context, m mutant.Mutant, dir string) (failed bool, err error) {
	root, err := rootDir(ctx)
	if err != nil {
		return false, err
	}
	overlay, err := m.Overlay(root, dir)
	if err != nil {
		return false, err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-C", filepath.Join(root, m.Package), "-buildvcs=false", "-count=10", "-failfast",
		"-overlay", overlay, "-run", m.Tests, "-v", ".")
	out, err := cmd.CombinedOutput()
	switch {
	case strings.Contains(string(out), "--- FAIL: "):
		return true, nil
	case err == nil && strings.Contains(string(out), "--- PASS: "):
		return false, nil
	default:
		return false, fmt.Errorf("go test of %s for %s: %w: %s", m.Package, m.Tests, err, out)
	}
}

func build(ctx context.Context, in, out, pkg string, flags []string) error {
	args := append([]string{"build", "-C", in, "-buildvcs=false", "-ldflags=-s -w", "-o", out}, flags...)
	_, err := goTool(ctx, append(args, pkg)...)
	return err
}

func goTool(ctx context.Context, args ...string) (string, error) {
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
