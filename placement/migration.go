package placement

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"kvferry/internal/config"
)

// NoMigration: a request stays where it was placed.
const NoMigration = "none"

// A Migration says which running requests go on on other nodes. It is asked every so often, at
// an instant: the owner, a proxy or a simulator, has the time, moves the KV, and may fail to
// do so. Like a [Policy] it does no I/O, has no clock, is not safe for concurrent use, and
// what it says follows from what it was asked.
type Migration interface {
	// Migrate names moves between nodes of one role, in the order in which they are to begin.
	// The slice that it is given is the caller's; what is in it stays as it is.
	Migrate(nodes []Node) []Move
}

// A Node is a node at an instant, with what runs there.
type Node struct {
	Candidate
	// FreeBlocks of its KV pool are nobody's.
	FreeBlocks int
	// Leaving: it takes no more requests, and those that it has may as well go.
	Leaving bool
	// Running are the requests that generate there, and that may be moved now, in the order in
	// which they came. InFlight counts those too that wait, or are on their way.
	Running []Running
}

// A Running is a request that generates.
type Running struct {
	ID      uint64 // the owner's
	Adapter string // "" for the base model
	Tokens  int    // prompt and answer so far: what is moved
	Left    int    // tokens that are still to come, at most
	Moves   int    // how often it was moved before
}

// A Move has a request go on on another node.
type Move struct {
	ID       uint64
	From, To string // IDs of nodes
}

// A MigrationConfig says which Migration is asked, and how often. Zero fields take the defaults.
type MigrationConfig struct {
	// Policy is one of Migrations. Default NoMigration.
	Policy string
	// Interval between two times that it is asked. Default 1 s.
	Interval time.Duration
	// Threshold of MigrationOptions. Default 2.
	Threshold int
}

// WithDefaults is c with the defaults in its zero fields.
func (c MigrationConfig) WithDefaults() MigrationConfig {
	config.Default(&c.Policy, NoMigration)
	config.Default(&c.Interval, time.Second)
	config.Default(&c.Threshold, 2)
	return c
}

// Migrates reports whether requests go on on other nodes.
func (c MigrationConfig) Migrates() bool { return c.Policy != "" && c.Policy != NoMigration }

// Check lists every fault by its field, of a field Migration.
func (c MigrationConfig) Check(bad *config.Faults) {
	c = c.WithDefaults()
	bad.Refuse(!slices.Contains(Migrations(), c.Policy), "Migration.Policy", c.Policy, "use %s", config.Or(Migrations()))
	config.Between(bad, "Migration.Interval", c.Interval, 10*time.Millisecond, time.Hour)
	config.Between(bad, "Migration.Threshold", c.Threshold, 1, 1<<20)
}

// New makes it for nodes with blocks of so many tokens; nil for NoMigration.
func (c MigrationConfig) New(blockTokens int) (Migration, error) {
	return NewMigration(c.Policy, MigrationOptions{BlockTokens: blockTokens, Threshold: c.Threshold})
}

// MigrationOptions are what a Migration is made with.
type MigrationOptions struct {
	BlockTokens int // of the nodes' KV blocks
	Threshold   int // requests by which the loads of two nodes differ before one is moved
}

// migrations is the table of them.
var migrations = table[migrator]{
	{NoMigration, "a request stays where it was placed", func(MigrationOptions) Migration { return nil }},
	periodicKind,
	dloraMigrationKind,
}

type migrator = func(MigrationOptions) Migration

// Migrations lists their names, NoMigration first.
func Migrations() []string { return migrations.names() }

// MigrationHelp lists them for the help of a flag.
func MigrationHelp() string { return migrations.help() }

// NewMigration returns the one of that name, nil for NoMigration and "".
func NewMigration(name string, o MigrationOptions) (Migration, error) {
	if name == "" {
		return nil, nil
	}
	if migrate, ok := migrations.find(name); ok {
		return migrate(o), nil
	}
	return nil, fmt.Errorf("migration %q is unknown: use %s", name, strings.Join(Migrations(), ", "))
}
