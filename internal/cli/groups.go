package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A Group is flags that belong together, for the help of a command that has many.
type Group struct {
	Title string
	Flags *pflag.FlagSet
}

// AddGroups gives a command the flags of all groups. Its help lists them group by group, in
// the order in which they were added to each.
func AddGroups(cmd *cobra.Command, groups ...Group) {
	for _, g := range groups {
		g.Flags.SortFlags = false
		cmd.Flags().AddFlagSet(g.Flags)
	}
	cmd.SetUsageFunc(func(c *cobra.Command) error {
		var b strings.Builder
		fmt.Fprintf(&b, "Usage:\n  %s\n", c.UseLine())
		if c.HasExample() {
			fmt.Fprintf(&b, "\nExamples:\n%s\n", c.Example)
		}
		b.WriteString("\nFlags:\n")
		listed := map[string]bool{}
		for i, g := range groups {
			if i > 0 {
				b.WriteByte('\n')
			}
			fmt.Fprintf(&b, "  %s:\n%s", g.Title, g.Flags.FlagUsages())
			g.Flags.VisitAll(func(f *pflag.Flag) { listed[f.Name] = true })
		}
		rest := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !listed[f.Name] {
				rest.AddFlag(f)
			}
		})
		if rest.HasAvailableFlags() {
			fmt.Fprintf(&b, "\n  Others:\n%s", rest.FlagUsages())
		}
		_, err := fmt.Fprint(c.OutOrStderr(), b.String())
		return err
	})
}
