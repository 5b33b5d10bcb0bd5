package bench

import "flag"

// update rewrites the golden files: go test ./bench -update. Commit the
// difference only if you understand what caused it.
var update = flag.Bool("update", false, "rewrite testdata/*.golden")
