package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// A mutant is one change to a file.
type mutant struct {
	n        int // the switch that turns it on
	position token.Position
	what     string // "a < b becomes a <= b"
	edits    []edit
	reached  bool // by a test
	dropped  bool // it does not compile
}

// An edit replaces the source between two positions. In its text, on stands for whether the mutant is on, and original
// for the source that it replaces, with the mutants within.
type edit struct {
	m        *mutant
	from, to int // offsets in the file
	text     string
}

const (
	on       = "\x01"
	original = "\x02"
)

// neighbours lists the operators that one is replaced by.
var neighbours = map[token.Token][]token.Token{
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
	token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL}, token.REM: {token.MUL},
	token.AND: {token.OR}, token.OR: {token.AND}, token.XOR: {token.AND}, token.SHL: {token.SHR}, token.SHR: {token.SHL},
	token.ADD_ASSIGN: {token.SUB_ASSIGN}, token.SUB_ASSIGN: {token.ADD_ASSIGN}, token.MUL_ASSIGN: {token.QUO_ASSIGN},
	token.OR_ASSIGN: {token.AND_ASSIGN}, token.AND_ASSIGN: {token.OR_ASSIGN},
	token.INC: {token.DEC}, token.DEC: {token.INC},
}

// A mutator finds the mutants of one file.
type mutator struct {
	fset    *token.FileSet
	info    *types.Info
	source  []byte
	start   token.Pos // of the file
	mutants []*mutant
}

// find appends the mutants of a file's functions. It leaves out functions with a compiler directive, which may bear no
// call to a switch, and constants.
func (m *mutator) find(file *ast.File) {
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil || f.Doc != nil && slices.ContainsFunc(f.Doc.List, directive) {
			continue
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GenDecl:
				return n.Tok != token.CONST
			case *ast.BinaryExpr:
				m.binary(n)
			case *ast.IfStmt:
				m.condition(n.Cond)
			case *ast.ForStmt:
				if n.Post != nil { // a for clause takes one simple statement: none of those below
					m.inside(n.Cond, n.Body)
					return false
				}
			case *ast.ExprStmt:
				m.call(n)
			case *ast.AssignStmt, *ast.IncDecStmt:
				m.assignment(n.(ast.Stmt))
			case *ast.CallExpr:
				m.arguments(n)
			case *ast.SliceExpr:
				m.bound(n.Low)
				m.bound(n.High)
			}
			return true
		})
	}
}

// inside finds the mutants of a loop's condition and body.
func (m *mutator) inside(cond ast.Expr, body *ast.BlockStmt) {
	f := &ast.File{Decls: []ast.Decl{&ast.FuncDecl{Body: body}}}
	if b, ok := cond.(*ast.BinaryExpr); ok {
		m.binary(b)
	}
	m.find(f)
}

