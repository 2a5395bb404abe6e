package storeurl

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		url  string
		want target
	}{
		{"mem:", target{}},
		{"local:", target{}},
		{"etcd://h", target{endpoints: []string{"h:2379"}}},
		{"etcd://h/", target{endpoints: []string{"h:2379"}}},
		{"etcd://h:1", target{endpoints: []string{"h:1"}}},
		{"etcd://h?", target{endpoints: []string{"h:2379"}}},
		{"etcd://h1,h2:65535,10.0.0.1/p", target{endpoints: []string{"h1:2379", "h2:65535", "10.0.0.1:2379"}, prefix: "p/"}},
		{"etcd://a-b.example_c.net", target{endpoints: []string{"a-b.example_c.net:2379"}}},
		{"etcd://[::1],[fe80::1%eth0]:7", target{endpoints: []string{"[::1]:2379", "[fe80::1%eth0]:7"}}},
		{"etcd://h/a/b", target{endpoints: []string{"h:2379"}, prefix: "a/b/"}},
		{"etcd://h/a/b/", target{endpoints: []string{"h:2379"}, prefix: "a/b/"}},
		{"etcd://h//a", target{endpoints: []string{"h:2379"}, prefix: "/a/"}},
		{"etcd://h//", target{endpoints: []string{"h:2379"}, prefix: "/"}},
		{"etcd://h/a%40b%3F%25", target{endpoints: []string{"h:2379"}, prefix: "a@b?%/"}},
		{"etcd://ann:pw@h", target{endpoints: []string{"h:2379"}, user: "ann", password: "pw"}},
		{"etcd://a%40n:p%2F%3F%40%25:+w@h", target{endpoints: []string{"h:2379"}, user: "a@n", password: "p/?@%:+w"}},
		{"etcd://ann:p@w@h", target{endpoints: []string{"h:2379"}, user: "ann", password: "p@w"}},
		{
			"etcd://ann@h/p?password_file=/run/a+b%26c",
			target{endpoints: []string{"h:2379"}, prefix: "p/", user: "ann", passwordFile: "/run/a+b&c"},
		},
		{"etcd://ann@h?password_env=PW", target{endpoints: []string{"h:2379"}, user: "ann", passwordEnv: "PW"}},
		{
			"etcds://ann@h/?password_env=PW&ca=ca.pem&cert=c.pem&key=k.pem",
			target{
				endpoints: []string{"h:2379"}, user: "ann", passwordEnv: "PW",
				ca: "ca.pem", cert: "c.pem", key: "k.pem",
			},
		},
		{"etcds://h", target{endpoints: []string{"h:2379"}}},
		{"etcd+unix:///run/etcd.sock", target{endpoints: []string{"unix:///run/etcd.sock"}}},
		{"etcd+unix:///a%20b?prefix=x%2Fy", target{endpoints: []string{"unix:///a b"}, prefix: "x/y/"}},
		{"etcd+unix:///a?prefix=x/", target{endpoints: []string{"unix:///a"}, prefix: "x/"}},
	} {
		t.Run(c.url, func(t *testing.T) {
			got, err := parse(c.url)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.endpoints, c.want.endpoints) {
				t.Errorf("endpoints %q, want %q", got.endpoints, c.want.endpoints)
			}
			scheme, _, _ := strings.Cut(c.url, ":")
			c.want.endpoints, c.want.scheme, c.want.redacted = nil, scheme, got.redacted
			got.endpoints = nil
			if got.fields() != c.want.fields() {
				t.Errorf("got  %+v\nwant %+v", got.fields(), c.want.fields())
			}
		})
	}
}

// fields returns the comparable fields.
func (t target) fields() [10]string {
	return [...]string{
		t.scheme, t.redacted, t.prefix, t.user, t.password, t.passwordFile, t.passwordEnv, t.ca, t.cert, t.key,
	}
}

