// Package cli turns command lines into configurations and runs them: [Main] is kvferry, and
// [Proxy] and [Node] are its daemons as programs of their own. A file here has one command, or
// flags that several commands share.
//
// A [Program] gives its commands signals, exit statuses, --version and errors that name a flag
// and what would do. A command turns its flags into a configuration and runs it:
//
//	names := map[string]string{"Rails": "--rail", "Server": "HOST"}
//	var bad config.Faults
//	cfg.Block, err = parseSize(text)
//	bad.Check("--block", err)
//	if err := Check(bad, cfg.Validate(), names); err != nil {
//		return err // exit 2
//	}
//	return config.Named(run(ctx, cfg), names)
//
// A flag that is left out has its default. 0 is 0: no wait, no retry, nothing. Where that
// makes no sense a 0 is refused ([Positive]), and so are negative numbers, NaN and empty
// texts, for all flags here; package config says how a configuration has both, a default
// and none.
//
// Exit statuses: 0 all went well; 1 it failed at run time; 2 the command line cannot be
// run, and a [config.Invalid] says why: a value cannot be read, or an address, file or
// device cannot be used; 130 interrupted. A program may have others.
package cli
