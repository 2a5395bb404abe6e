//go:build !lean

package cli

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// readConfigFile sets the flags that a YAML file names and the command line does not.
func readConfigFile(flags *pflag.FlagSet, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--config-file: %w", err)
	}
	settings := map[string]any{}
	if err := yaml.UnmarshalStrict(text, &settings); err != nil {
		return fmt.Errorf("--config-file %s: it must have a line like \"listen: 127.0.0.1:2379\" for each flag: %s",
			file, strings.Join(strings.Fields(err.Error()), " "))
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		flag := flags.Lookup(key)
		if flag == nil || !settable(flag) {
			return fmt.Errorf("--config-file %s: unknown setting %q; the settings are %s", file, key, settableNames(flags))
		}
		value, err := flagText(settings[key])
		if err == nil && !flag.Changed {
			err = setFlag(flag, value)
		}
		if err != nil {
			return fmt.Errorf("--config-file %s: %s: %w", file, key, err)
		}
	}
	return nil
}

func setFlag(flag *pflag.Flag, value string) error {
	err := flag.Value.Set(value)
	if err != nil && flag.Value.Type() == "bool" {
		return fmt.Errorf("want true or false, not %q", value)
	}
	return err
}

// settable reports whether the file may set a flag.
func settable(flag *pflag.Flag) bool {
	return !flag.Hidden && flag.Name != "help" && flag.Name != "config-file"
}

func settableNames(flags *pflag.FlagSet) string {
	var names []string
	flags.VisitAll(func(flag *pflag.Flag) {
		if settable(flag) {
			names = append(names, flag.Name)
		}
	})
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// flagText formats a value as on the command line: a list with commas, a mapping as name=value with
// commas.
func flagText(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case bool:
		return fmt.Sprint(v), nil
	case []any:
		return joined(v)
	case map[string]any:
		var members []any
		for _, name := range slices.Sorted(maps.Keys(v)) {
			url, err := flagText(v[name])
			if err != nil {
				return "", err
			}
			members = append(members, name+"="+url)
		}
		return joined(members)
	case nil:
		return "", errors.New("it has no value; leave the line out for the default")
	default:
		return "", fmt.Errorf("want text, not %v; put it in quotation marks if it is text", v)
	}
}

func joined(list []any) (string, error) {
	var parts []string
	for _, one := range list {
		part, err := flagText(one)
		if err != nil {
			return "", err
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ","), nil
}
