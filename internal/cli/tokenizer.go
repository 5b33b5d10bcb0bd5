package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"kvferry/engine"

	"kvferry/internal/config"
	"kvferry/tokenizer"
)

func tokenizerCommand() *cobra.Command {
	var out, profile, model string
	cmd := &cobra.Command{
		Use:   "tokenizer",
		Short: "Write kvferry's tokenizer into a folder, for any client",
		Long: `Write the tokenizer by which a kvferry cluster counts its texts into a folder, as
tokenizer.json, tokenizer_config.json and config.json: Hugging Face's format, which
clients read (transformers' AutoTokenizer.from_pretrained, vllm bench serve
--tokenizer, sglang.bench_serving --tokenizer, kvferry bench --tokenizer). With it a
client counts as many tokens as kvferry: each word that a modelled GPU generates is
one.

The vocabulary has the size that the cluster's --profile says. A running proxy
hands out the same files at /tokenizer/tokenizer.json, /tokenizer/tokenizer_config.json
and /tokenizer/config.json. A proxy that was started with --tokenizer counts by that
one instead: give the client the same, or the folder into which this command copies
it.`,
		Example: `  kvferry tokenizer --out kvferry-tokenizer
  vllm bench serve --tokenizer kvferry-tokenizer --base-url http://127.0.0.1:8000 ...
  kvferry tokenizer --tokenizer Qwen/Qwen3-8B --out qwen3     # out of the Hugging Face cache`,
		Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var bad config.Faults
			if out == "" {
				bad.Check("--out", errors.New("none given: name a folder to write to"))
			}
			if model != "" {
				refuse(&bad, cmd.Flags().Changed, "it is for kvferry's own tokenizer, and --tokenizer is a model's: leave one out", "profile")
			}
			files, tokens := tokenizerFiles(model, profile, &bad)
			if err := bad.Err(""); err != nil {
				return err
			}
			names, err := files.Save(out)
			if err != nil {
				return config.Faults{{Field: "--out", Err: err}}.Err("")
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s; %d tokens\n", out, strings.Join(names, ", "), tokens)
			return err
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "folder to write to, made if it is not there")
	cmd.Flags().StringVar(&profile, "profile", engine.DefaultProfile, "the cluster's: its vocab is how many tokens there are")
	cmd.Flags().StringVar(&model, "tokenizer", "", "a model's instead, to be copied: "+tokenizerHelp)
	return cmd
}

// tokenizerHelp is what --tokenizer takes, in all commands.
const tokenizerHelp = "a folder or a tokenizer.json of the Hugging Face format, or a model that is in the Hugging Face cache, such as Qwen/Qwen3-8B"

// tokenizerFiles are those of a model's tokenizer, or of kvferry's own for a profile.
func tokenizerFiles(model, profile string, bad *config.Faults) (files tokenizer.Files, tokens int) {
	if model != "" {
		t, err := tokenizer.Load(model)
		bad.Check("--tokenizer", err)
		if err != nil {
			return files, 0
		}
		path, err := tokenizer.Find(model)
		bad.Check("--tokenizer", err)
		return tokenizer.FilesAt(path), t.Len()
	}
	p, err := engine.LoadProfile(profile)
	bad.Check("--profile", err)
	if err != nil {
		return files, 0
	}
	t, err := tokenizer.Own(p.Vocab)
	if err != nil {
		bad.Check("--profile", fmt.Errorf("%q: its vocab: %w", profile, err))
		return files, 0
	}
	return t.Files(p.MaxModelLen), t.Len()
}
