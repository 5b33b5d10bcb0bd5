// Package hub finds models in the cache of the Hugging Face hub. Users of vLLM name a model as the
// hub does, Qwen/Qwen3-8B, and their tools download it. Nothing is downloaded here; what they have
// downloaded is found where huggingface_hub keeps it:
//
//	$HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub
//	  models--Qwen--Qwen3-8B/refs/main            the commit that was downloaded last
//	  models--Qwen--Qwen3-8B/snapshots/COMMIT/    the files, links to blobs
package model

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// modelName is what the hub takes as a model's name: NAME or ORG/NAME.
var modelName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?$`)

// longestName is the hub's own bound, in bytes.
const longestName = 96

// FindFiles is the path that the name of a model means: a folder or a file, or else the folder that the cache
// has of a model, with the first of these files in it. The error of a name that is neither says where
// was looked, and which command downloads the files.
func FindFiles(name string, files ...string) (path string, err error) {
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		return name, nil // what is wrong with it is told by who reads it
	}
	if !modelName.MatchString(name) || len(name) > longestName || strings.HasSuffix(name, ".json") ||
		strings.Contains(name, "--") || strings.Contains(name, "..") {
		return name, nil
	}
	cache, err := cacheFolder()
	if err != nil {
		return "", fmt.Errorf("%q: there is no such file or folder, and no cache of the Hugging Face hub: %w: set HF_HUB_CACHE", name, err)
	}
	model := filepath.Join(cache, "models--"+strings.ReplaceAll(name, "/", "--"))
	download := "download it: hf download " + name + " " + strings.Join(files, " ")
	snapshot, err := snapshotOf(model)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%q: there is no such file or folder, and the cache of the Hugging Face hub (%s) does not have it: %s", name, cache, download)
	case err != nil:
		return "", fmt.Errorf("%q: in the cache of the Hugging Face hub: %w", name, err)
	}
	if _, err := os.Stat(filepath.Join(snapshot, files[0])); err != nil {
		return "", fmt.Errorf("%q: what the cache of the Hugging Face hub has of it (%s) is without a %s: %s", name, snapshot, files[0], download)
	}
	return snapshot, nil
}

// cacheFolder is the folder in which huggingface_hub keeps models. The error says that this user
// has no home.
func cacheFolder() (string, error) {
	if dir := cmp.Or(os.Getenv("HF_HUB_CACHE"), os.Getenv("HUGGINGFACE_HUB_CACHE")); dir != "" {
		return withHome(dir)
	}
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return withHome(filepath.Join(dir, "hub"))
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return withHome(filepath.Join(dir, "huggingface", "hub"))
	}
	return withHome(filepath.Join("~", ".cache", "huggingface", "hub"))
}

// withHome puts this user's home in for "~", as huggingface_hub does with its variables.
func withHome(dir string) (string, error) {
	if dir != "~" && !strings.HasPrefix(dir, "~"+string(filepath.Separator)) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, dir[1:]), err
}

// snapshotOf is the folder of a model's files: of the commit that main was when it was
// downloaded, or the only one of a model that was downloaded by a commit's own name. It is
// fs.ErrNotExist where there is none.
func snapshotOf(model string) (string, error) {
	snapshots := filepath.Join(model, "snapshots")
	commit, err := os.ReadFile(filepath.Join(model, "refs", "main"))
	if err == nil {
		dir := filepath.Join(snapshots, filepath.Base(strings.TrimSpace(string(commit))))
		_, err = os.Stat(dir)
		return dir, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	all, err := os.ReadDir(snapshots)
	switch {
	case err != nil:
		return "", err
	case len(all) == 0:
		return "", fs.ErrNotExist
	case len(all) > 1:
		return "", fmt.Errorf("%s has %d commits and no refs/main says which: name one of these folders", snapshots, len(all))
	}
	return filepath.Join(snapshots, all[0].Name()), nil
}
