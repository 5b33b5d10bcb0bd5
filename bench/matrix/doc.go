// Package matrix runs servers x clients: each client against each server, one pair after
// another, and puts their figures into one table.
//
// A [File] says what there is: a server is a command, with how it tells that it is ready and how
// it is stopped, or the URL of one that runs already; a client is a kvferry bench line or any
// command. [Run] makes the pairs. Each has a folder, OUT/SERVER/CLIENT, that keeps all that it
// left: stdout and stderr of the client, server.log, the client's own files in result, and
// pair.json, which says how it went. A run that was stopped goes on with the same command: pairs
// that are done, by command lines that are still those of the file, are not run again.
//
// Three parts know little of each other:
//
//   - schedule.go is a pure machine: it is told what happened and says what is next. It has no
//     processes and no clock.
//   - keeper.go owns processes. A command runs under a keeper, which is this program again: it
//     starts the command in a process group of its own, adopts what the command leaves behind
//     (a child subreaper, on Linux), and ends all of it when it is told to or when kvferry is
//     gone, kill -9 included. A program that uses this package calls [Child] first in main.
//   - run.go does what the machine says, by means of keepers, one pair at a time.
//
// Times are wall time. Figures are not computed here: they are what the clients report, each by
// its own definition (figures.go says which file or line they come from).
package matrix
