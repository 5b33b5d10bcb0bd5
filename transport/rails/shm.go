package rails

import (
	"fmt"

	"kvferry/transport"
	"kvferry/transport/shm"
)

// SHM is the kind of one-sided rail between processes of this machine and one user.
const SHM = "shm"

var shmKind = kind{
	name:  SHM,
	what:  "shm",
	forms: []string{"shm"},
	flag:  []string{"shm (likewise, one-sided: processes of this user are trusted with all of the memory)"},
	help:  [][2]string{{"shm", "likewise, one-sided: the initiator copies; trusts processes of this user with all of the memory"}},
	alone: true,
	open: func(_ *Spec, opt Options) (transport.Rail, error) {
		return rail(shm.New(shm.Config{Name: fmt.Sprintf("shm/%d", opt.Index), Logger: opt.Logger}))
	},
	near:     true,
	allocate: shm.Map,
}
