package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"kvferry/internal/config"
	"kvferry/transport/topology"
)

// topoFlags are the command line of kvferry rail topo.
type topoFlags struct {
	root, matrix, format, capture string
	names                         string
	options                       topology.Options
}

func topoCommand() *cobra.Command {
	var f topoFlags
	cmd := &cobra.Command{
		Use:   "topo",
		Short: "Which NIC is near which memory, and why",
		Long: `Show the NUMA nodes, NICs and GPUs of a machine, which NICs a transfer engine
prefers for memory at each of its locations (cpu:0 is NUMA node 0, cuda:0 the first
NVIDIA GPU in PCI order), why, and what looks wrong.

A row of the matrix lists interfaces, which TCP rails are named by, and RDMA devices.
--format matrix prints it as Mooncake reads it (nic_priority_matrix,
MC_CUSTOM_TOPO_JSON; with --names rdma, as it knows no interfaces), and --matrix
takes such a file: its rows replace those that were found, all others stay.

--include names NICs to use, --exclude some not to, as names or patterns (eth*,
mlx5_[0-3]); both can be repeated. An included NIC is used even if it is down or
loopback.

--root is another machine: a folder with its sys in it, or a capture. --capture
writes one, as .tar.gz or, if its name ends in .txt, as text. It contains
` + wrapText(topology.Contents, 80) + `.

Exit status: 0 also with warnings; 1 this machine cannot be read; 2 bad flags, or a
--root that cannot be read.`,
		Example: `  kvferry rail topo
  kvferry rail topo --exclude eth0 --format matrix >matrix.json
  kvferry rail topo --matrix matrix.json
  kvferry rail topo --capture server.tar.gz      # send this
  kvferry rail topo --root server.tar.gz         # and somebody else sees your machine`,
		Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(cmd.Flags().Changed); err != nil {
				return err
			}
			if f.capture != "" {
				return f.writeCapture(cmd)
			}
			m, err := topology.Discover(f.root)
			if err != nil {
				return f.unread(err)
			}
			matrix, warnings, err := m.Matrix(f.options)
			if err != nil {
				return err
			}
			return printTopology(cmd.OutOrStdout(), cmd.ErrOrStderr(), f.format, m, matrix, warnings)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.root, "root", "/", "the machine: / is this one, else a folder or a capture")
	fs.StringVar(&f.matrix, "matrix", "", "file with rows that replace those found")
	fs.StringArrayVar(&f.options.Include, "include", nil, "use these NICs only, also those that are down or loopback")
	fs.StringArrayVar(&f.options.Exclude, "exclude", nil, "do not use these NICs")
	fs.StringVar(&f.names, "names", string(topology.AllNames), "names of NICs in the matrix: all, rdma or net")
	fs.StringVar(&f.format, "format", "text", "what is printed: text, json or matrix")
	fs.StringVar(&f.capture, "capture", "", "write a capture of the machine to this file, and nothing else")
	return cmd
}

// validate names every flag that is wrong, and reads the matrix. Patterns that no NIC fits are
// no fault: they may be meant for several machines.
func (f *topoFlags) validate(changed func(flag string) bool) error {
	var bad config.Faults
	bad.Refuse(f.format != "text" && f.format != "json" && f.format != "matrix", "--format", f.format, "use text, json or matrix")
	f.options.Names = topology.Names(f.names)
	if changed("capture") {
		refuse(&bad, changed, "it has no effect on a capture, which is the machine as it is: leave it out", "matrix", "include", "exclude", "names", "format")
	}
	Parse(&bad, "--matrix", f.matrix, &f.options.Override, topology.ReadMatrix)
	return Check(bad, f.options.Validate(), map[string]string{"Include": "--include", "Exclude": "--exclude", "Names": "--names"})
}

// unread is err, why the machine cannot be read: a matter of the command line unless it is
// this one.
func (f *topoFlags) unread(err error) error {
	if f.root == "/" {
		return err
	}
	return config.Faults{{Field: "--root", Err: err}}.Err("")
}

// writeCapture makes the whole capture before it creates the file, so that a machine that
// cannot be read leaves none. It ends with what is in it: the file is to be sent to somebody.
func (f *topoFlags) writeCapture(cmd *cobra.Command) error {
	s, err := topology.Capture(f.root)
	if err != nil {
		return f.unread(err)
	}
	var b bytes.Buffer
	look := "tar tzf " + f.capture + " lists it"
	if filepath.Ext(f.capture) == ".txt" {
		b.WriteString(s.Text())
		look = "it is text"
	} else if err := s.Write(&b); err != nil {
		return err
	}
	file, err := os.Create(f.capture)
	if err != nil {
		return config.Faults{{Field: "--capture", Err: config.FileError(f.capture, err)}}.Err("")
	}
	_, err = file.Write(b.Bytes())
	if err = errors.Join(err, file.Close()); err != nil {
		return &config.Fault{Field: "--capture", Err: err}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %.1f KB. It contains\n%s.\nSee for yourself: %s; kvferry rail topo --root %s shows what it says.\n",
		f.capture, float64(b.Len())/1e3, wrapText(topology.Contents, 80), look, f.capture)
	return nil
}
