// Package matrix runs servers x clients: each client against each server, one pair after
// another, and puts their figures into one table.
//
// A [File] lists them. A server is a command, with how it announces that it is ready and how it is
// stopped, or the URL of a server that runs already. A client is a kvferry bench line or any
// command. [Run] runs the pairs. Each has a folder, OUT/SERVER/CLIENT, with stdout and stderr of
// the client, server.log, the client's own files in result, and pair.json, which records what was
// run and how it ended. A run that was stopped is resumed by the same command: pairs that are done,
// by command lines that are still in the file, are not run again.
//
// Commands are processes of package proc with Group: a command's process group ends with kvferry,
// kill -9 included. What leaves the group, with setsid or as a container, has to be ended by the
// command that started it.
//
// Times are wall time. Figures are the clients' own, each by the client's definition.
package matrix