func TestParse_errors(t *testing.T) {
	for _, c := range []struct {
		url, want string
	}{
		{"", "the store URL is empty; known are local:, mem: and etcd+unix://, etcd://, etcds://"},
		{"h:p", `unknown scheme "h"; known are local:, mem: and etcd+unix://, etcd://, etcds://`},
		{"h i", "missing scheme; known are local:, mem: and"},
		{"consul://h", `store URL consul://***: unknown scheme "consul"; known are`},
		{"mem:x", "store URL mem:***: nothing may follow mem:"},
		{"local:x", "store URL local:***: nothing may follow local:"},
		{"etcd:h", "store URL etcd:***: etcd: must be followed by //"},
		{"etcd://", "host 1: missing host name"},
		{"etcd:///p", "host 1: missing host name"},
		{"etcd://ann:pw@", "host 1: missing host name"},
		{"etcd://h,,k", "host 2: missing host name"},
		{"etcd://h,", "host 2: missing host name"},
		{"etcd://:2379", "host 1: missing host name"},
		{"etcd://h, k", "host 2: invalid character in the host name"},
		{"etcd://h:", "host 1: the port must be a number"},
		{"etcd://h:0", "host 1: the port must be a number"},
		{"etcd://h:65536", "host 1: the port must be a number"},
		{"etcd://h:http", "host 1: the port must be a number"},
		{"etcd://h:+1", "host 1: the port must be a number"},
		{"etcd://::1", "put an IPv6 address in brackets"},
		{"etcd://[::1", "brackets must contain an IPv6 address"},
		{"etcd://[::1]2379", "brackets must contain an IPv6 address"},
		{"etcd://[::1]:", "host 1: the port must be a number"},
		{"etcd://[1.2.3.4]", "brackets must contain an IPv6 address"},
		{"etcd://[h]", "brackets must contain an IPv6 address"},
		{"etcd://h/%zz", "prefix: a % is not followed by two hexadecimal digits"},
		{"etcd://h/%00", "control character"},
		{"etcd://h/%ff", "not UTF-8"},
		{"etcd://h/" + strings.Repeat("x", 600), "longer than 512 bytes"},
		{"etcd://a%:pw@h", "user name: a % is not followed"},
		{"etcd://ann:%@h", "password: a % is not followed"},
		{"etcd://ann:p/w@h", "@ is not allowed after the hosts"},
		{"etcd://ann:p?w@h", "@ is not allowed after the hosts"},
		{"etcd://ann@h", "missing password for the user"},
		{"etcd://ann:@h", "missing password for the user"},
		{"etcd://:pw@h", "missing user for the password"},
		{"etcd://h?password_env=PW", "missing user for the password"},
		{"etcd://ann:pw@h?password_env=PW", "more than one password"},
		{"etcd://ann@h?password_env=PW&password_file=f", "more than one password"},
		{"etcd://h?x", "must have the form name=value"},
		{"etcd://h?x=1", `unknown parameter "x"; etcd:// allows password_env, password_file`},
		{"etcd://h?ca=f", `unknown parameter "ca"; etcd:// allows`},
		{"etcds://h?x=1", `unknown parameter "x"; etcds:// allows ca, cert, key, password_env, password_file`},
		{"etcds://h?ca=", "parameter ca is empty"},
		{"etcds://h?ca=a&ca=b", "duplicate parameter ca"},
		{"etcds://h?ca=%f", "parameter ca: a % is not followed"},
		{"etcds://h?cert=a", "cert and key belong together"},
		{"etcds://h?key=a", "cert and key belong together"},
		{"etcd+unix://h/p", "absolute path of a socket"},
		{"etcd+unix://", "absolute path of a socket"},
		{"etcd+unix:///", "absolute path of a socket"},
		{"etcd+unix:///p?password_env=PW", `unknown parameter "password_env"; etcd+unix:// allows prefix`},
	} {
		t.Run(c.url, func(t *testing.T) {
			_, err := Open(t.Context(), c.url, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with: %s", err, c.want)
			}
		})
	}
}

func TestOpen_suggestsURL(t *testing.T) {
	for _, c := range []struct {
		url, want, meant string
	}{
		{"localhost:2379", `unknown scheme "localhost"`, "etcd://localhost:2379"},
		{"localhost", "missing scheme", "etcd://localhost"},
		{"10.0.0.1:2379,10.0.0.2:2379/team", `unknown scheme "10.0.0.1"`, "etcd://10.0.0.1:2379,10.0.0.2:2379/team"},
		{"[::1]:2379", "missing scheme", "etcd://[::1]:2379"},
		{"db1:6379", `unknown scheme "db1"`, "redis://db1:6379"},
		{"zk1:2181,zk2:2181/root", `unknown scheme "zk1"`, "zk://zk1:2181,zk2:2181/root"},
		{"redis:6379", "redis: must be followed by //", "redis://redis:6379"},
		{"http://localhost:2379", `unknown scheme "http"`, "etcd://localhost:2379"},
		{"http://localhost:2379/", `unknown scheme "http"`, "etcd://localhost:2379"},
		{"https://h:2379/p", `unknown scheme "https"`, "etcds://h:2379/p"},
		{"HTTP://h", "missing scheme", "etcd://h"},
		{"ETCD://h", "missing scheme", "etcd://h"},
		{"zookeeper://h", `unknown scheme "zookeeper"`, "zk://h"},
		{"valkey://h", `unknown scheme "valkey"`, "redis://h"},
		{"etcd:/h", "etcd: must be followed by //", "etcd://h"},
		{"etcd//h", "missing scheme", "etcd://h"},
		{"etcd//h:2379", "missing scheme", "etcd://h:2379"},
		{"etcds:/h?ca=f", "etcds: must be followed by //", "etcds://h?ca=f"},
		{"etcd+unix:/run/s", "etcd+unix: must be followed by //", "etcd+unix:///run/s"},
		{"unix:///run/s", `unknown scheme "unix"`, "etcd+unix:///run/s"},
		{"redis+unix:/run/s", "redis+unix: must be followed by //", "redis+unix:///run/s"},
		{"/run/s", "missing scheme", "etcd+unix:///run/s"},
		{"mem", "missing scheme", "mem:"},
		{"mem://", "nothing may follow mem:", "mem:"},
		{"local", "missing scheme", "local:"},
		{"local://", "nothing may follow local:", "local:"},
		{"local:2379", "nothing may follow local:", "etcd://local:2379"},
	} {
		_, err := Open(t.Context(), c.url, nil)
		want := "store URL \"" + c.url + "\": " + c.want + "; did you mean " + c.meant + "?"
		if err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
		if _, err := parse(c.meant); err != nil {
			t.Errorf("Open suggests %s, which is invalid: %v", c.meant, err)
		}
	}
}

