package page_test

import (
	"encoding/base64"
	"net/url"
	"strconv"
)

func base64Of(name string) string { return base64.RawURLEncoding.EncodeToString([]byte(name)) }

func decode(key string) string {
	name, _ := base64.RawURLEncoding.DecodeString(key)
	return string(name)
}

// escape writes a name into a query.
func escape(name string) string { return url.QueryEscape(name) }

// unquote returns the name that an argument means; without an argument it is the name itself.
func unquote(argument, name string) string {
	if argument == "" {
		return name
	}
	unquoted, _ := strconv.Unquote(argument)
	return unquoted
}
