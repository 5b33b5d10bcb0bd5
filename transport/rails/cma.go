package rails

import (
	"fmt"

	"kvferry/transport"
	"kvferry/transport/cma"
)

// CMA is the kind of rail between processes of this machine, by cross-memory attach.
const CMA = "cma"

var cmaKind = kind{
	name:  CMA,
	what:  "cma",
	forms: []string{"cma"},
	flag:  []string{"cma (nodes of this machine, memory to memory)"},
	help:  [][2]string{{"cma", "between processes of this machine: one copy, no network"}},
	alone: true,
	open: func(_ *Spec, opt Options) (transport.Rail, error) {
		return rail(cma.New(cma.Config{Name: fmt.Sprintf("cma/%d", opt.Index), Logger: opt.Logger}))
	},
	near: true,
}