func directive(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:") }

func (m *mutator) add(what string, at ast.Node, text string) *mutant {
	n := &mutant{position: m.fset.Position(at.Pos()), what: what}
	m.mutants = append(m.mutants, n)
	m.edit(n, at, text)
	return n
}

func (m *mutator) edit(n *mutant, at ast.Node, text string) {
	n.edits = append(n.edits, edit{n, int(at.Pos() - m.start), int(at.End() - m.start), text})
}

// src returns the source of a node.
func (m *mutator) src(n ast.Node) string {
	return string(m.source[n.Pos()-m.start : n.End()-m.start])
}

// short returns the source of a node, or its beginning, on one line.
func (m *mutator) short(n ast.Node) string { return clip(m.src(n)) }

func clip(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 80 {
		s = s[:40] + " ... " + s[len(s)-35:]
	}
	return s
}

func (m *mutator) becomes(n ast.Node, other string) string {
	return m.short(n) + " becomes " + clip(other)
}

// pick returns the text that evaluates both the original and another expression, and has the value of one.
func pick(other string) string { return "mutantPick(" + on + ", " + original + ", " + other + ")" }

// binary replaces an operator. Comparisons keep their operands unevaluated on the side that is off; other operators are chosen
// by a generic function, so both sides are evaluated, and only operands without an effect will do.
func (m *mutator) binary(b *ast.BinaryExpr) {
	if v, ok := m.info.Types[b]; !ok || v.Value != nil { // a constant
		return
	}
	x, y := m.src(b.X), m.src(b.Y)
	for _, op := range neighbours[b.Op] {
		other := x + " " + op.String() + " " + y
		either := "(" + on + " && (" + other + ") || !" + on + " && (" + original + "))"
		switch b.Op {
		case token.LAND, token.LOR:
			m.add(fmt.Sprintf("%v becomes %v in %s", b.Op, op, m.short(b)), b, either).position = m.fset.Position(b.OpPos)
		case token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ:
			if t, ok := m.info.TypeOf(b).(*types.Basic); !ok || t.Kind() != types.Bool && t.Kind() != types.UntypedBool {
				continue
			}
			m.add(m.becomes(b, other), b, either).position = m.fset.Position(b.OpPos)
		default:
			t, ok := m.info.TypeOf(b).Underlying().(*types.Basic)
			shift := op == token.SHL || op == token.SHR
			if !ok || t.Info()&types.IsNumeric == 0 || !m.pure(b.X) || !m.pure(b.Y) || op == token.QUO || shift && m.info.Types[b.X].Value != nil {
				continue
			}
			m.add(m.becomes(b, other), b, pick(other))
		}
	}
}

// condition negates a condition that has no operator of its own to replace.
func (m *mutator) condition(c ast.Expr) {
	if _, ok := c.(*ast.BinaryExpr); ok {
		return
	}
	if t, ok := m.info.TypeOf(c).(*types.Basic); ok && t.Kind() == types.Bool {
		m.add(m.becomes(c, "its negation"), c, "("+on+" != ("+original+"))")
	}
}

// call leaves out a call whose result nobody uses.
func (m *mutator) call(s *ast.ExprStmt) {
	if c, ok := s.X.(*ast.CallExpr); ok {
		if id, ok := c.Fun.(*ast.Ident); ok && id.Name == "panic" {
			return // what follows may need it to return
		}
		m.add(m.short(s)+" is left out", s, "if !"+on+" { "+original+" }")
	}
}

// assignment replaces += by -= and ++ by --.
func (m *mutator) assignment(s ast.Stmt) {
	var left, right string
	var ops []token.Token
	switch s := s.(type) {
	case *ast.AssignStmt:
		if ops = neighbours[s.Tok]; len(s.Lhs) != 1 || ops == nil {
			return
		}
		if t, ok := m.info.TypeOf(s.Lhs[0]).Underlying().(*types.Basic); !ok || t.Info()&types.IsNumeric == 0 {
			return
		}
		left, right = m.src(s.Lhs[0]), m.src(s.Rhs[0])
	case *ast.IncDecStmt:
		ops, left = neighbours[s.Tok], m.src(s.X)
	}
	other := left + ops[0].String() + right
	m.add(m.becomes(s, other), s, "if "+on+" { "+other+" } else { "+original+" }")
}

// arguments swaps two neighbours of the same type.
func (m *mutator) arguments(c *ast.CallExpr) {
	if t, ok := m.info.Types[c.Fun]; !ok || t.IsType() || t.IsBuiltin() || c.Ellipsis.IsValid() {
		return
	}
	for i := 1; i < len(c.Args); i++ {
		a, b := c.Args[i-1], c.Args[i]
		ta, tb := m.info.Types[a], m.info.Types[b]
		if ta.Type == nil || tb.Type == nil || !types.Identical(ta.Type, tb.Type) || ta.Value != nil && tb.Value != nil || m.src(a) == m.src(b) || !m.pure(a) || !m.pure(b) {
			continue
		}
		if t, ok := ta.Type.(*types.Basic); ok && t.Info()&types.IsUntyped != 0 {
			continue
		}
		n := m.add(fmt.Sprintf("%s and %s are swapped in a call of %s", m.short(a), m.short(b), m.short(c.Fun)), a, pick(m.src(b)))
		m.edit(n, b, pick(m.src(a)))
	}
}

// bound moves a slice's bound by one.
func (m *mutator) bound(e ast.Expr) {
	if e == nil || !m.pure(e) {
		return
	}
	t, ok := m.info.TypeOf(e).Underlying().(*types.Basic)
	if !ok || t.Info()&types.IsInteger == 0 || t.Info()&types.IsUntyped != 0 {
		return
	}
	other := m.src(e) + " + 1"
	if v := m.info.Types[e].Value; v != nil {
		if i, exact := constant.Int64Val(constant.ToInt(v)); !exact || i == 0 {
			return
		}
	}
	m.add(m.becomes(e, other), e, pick(other))
}

// pure reports whether an expression may be evaluated twice, or in vain: it calls nothing but len and cap and conversions,
// receives nothing, and neither indexes nor follows a pointer that the original would not have.
func (m *mutator) pure(e ast.Expr) bool {
	pure := true
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			t := m.info.Types[n.Fun]
			id, _ := n.Fun.(*ast.Ident)
			pure = pure && (t.IsType() || t.IsBuiltin() && id != nil && (id.Name == "len" || id.Name == "cap"))
		case *ast.FuncLit, *ast.CompositeLit:
			pure = false
		case *ast.UnaryExpr:
			pure = pure && n.Op != token.ARROW && n.Op != token.AND
		case *ast.BinaryExpr:
			pure = pure && n.Op != token.QUO && n.Op != token.REM && n.Op != token.SHL && n.Op != token.SHR
		}
		return pure
	})
	return pure
}

