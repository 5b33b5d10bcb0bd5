package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"kvferry/command"
	"kvferry/config"
	"kvferry/engine"
	"kvferry/tokenizer"
)

func tokenizerCommand() *cobra.Command {
	var out, profile string
	cmd := &cobra.Command{
		Use:   "tokenizer",
		Short: "Write kvferry's tokenizer into a folder, for any client",
		Long: `Write the tokenizer by which a kvferry cluster counts its texts into a folder, as
tokenizer.json and tokenizer_config.json: Hugging Face's format, which clients
read (transformers' AutoTokenizer.from_pretrained, vllm bench serve --tokenizer,
sglang.bench_serving --tokenizer, kvbench serve --tokenizer). With it a client
counts as many tokens as kvferry: each word that a modelled GPU generates is one.

The vocabulary has the size that the cluster's --profile says. A running proxy
hands out the same files at /tokenizer/tokenizer.json and
/tokenizer/tokenizer_config.json. A proxy that was started with --tokenizer
counts by that one instead: give its folder to the client.`,
		Example: `  kvbench tokenizer --out kvferry-tokenizer
  vllm bench serve --tokenizer kvferry-tokenizer --base-url http://127.0.0.1:8000 ...`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out == "" {
				return config.Faults{{Field: "--out", Err: fmt.Errorf("none given: name a folder to write to")}}.Err("")
			}
			p, err := engine.LoadProfile(profile)
			if err != nil {
				return config.Faults{{Field: "--profile", Err: err}}.Err("")
			}
			t, err := tokenizer.Own(p.Vocab)
			if err != nil {
				return config.Faults{{Field: "--profile", Err: fmt.Errorf("%q: its vocab: %w", profile, err)}}.Err("")
			}
			if err := t.Save(out, p.MaxModelLen); err != nil {
				return config.Faults{{Field: "--out", Err: err}}.Err("")
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s and %s, %d tokens\n", out, tokenizer.FileName, tokenizer.ConfigFileName, t.Len())
			return err
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "folder to write to, made if it is not there")
	cmd.Flags().StringVar(&profile, "profile", engine.DefaultProfile, "the cluster's: its vocab is how many tokens there are")
	return cmd
}
