package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Values tells a shell's completion (kvferry completion --help) what flags take: a name for
// each, without the dashes, and its values. A flag with a comma in what is typed is a list,
// and a value that ends in "/" or "=" goes on. Flags that the command does not have are left
// out, so that commands can share a table.
func Values(cmd *cobra.Command, values map[string][]string) {
	for name, all := range values {
		if cmd.Flags().Lookup(name) == nil {
			continue
		}
		err := cmd.RegisterFlagCompletionFunc(name, func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			return complete(all, typed)
		})
		if err != nil {
			panic("command: " + err.Error()) // the program's own mistake: a flag with two tables
		}
	}
}

// complete lists the values that what was typed, or its part behind the last comma, may
// become.
func complete(values []string, typed string) ([]string, cobra.ShellCompDirective) {
	list, last := "", typed
	if i := strings.LastIndexByte(typed, ','); i >= 0 {
		list, last = typed[:i+1], typed[i+1:]
	}
	directive := cobra.ShellCompDirectiveDefault // a file's name, where no value begins so
	var fits []string
	for _, v := range values {
		if !strings.HasPrefix(v, last) || slices.Contains(strings.Split(list, ","), v) {
			continue
		}
		fits = append(fits, list+v)
		if strings.HasSuffix(v, "/") || strings.HasSuffix(v, "=") {
			directive = cobra.ShellCompDirectiveNoSpace
		}
	}
	return fits, directive
}
