package testservers

// Chromium returns the path of the browser, from the Debian package chromium.
func Chromium() (string, error) { return installed("chromium") }
