package observer

import "testing"

func TestIsEntry(t *testing.T) {
	for name, want := range map[string]bool{
		"_c_3f9d-lock-0000000012": true, "0000000000": true,
		"~slots__9999999999": false, "~2Fx": false, "": false, "lock-000000001": false, "lock-00000000x2": false,
	} {
		if got := isEntry(name); got != want {
			t.Errorf("isEntry(%q): got %v, want %v", name, got, want)
		}
	}
}