// A region is a part of a mutated file that mutants have changed, lines first to last.
type region struct {
	first, last int
	mutants     []*mutant
}

// apply returns a file's source with all mutants behind their switches, and where it was changed. Edits are nested or apart.
func apply(source []byte, mutants []*mutant) ([]byte, []region) {
	var edits []edit
	for _, m := range mutants {
		if !m.dropped {
			edits = append(edits, m.edits...)
		}
	}
	slices.SortStableFunc(edits, func(a, b edit) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to)) })
	var out bytes.Buffer
	var regions []region
	at := 0
	for len(edits) > 0 {
		n := within(edits)
		out.Write(source[at:edits[0].from])
		r := region{first: 1 + bytes.Count(out.Bytes(), []byte("\n"))}
		out.WriteString(render(source, edits[:n]))
		r.last = 1 + bytes.Count(out.Bytes(), []byte("\n"))
		for _, e := range edits[:n] {
			r.mutants = append(r.mutants, e.m)
		}
		regions = append(regions, r)
		at = edits[0].to
		edits = edits[n:]
	}
	out.Write(source[at:])
	return out.Bytes(), regions
}

// within returns how many edits, the first included, lie within the first one.
func within(edits []edit) int {
	n := 1
	for n < len(edits) && edits[n].from < edits[0].to {
		n++
	}
	return n
}

// render returns the source of the first edit's place with all edits, which lie within it.
func render(source []byte, edits []edit) string {
	from, to := edits[0].from, edits[0].to
	same := 1
	for same < len(edits) && edits[same].from == from && edits[same].to == to {
		same++
	}
	var b strings.Builder
	at := from
	for inner := edits[same:]; len(inner) > 0; {
		n := within(inner)
		b.Write(source[at:inner[0].from])
		b.WriteString(render(source, inner[:n]))
		at = inner[0].to
		inner = inner[n:]
	}
	b.Write(source[at:to])
	text := b.String()
	for _, e := range edits[:same] {
		text = strings.NewReplacer(on, fmt.Sprintf("mutantIsOn(%d)", e.m.n), original, text).Replace(e.text)
	}
	return text
}
