package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kvferry/internal/knob"
)

// helpAll is the flag that lists all flags of a command whose help is short.
const helpAll = "help-all"

// AddGroups gives a command the flags of all groups. Its help lists them group by group, in
// the order in which they were added to each. With short, it lists only those that are annotated
// as [knob.First]; --help-all lists the others too, and --help-topic those of one topic, which is
// what kvferry help COMMAND TOPIC asks for.
func AddGroups(cmd *cobra.Command, short bool, groups ...knob.Group) {
	for _, g := range groups {
		g.Flags.SortFlags = false
		cmd.Flags().AddFlagSet(g.Flags)
	}
	var topics []string
	for _, g := range groups {
		if g.Topic != "" && !slices.Contains(topics, g.Topic) {
			topics = append(topics, g.Topic)
		}
	}
	var topic string
	if short {
		cmd.Flags().Bool(helpAll, false, "list all flags")
	}
	if len(topics) > 0 {
		cmd.Annotations = map[string]string{topicsOf: strings.Join(topics, "|")}
		cmd.Flags().StringVar(&topic, helpTopic, "", "")
		_ = cmd.Flags().MarkHidden(helpTopic)
	}
	help := cmd.HelpFunc()
	cmd.SetHelpFunc(func(c *cobra.Command, args []string) {
		if topic == "" {
			help(c, args)
			return
		}
		_ = c.Usage() // the topic alone
	})
	cmd.SetUsageFunc(func(c *cobra.Command) error {
		w := c.OutOrStdout()
		if topic != "" {
			printGroups(w, slices.DeleteFunc(slices.Clone(groups), func(g knob.Group) bool { return g.Topic != topic }), false)
			return nil
		}
		first := short && !c.Flags().Changed(helpAll)
		fmt.Fprintf(w, "Usage:\n  %s\n", c.UseLine())
		if c.HasExample() {
			fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
		}
		fmt.Fprint(w, "\nFlags:\n")
		if dataset := c.Flags().Lookup("dataset-name"); dataset != nil && dataset.Changed {
			printGroups(w, ofDataset(groups, dataset.Value.String()), first)
		} else {
			printGroups(w, groups, first)
		}
		rest := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !slices.ContainsFunc(groups, func(g knob.Group) bool { return g.Flags.Lookup(f.Name) != nil }) {
				rest.AddFlag(f)
			}
		})
		if rest.HasAvailableFlags() {
			fmt.Fprintf(w, "\n  Others:\n%s", rest.FlagUsages())
		}
		if first && len(topics) > 0 {
			fmt.Fprintf(w, "\nThese are the most used. 'kvferry help %s %s' lists those of a topic.\n", c.Name(), strings.Join(topics, "|"))
		}
		return nil
	})
}

// helpTopic is the hidden flag by which the help command asks for a topic, and topicsOf the
// annotation of a command with the topics that it has.
const (
	helpTopic = "help-topic"
	topicsOf  = "kvferry/topics"
)

// printGroups lists flags by group, or those of them that come first.
func printGroups(w io.Writer, groups []knob.Group, first bool) {
	between := ""
	for _, g := range groups {
		shown := g.Flags
		if first {
			shown = pflag.NewFlagSet("", pflag.ContinueOnError)
			shown.SortFlags = false
			g.Flags.VisitAll(func(f *pflag.Flag) {
				if _, ok := f.Annotations[knob.First]; ok {
					shown.AddFlag(f)
				}
			})
		}
		if shown.HasAvailableFlags() {
			fmt.Fprintf(w, "%s  %s:\n%s", between, g.Title, shown.FlagUsages())
			between = "\n"
		}
	}
}

// helpArgs rewrites "help COMMAND TOPIC" as a command line that prints the topic, and has
// --help-all print help.
func helpArgs(root *cobra.Command, args []string) []string {
	if i := slices.Index(args, "--"+helpAll); i >= 0 && !slices.Contains(args[:i], "--") {
		return slices.Insert(slices.Clone(args), i, "--help")
	}
	if len(args) < 3 || args[0] != "help" {
		return args
	}
	cmd, rest, err := root.Find(args[1:])
	if err != nil || len(rest) != 1 || !slices.Contains(strings.Split(cmd.Annotations[topicsOf], "|"), rest[0]) {
		return args
	}
	path := strings.Fields(cmd.CommandPath())
	return append(path[1:], "--"+helpTopic, rest[0], "--help")
}
