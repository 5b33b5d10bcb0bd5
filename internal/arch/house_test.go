//go:build house

package arch

import (
	"go/ast"
	"go/types"
	"strings"
	"testing"
)

// TestLocksAreReleasedWhereTaken: a function of package node that takes a lock releases it. A lock that is released by
// another function stays taken after a panic or an early return in between, and whoever waits for it hangs.
func TestLocksAreReleasedWhereTaken(t *testing.T) {
	files, err := wholeTree()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range files {
		if f.dir != "node" || f.test {
			continue
		}
		for _, d := range f.syntax.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			calls := make(map[string]bool) // "s.mu.lock", whatever the case
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if c, ok := n.(*ast.CallExpr); ok {
					if s, ok := c.Fun.(*ast.SelectorExpr); ok {
						calls[types.ExprString(s.X)+"."+strings.ToLower(s.Sel.Name)] = true
					}
				}
				return true
			})
			for c := range calls {
				of, taken := strings.CutSuffix(c, ".lock")
				if taken {
					seen++
				}
				if taken && !calls[of+".unlock"] {
					t.Errorf("%s: %s takes %s and does not release it", f.name, fn.Name.Name, of)
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no lock is taken at all: package node has moved")
	}
}
