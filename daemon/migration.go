package daemon

import (
	"github.com/spf13/pflag"

	"kvferry/placement"
)

// MigrationNeeds maps each flag that has no effect alone to the flag that it needs, for cli.Needs.
var MigrationNeeds = map[string]string{"migration-interval": "migration", "migration-threshold": "migration"}

// AddMigrationFlags adds those that set a migration, of a proxy or a simulated cluster.
func AddMigrationFlags(fs *pflag.FlagSet, c *placement.MigrationConfig) {
	d := c.WithDefaults()
	fs.StringVar(&c.Policy, "migration", d.Policy, "which running requests go on on other nodes, with their KV: "+placement.MigrationHelp())
	fs.DurationVar(&c.Interval, "migration-interval", d.Interval, "time from one look at that to the next")
	fs.IntVar(&c.Threshold, "migration-threshold", d.Threshold, "requests by which two nodes must differ for one to go")
}