func TestErrUnknownScheme(t *testing.T) {
	for url, want := range map[string]bool{"": true, "h:p": true, "h:2379": false, "consul://h": true, "etcd://": false, "mem:x": false} {
		if _, err := Open(t.Context(), url, nil); err == nil || errors.Is(err, ErrUnknownScheme) != want {
			t.Errorf("%q: got %v; want it to match ErrUnknownScheme: %v", url, err, want)
		}
	}
}

func TestRedact(t *testing.T) {
	for _, c := range []struct {
		url, want string
	}{
		{"mem:", "mem:"},
		{"local:", "local:"},
		{"etcd://h1,h2:7/p", "etcd://h1,h2:7/p"},
		{"etcd://ann:hunter2@h/p", "etcd://ann:***@h/p"},
		{"etcd://ann:hun@ter@2@h/p", "etcd://ann:***@h/p"},
		{"etcd://a%40n:%68unter2@h/p", "etcd://a%40n:***@h/p"},
		{"etcds://ann@h/p?password_file=/run/pw&ca=c", "etcds://ann@h/p?password_file=/run/pw&ca=c"},
		{"zk://:@h", "zk://:@h"}, // the password is empty
		{"etcd+unix:///run/s?prefix=p", "etcd+unix:///run/s?prefix=p"},
		// URLs that do not parse may contain a secret anywhere.
		{"etcd://ann:hunter2", "etcd://***"},
		{"etcd://h?password=hunter2", "etcd://***"},
		{"etcd://ann:hun/ter2@h", "etcd://***"},
		{"consul://:hunter2@h", "consul://***"},
		{"redis://:hunter2@h/1", "redis://:***@h/1"},
		{"etcd:hunter2", "etcd:***"},
		{"hunter 2", "***"},
		{"hunter 2:x", "***"},
		{"", "***"},
	} {
		if got := Redact(c.url); got != c.want {
			t.Errorf("Redact(%q) = %q, want %q", c.url, got, c.want)
		}
	}
}

// secret is the password in the URLs of these tests.
const secret = "hunter2"

func TestOpen_errorsContainNoPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("STOREURL_TEST_PASSWORD", secret)
	for _, url := range []string{
		"etcd://ann:" + secret,
		"etcd://ann:" + secret + "@",
		"etcd://ann:" + secret + "@h:x",
		"etcd://ann:" + secret + "@h h",
		"etcd://ann:" + secret + "%@h",
		"etcd://ann:" + secret + "%zz@h/p",
		"etcd://ann:a/" + secret + "@h",
		"etcd://ann:1/" + secret + "@h",
		"etcd://ann:a?" + secret + "@h",
		"etcd://ann:a?x=" + secret + "@h",
		"etcd://ann:a?" + secret + "=1@h",
		"etcd://ann:a#" + secret + "@h:x",
		"etcd://ann:[" + secret + "]@h:x",
		"etcd://:" + secret + "@h",
		"etcd://h?password=" + secret,
		"etcds://ann:" + secret + "@h?cert=x",
		"etcd+unix://ann:" + secret + "@/p",
		"mem:" + secret,
		"local:" + secret,
		"mem:/" + secret,
		"http://ann:" + secret + "@h",
		"http://ann:" + secret,
		"etcd:/ann:" + secret + "@h",
		"etcd//ann:" + secret + "@h",
		"ETCD://ann:" + secret + "@h",
		"h:2379?password=" + secret,
		"redis://:" + secret + "@h",
		"://ann:" + secret + "@h",
		"ann:" + secret + "@h",
		"//ann:" + secret + "@h",
		// These parse, and fail later.
		"etcds://ann:" + secret + "@h?ca=/does/not/exist",
		"etcds://ann@h?ca=/does/not/exist&password_file=" + file,
		"etcds://ann@h?ca=/does/not/exist&password_env=STOREURL_TEST_PASSWORD",
		"etcds://ann@h?ca=" + file + "&password_env=STOREURL_TEST_PASSWORD",
		"etcds://ann:" + secret + "@h?cert=" + file + "&key=" + file,
	} {
		_, err := Open(t.Context(), url, nil)
		if err == nil {
			t.Errorf("%s: opened", url)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error contains the password: %v", url, err)
		}
		if shown := Redact(url); strings.Contains(shown, secret) {
			t.Errorf("%s: redacted to %s", url, shown)
		}
	}
}

