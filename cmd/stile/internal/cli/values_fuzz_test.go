//go:build !lean

package cli

import (
	"math"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// A duration that is taken is not negative. It is the number that was written, if that is one of seconds, and not zero if that
// is not: zero means something else. What is shown of it can be given again. One that is refused changes nothing.
func FuzzDuration(f *testing.F) {
	for _, text := range []string{
		"0", "5", "0.5", ".25", "1e1", "5s", "1m30s", "250ms", "-0", "-1", "NaN", "Inf", "1e300", "4611686018", "9223372036.9", "1e-10", "0.1ns",
		"0x10", "0x1p4", "1_0", "+5", "2562047h47m16.854775807s", "1d", "5 s", "", "٣",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		const before = duration(time.Hour)
		d := before
		if err := d.Set(text); err != nil {
			if d != before {
				t.Errorf("%q is refused, and set to %v all the same", text, &d)
			}
			wantsToBeRead(t, text, err)
			return
		}
		if d < 0 {
			t.Errorf("%q is taken as %v", text, &d)
		}
		if seconds, ok := new(big.Rat).SetString(text); ok {
			want, _ := seconds.Float64()
			if want > 0 && d == 0 || math.Abs(time.Duration(d).Seconds()-want) > 1e-9+want*1e-15 {
				t.Errorf("%q is taken as %v", text, &d)
			}
		}
		again := before
		if err := again.Set(d.String()); err != nil || again != d {
			t.Errorf("%q is shown as %q, and that is taken as %v, %v", text, &d, &again, err)
		}
	})
}

// A token that is taken is the number that people and programs are shown, to the last digit.
func FuzzToken(f *testing.F) {
	for _, text := range []string{
		"34816", "0", "9223372036854775807", "18446744073709551615", "18446744073709551616", "-1", "+1", "010", "0x1100", "0b1", "1_000", "4.5", " 7", "",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		flags := newBreak(Stdio{}).Flags()
		err := flags.Set("token", text)
		if err != nil {
			wantsToBeRead(t, text, err)
			return
		}
		taken := flags.Lookup("token").Value.String()
		if strings.TrimLeft(text, "0") != strings.TrimLeft(taken, "0") {
			t.Errorf("%q is taken as the token %s", text, taken)
		}
		if n, err := strconv.ParseUint(taken, 10, 64); err != nil || strconv.FormatUint(n, 10) != taken {
			t.Errorf("%q is taken as the token %q, which is no number", text, taken)
		}
	})
}

// Members that are taken are taken again as they are shown, and are told apart by their names.
func FuzzPeers(f *testing.F) {
	for _, text := range []string{
		"a=http://127.0.0.1:1,b=http://127.0.0.1:2", " b=http://h:2, a=http://h:1", "", "a", "a=", "=x", "a=b=c", "a=1,a=2", "a=1,", "a =1", "a=1 , b=2",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var p peers
		if err := p.Set(text); err != nil {
			wantsToBeRead(t, text, err)
			if p != nil {
				t.Errorf("%q is refused, and set to %v all the same", text, &p)
			}
			return
		}
		for name, url := range p {
			if name == "" || url == "" || len(p) != strings.Count(text, ",")+1 {
				t.Errorf("%q is taken as the members %q", text, p)
			}
		}
		var again peers
		if err := again.Set(p.String()); err != nil || again.String() != p.String() {
			t.Errorf("%q is shown as %q, and that is taken as %q, %v", text, &p, &again, err)
		}
	})
}

// A file of settings sets the flags that it names and that have not been set before, and no others. One that is refused is
// named in the error.
func FuzzConfigFile(f *testing.F) {
	for _, text := range []string{
		"listen: 0.0.0.0:2379\nhealth: \":80\"\n", "insecure: true\n", "insecure: maybe\n", "insecure: 1\n", "socket: /run/s\nsocket: /run/t\n",
		"peers:\n  a: http://h:1\n  b: http://h:2\n", "peers: [a=http://h:1, b=http://h:2]\n", "peers: {a: [x, y]}\n", "peers: {a: {b: {c: d}}}\n",
		"name: ~\n", "name: 7\n", "name: 2026-11-21\n", "name: \"\"\n", "help: true\n", "config-file: x\n", "background: x\n", "idle: 5\n", "tls-cert: !!binary aGk=\n",
		"data: &a [*a]\n", "data: &a x\nname: *a\n", "<<: {name: x}\n", "? [a]\n: b\n", "1: 2\n", "[]\n", "---\n---\n", "\t", "\x00", "name: |\n  a\n  b\n", "listen: ../x\n",
	} {
		f.Add([]byte(text))
	}
	file := filepath.Join(f.TempDir(), "stile.yaml")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		flags := newServe(Stdio{}).Flags()
		if err := flags.Parse([]string{"--listen", "localhost:1"}); err != nil {
			t.Fatal(err)
		}
		err := readConfigFile(flags, file)
		if err != nil {
			wantsToBeRead(t, string(text), err)
			if !strings.HasPrefix(err.Error(), "--config-file "+file+": ") {
				t.Errorf("%q is refused with %q", text, err)
			}
			return
		}
		var settings map[string]any
		if err := yaml.Unmarshal(text, &settings); err != nil {
			t.Fatalf("%q is taken, and is no YAML: %v", text, err)
		}
		flags.VisitAll(func(flag *pflag.Flag) {
			_, named := settings[flag.Name]
			switch value := flag.Value.String(); {
			case flag.Name == "listen" && value != "localhost:1":
				t.Errorf("%q overrides the command line with %q", text, value)
			case flag.Name == "listen":
			case !named && value != flag.DefValue, named && (flag.Hidden || flag.Name == "help" || flag.Name == "config-file"):
				t.Errorf("%q sets --%s to %q", text, flag.Name, value)
			}
		})
	})
}

// wantsToBeRead checks that the error says something, in one line.
func wantsToBeRead(t *testing.T, of string, err error) {
	t.Helper()
	if text := err.Error(); text == "" || strings.ContainsFunc(text, unicode.IsControl) {
		t.Errorf("%q is refused with %q", of, text)
	}
}
