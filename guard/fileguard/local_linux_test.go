package fileguard

import (
	"strings"
	"testing"
)

func TestCheckType(t *testing.T) {
	t.Parallel()
	for magic, name := range map[int64]string{
		0x6969:           "NFS",
		0xff534d42:       "CIFS",
		-0x00acb2be:      "CIFS", // as a 32-bit processor has it
		0xef53:           "",     // ext4
		0x01021994:       "",     // tmpfs
		0x9123683e:       "",     // btrfs
		0x794c7630:       "",     // overlayfs
		0x6969_0000_0000: "",
		0x01021997:       "9p",
	} {
		err := checkType(magic)
		if name == "" && err != nil || name != "" && (err == nil || !strings.Contains(err.Error(), name)) {
			t.Errorf("%#x: got %v, want an error with %q", magic, err, name)
		}
	}
}