func TestReadPassword(t *testing.T) {
	write := func(content string) string {
		file := filepath.Join(t.TempDir(), "password")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	t.Setenv("STOREURL_TEST_EMPTY", "")
	t.Setenv("STOREURL_TEST_PASSWORD", " a b ")
	for _, c := range []struct {
		name, parameter, want, err string
	}{
		{"file", "password_file=" + write("a b"), "a b", ""},
		{"file with a line break", "password_file=" + write(" a\n"), " a", ""},
		{"file with a DOS line break", "password_file=" + write("a\r\n"), "a", ""},
		{"file with two line breaks", "password_file=" + write("a\n\n"), "a\n", ""},
		{"empty file", "password_file=" + write("\n"), "", "empty file"},
		{"no file", "password_file=/does/not/exist", "", "no such file"},
		{"variable", "password_env=STOREURL_TEST_PASSWORD", " a b ", ""},
		{"empty variable", "password_env=STOREURL_TEST_EMPTY", "", "STOREURL_TEST_EMPTY is not set or empty"},
		{"no variable", "password_env=STOREURL_TEST_NONE", "", "STOREURL_TEST_NONE is not set or empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			target, err := parse("etcd://ann@h?" + c.parameter)
			if err != nil {
				t.Fatal(err)
			}
			got, err := target.readPassword()
			if got != c.want || (err != nil) != (c.err != "") || (err != nil && !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %q, %v; want %q, an error with %q", got, err, c.want, c.err)
			}
		})
	}
}

func TestWarnings_readableSecrets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("pw"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode      os.FileMode
		url, want string
	}{
		{0o600, "etcd://ann@h?password_file=" + file, ""},
		{0o640, "etcd://ann@h?password_file=" + file, ""},
		{0o644, "etcd://ann@h?password_file=" + file, "password_file " + file + " is accessible to other users; chmod o= it"},
		{0o602, "redis://h?password_file=" + file, "password_file " + file + " is accessible to other users; chmod o= it"},
		{0o644, "etcds://h?cert=" + file + "&key=" + file, "key " + file + " is accessible to other users; chmod o= it"},
		{0o600, "etcd://h", ""},
	} {
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		target, err := parse(c.url)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(target.warnings(), "\n"); got != c.want {
			t.Errorf("%s, mode %v: got %q, want %q", c.url, c.mode, got, c.want)
		}
	}
}

// FuzzParse_etcd looks for URLs whose redacted form parses differently. It also puts the URL in the
// place of a password and looks for passwords that are not redacted.
func FuzzParse_etcd(f *testing.F) {
	for _, seed := range []string{
		"mem:", "etcd://h1,h2:2379/p?password_env=X", "etcds://ann:pw@[::1]:2379//p/?ca=a&cert=b&key=c",
		"etcd+unix:///run/s?prefix=p", "etcd://a%40:%25@h", "a/b?c=d#e@f:g,h[i]%zz", "@", "/", "?", "%",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		shown := Redact(raw)
		if again := Redact(shown); again != shown {
			t.Errorf("Redact(%q) = %q, whose redacted form is %q", raw, shown, again)
		}
		if got, err := parse(raw); err == nil {
			again, err := parse(shown)
			if got.password != "" {
				got.password = "***"
			}
			if err != nil || !slices.Equal(got.endpoints, again.endpoints) || got.fields() != again.fields() {
				t.Errorf("%q: Redact returns %q, which parses differently: %+v, %v", raw, shown, again, err)
			}
		}

		url := "etcd://ann:" + secret + raw + secret + "@h/p"
		if shown := Redact(url); strings.Contains(shown, secret) {
			t.Errorf("Redact(%q) = %q, which contains the password", url, shown)
		}
		if _, err := parse(url); err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("parse(%q) = %v, which contains the password", url, err)
		}
	})
}
