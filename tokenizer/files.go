package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"kvferry/internal/config"
	"kvferry/kvcache"
)

// The files of a folder.
const (
	FileName            = "tokenizer.json"
	ConfigFileName      = "tokenizer_config.json"
	TemplateFileName    = "chat_template.jinja"
	ModelConfigFileName = "config.json" // the model's; [Load] does not read it
)

// FileNames are all files by which a client counts, the one first that is always there.
var FileNames = []string{FileName, ConfigFileName, TemplateFileName, ModelConfigFileName}

// Files are those of a tokenizer, for a client to read.
type Files struct {
	path   string     // of a model's: a folder, or a tokenizer.json
	own    *Tokenizer // kvferry's own, whose files are written as they are asked for
	maxLen int
}

// FilesAt are those of a model: of a folder or a tokenizer.json that [Load] reads.
func FilesAt(path string) Files { return Files{path: path} }

// Files are those of kvferry's own tokenizer. maxLen is the most tokens that the model takes.
func (t *Tokenizer) Files(maxLen int) Files { return Files{own: t, maxLen: maxLen} }

// Write writes a file. Its error is w's or the system's, fs.ErrNotExist of a file that there is
// not; nothing has been written then.
func (f Files) Write(w io.Writer, name string) error {
	if f.own == nil {
		return f.copy(w, name)
	}
	var text []byte
	switch name {
	case FileName:
		return f.own.WriteFile(w)
	case ConfigFileName:
		text = f.own.settings(f.maxLen)
	case ModelConfigFileName:
		text = f.own.modelConfig(f.maxLen)
	default: // the template is in the settings
		return &fs.PathError{Op: "write", Path: name, Err: fs.ErrNotExist}
	}
	_, err := w.Write(text)
	return err
}

// copy writes a file of a model's.
func (f Files) copy(w io.Writer, name string) error {
	path := f.path
	switch info, err := os.Stat(path); {
	case err != nil:
		return err
	case info.IsDir():
		path = filepath.Join(path, name)
	case name != FileName:
		return &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(w, file)
	return err
}

// Save writes all files that there are into a folder, which is made if it is not there, and
// says which. transformers and [Load] read it.
func (f Files) Save(folder string) (names []string, err error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	for _, name := range FileNames {
		path := filepath.Join(folder, name)
		file, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
		if err != nil {
			return names, err
		}
		err = errors.Join(f.Write(file, name), file.Close())
		if err == nil {
			err = os.Rename(path+".tmp", path)
		}
		if err != nil {
			_ = os.Remove(path + ".tmp") // part of a file helps nobody
			if name != FileName && errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return names, config.FileError(path, err)
		}
		names = append(names, name)
	}
	return names, nil
}

// settings are the tokenizer_config.json of kvferry's own tokenizer: what transformers'
// AutoTokenizer.from_pretrained wants beside the tokenizer.json.
func (t *Tokenizer) settings(maxLen int) []byte {
	return indented(map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": marks[2], "pad_token": marks[0], "additional_special_tokens": marks[1:], "chat_template": ownTemplate,
		"clean_up_tokenization_spaces": false, "model_max_length": maxLen,
	})
}

// modelConfig is the config.json beside them. transformers' AutoConfig, which vLLM's client asks
// before it reads a tokenizer, wants a model_type that it knows: without one that client tries
// again for 2 s and logs two errors. GPT-2's is the byte-level BPE that every version knows, and
// leaves the tokenizer's class to tokenizer_config.json. With Qwen2's, transformers 5 takes that
// model's class whatever the folder says. And transformers takes a folder for an old one of
// Mistral's, and warns of a wrong pattern, unless it says which transformers it is of.
func (t *Tokenizer) modelConfig(maxLen int) []byte {
	eos := t.own.marks + kvcache.Token(len(marks)-1)
	return indented(map[string]any{
		"model_type": "gpt2", "architectures": []string{"GPT2LMHeadModel"}, "vocab_size": t.Len(), "n_positions": maxLen,
		"bos_token_id": nil, "eos_token_id": eos, "pad_token_id": t.own.marks, "transformers_version": "4.57.2",
	})
}

func indented(v map[string]any) []byte {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		panic(fmt.Sprintf("tokenizer: %v", err)) // texts and numbers always can be
	}
	return append(b, '\n')
}
