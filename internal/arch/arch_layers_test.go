package arch

// A layer says what the files of a directory may import besides the standard library:
// packages of this module, and libraries with what is below them. Its tests may import
// what is below those packages too, and the packages of tests.
type layer struct{ module, libraries, tests []string }

const (
	grpc     = "google.golang.org/grpc"
	protobuf = "google.golang.org/protobuf"
	xsys     = "golang.org/x/sys"
	cobra    = "github.com/spf13/cobra"
	pflag    = "github.com/spf13/pflag"
	otel     = "go.opentelemetry.io"
)

var layers = map[string]layer{
	".":                       {},
	"internal/arch":           {},
	"internal/clock":                   {libraries: []string{xsys}},
	"internal/clock/clocktest":         {module: []string{"internal/clock"}},
	"internal/config":                  {},
	"internal/version":                 {},
	"internal/otlp":                    {module: []string{"internal/config"}, libraries: []string{otel}},
	"internal/otlp/otlptest":           {libraries: []string{otel, protobuf}},
	"kvcache":                 {module: []string{"internal/config"}, libraries: []string{"github.com/zeebo/xxh3"}},
	"fabric":                  {},
	"hub":                     {},
	"modelconfig":             {module: []string{"hub", "internal/config"}},
	"load":                    {module: []string{"load/dataset", "load/functions", "load/numpy", "load/pyjson", "load/pyrandom", "load/records", "load/agents", "kvcache", "internal/config"}},
	"load/dataset":            {module: []string{"load/numpy", "load/pyrandom", "load/records", "kvcache", "internal/config"}},
	"load/functions":          {module: []string{"load/numpy", "load/records", "internal/config"}},
	"load/numpy":              {module: []string{"load/mt19937"}},
	"load/pyrandom":           {module: []string{"load/mt19937"}},
	"load/mt19937":            {},
	"load/pyjson":             {},
	"load/agents":             {module: []string{"load/records", "internal/config"}},
	"load/records":            {module: []string{"internal/config"}},
	"load/dispatch":           {module: []string{"load", "kvcache"}},
	"load/loadtest":           {module: []string{"load"}},
	"tokenizer":               {module: []string{"hub", "load", "kvcache", "internal/config"}, libraries: []string{"golang.org/x/text", "github.com/dlclark/regexp2/v2", "github.com/nikolalohinski/gonja/v2"}},
	"engine":                  {module: []string{"kvcache", "internal/config"}},
	"engine/eos":              {module: []string{"kvcache", "internal/config"}},
	"engine/datasheet":        {module: []string{"engine", "kvcache", "modelconfig", "internal/config"}},
	"engine/batching":         {module: []string{"engine", "kvcache", "internal/config"}},
	"engine/enginetest":       {module: []string{"engine", "kvcache"}},
	"engine/modelled":         {module: []string{"engine", "kvcache", "internal/clock"}, tests: []string{"engine/batching"}},
	"placement":               {module: []string{"kvcache", "internal/config"}},
	"transport/access":        {},
	"transport/account":       {},
	"transport/selection":     {},
	"transport/immediate":     {},
	"transport/pacing":        {module: []string{"fabric", "internal/clock", "internal/config"}},
	"transport/descriptor":    {module: []string{"transport/access"}, libraries: []string{xsys}},
	"transport/pages":         {libraries: []string{xsys}},
	"transport":               {module: []string{"transport/access", "transport/account", "transport/descriptor", "transport/immediate", "transport/pacing", "transport/pages", "transport/selection", "internal/clock", "internal/config"}, tests: []string{"transport/tcp"}},
	"transport/topology":      {module: []string{"internal/config"}, libraries: []string{"github.com/jaypipes/ghw", "github.com/Mellanox/rdmamap"}},
	"transport/nic":           {module: []string{"transport"}, libraries: []string{"github.com/vishvananda/netlink"}},
	"transport/connection":    {module: []string{"transport"}},
	"transport/bundle":        {module: []string{"transport"}, tests: []string{"transport/transporttest"}},
	"transport/socket":        {module: []string{"transport", "transport/connection", "transport/pages"}, libraries: []string{xsys}},
	"transport/tcp":           {module: []string{"transport", "transport/bundle", "transport/connection", "transport/nic", "transport/socket", "internal/config"}, libraries: []string{xsys}, tests: []string{"transport/process"}},
	"transport/process":       {libraries: []string{xsys}},
	"transport/cma":           {module: []string{"transport", "transport/process", "transport/socket", "internal/config"}, libraries: []string{xsys}},
	"transport/shm":           {module: []string{"transport", "transport/connection", "transport/descriptor", "transport/pages", "transport/process", "internal/config"}, libraries: []string{xsys}},
	"transport/rdma":          {module: []string{"transport", "transport/connection", "transport/nic", "internal/config"}, libraries: []string{"github.com/Mellanox/rdmamap"}},
	"transport/rails":         {module: []string{"transport", "transport/connection", "transport/nic", "transport/tcp", "transport/cma", "transport/shm", "transport/rdma", "transport/topology", "internal/config"}},
	"transport/transporttest": {module: []string{"transport", "transport/connection", "transport/descriptor", "internal/clock/clocktest", "internal/clock"}, libraries: []string{xsys}},
	"foreign":                 {module: []string{"transport", "transport/pages", "transport/rails", "internal/config"}},
	"kvtransfer":              {module: []string{"kvcache", "transport", "transport/pacing", "internal/clock", "internal/config"}, tests: []string{"transport/transporttest", "transport/rails", "internal/clock/clocktest"}},
	"handoff":                 {module: []string{"internal/config"}},
	"handoff/handofftest":     {module: []string{"handoff"}},
	"attempt":                 {module: []string{"handoff"}, tests: []string{"connector", "engine", "engine/batching", "kvcache"}},
	"connector":               {module: []string{"handoff", "engine", "kvcache"}, tests: []string{"engine/batching"}},
	"proto":                   {libraries: []string{grpc, protobuf}},
	"node": {
		module:    []string{"transport/pacing", "internal/clock", "internal/config", "internal/version", "kvcache", "engine", "kvtransfer", "transport", "transport/rails", "transport/topology", "handoff", "connector", "proto"},
		libraries: []string{grpc, protobuf, "golang.org/x/sync"},
		tests:     []string{"proxy", "proxy/openai", "engine/modelled", "engine/enginetest"},
	},
	"node/byzantine": {module: []string{"handoff", "handoff/handofftest", "proto"}, libraries: []string{grpc, protobuf}},
	"proxy": { // knows nodes by what they say over gRPC only
		module:    []string{"proxy/adapters", "proxy/admission", "proxy/ahead", "proxy/health", "proxy/members", "proxy/metrics", "proxy/migration", "proxy/openai", "proxy/sglang", "proxy/turn", "tokenizer", "proxy/chunks", "proxy/cors", "proxy/profile", "proxy/serverinfo", "proxy/tracing", "proxy/upstream", "proxy/wire", "internal/otlp", "internal/clock", "internal/config", "internal/version", "kvcache", "engine/eos", "placement", "handoff", "attempt", "proto"},
		libraries: []string{grpc, protobuf, "github.com/prometheus"},
		tests:     []string{"node/byzantine", "proxy/upstream/upstreamtest"},
	},
	"proxy/upstream/upstreamtest": {},

	"proxy/upstream":            {module: []string{"proxy/health", "proxy/openai", "internal/clock", "internal/config", "kvcache", "placement", "proto"}, libraries: []string{"github.com/prometheus"}, tests: []string{"proxy/upstream/upstreamtest"}}, // knows engines by HTTP only
	"proxy/wire":                {module: []string{"attempt", "proxy/admission", "proxy/openai", "proxy/unpack", "tokenizer"}},
	"proxy/adapters":            {module: []string{"proxy/openai", "proxy/wire", "internal/config"}, tests: []string{"engine"}},
	"proxy/admission":           {},
	"proxy/ahead":               {module: []string{"attempt", "internal/clock/clocktest", "placement", "proto"}, libraries: []string{grpc, xsys}},
	"proxy/chunks":              {},
	"proxy/cors":                {},
	"proxy/profile":             {},
	"proxy/unpack":              {},
	"proxy/serverinfo":          {},
	"proxy/turn":                {},
	"proxy/health":              {module: []string{"proto"}},
	"proxy/members":             {module: []string{"proxy/health", "internal/clock", "proto"}, libraries: []string{grpc}, tests: []string{"proxy/members/memberstest"}},
	"proxy/members/memberstest": {module: []string{"proxy/members", "internal/clock/clocktest", "proto"}},
	"proxy/migration":           {module: []string{"placement", "internal/config"}},
	"proxy/metrics":             {module: []string{"proto"}, libraries: []string{"github.com/prometheus"}},
	"proxy/sglang":              {module: []string{"proxy/openai"}},
	"proxy/tracing":             {module: []string{"internal/otlp", "proto", "internal/version"}, libraries: []string{otel}},
	"proxy/openai":              {module: []string{"internal/config", "proto", "tokenizer", "load"}, tests: []string{"engine"}},
	"daemon":                    {module: []string{"internal/config", "engine", "engine/eos", "handoff", "kvcache", "node", "proto", "proxy", "proxy/openai", "transport", "transport/process", "transport/rails", "transport/topology", "placement"}, libraries: []string{pflag}},
	"sim":                       {module: []string{"fabric", "kvcache", "load", "load/dispatch", "engine", "handoff", "attempt", "connector", "placement", "internal/config", "engine/batching", "engine/eos"}},
	"cluster":                   {module: []string{"daemon", "node", "proxy", "internal/config", "engine", "engine/eos", "handoff", "kvcache", "placement", "proto"}, tests: []string{"load", "bench/client", "engine/modelled", "node/byzantine", "proxy/openai", "sim", "tokenizer"}},
	"bench": { // sees a real cluster through its HTTP API only
		module:    []string{"bench/bar", "bench/server", "internal/clock", "internal/config", "kvcache", "load", "engine", "handoff", "placement", "sim", "bench/client", "bench/figure", "bench/fit", "bench/machine", "bench/page", "bench/simulation"},
		libraries: []string{"gonum.org/v1/plot"},
	},
	"bench/bar":                       {libraries: []string{"github.com/schollz/progressbar/v3"}},
	"bench/client":                    {module: []string{"bench/client/wire", "load", "load/dispatch", "internal/clock", "kvcache", "internal/config", "bench/figure"}, tests: []string{"bench/nullserver", "bench/nullserver/nullservertest"}}, // a library: it needs no other
	"bench/client/wire":               {libraries: []string{xsys}},
	"bench/nullserver":                {module: []string{"internal/clock", "bench/figure"}},
	"bench/nullserver/nullservertest": {module: []string{"bench/nullserver"}},
	"bench/client/clienttest":         {},
	"bench/figure":                    {},
	"bench/machine":                   {module: []string{"internal/clock", "engine", "bench/figure"}, libraries: []string{xsys, "github.com/jaypipes/ghw"}},
	"bench/page":                      {libraries: []string{"gonum.org/v1/plot"}},
	"bench/page/pagetest":             {},
	"bench/ratesearch":                {module: []string{"internal/config", "bench/page"}},
	"bench/size":                      {},
	"bench/pattern":                   {},
	"bench/goodput":                   {},
	"bench/linerate":                  {module: []string{"transport/rails"}},
	"bench/check":                     {module: []string{"bench/goodput", "bench/linerate", "bench/machine", "bench/page", "bench/pattern", "bench/size", "bench/transfer", "internal/config", "kvcache", "transport", "transport/nic", "transport/rails", "transport/topology"}, libraries: []string{xsys}},
	"bench/topo":                      {module: []string{"bench/page", "transport/topology"}},
	"bench/profile":                   {module: []string{"bench/calibration", "bench/client", "bench/serve", "engine", "engine/datasheet", "kvcache", "load", "modelconfig", "internal/config"}, libraries: []string{pflag}, tests: []string{"bench/nullserver", "bench/nullserver/nullservertest"}},
	"bench/kvlayout":                  {module: []string{"modelconfig"}, tests: []string{"kvcache"}},
	"bench/reference":                 {module: []string{"bench/figure", "internal/config"}},
	"bench/recovery":                  {module: []string{"internal/config", "transport", "transport/pacing"}},
	"bench/compare":                   {module: []string{"bench/figure", "bench/page", "bench/report", "bench/result", "internal/config"}},
	"bench/result":                    {module: []string{"bench/client", "bench/figure", "bench/machine", "bench/page", "internal/config"}, tests: []string{"bench/report"}},
	"bench/report":                    {module: []string{"bench/client", "bench/figure", "bench/machine", "bench/page", "internal/config"}, libraries: []string{"gonum.org/v1/plot"}},
	"bench/server":                    {module: []string{"bench/client"}},
	"bench/sglang": {
		module:    []string{"bench/bar", "bench/client", "bench/figure", "bench/machine", "bench/page", "bench/report", "bench/serve", "bench/simulation", "internal/clock", "internal/config", "engine", "kvcache", "load", "load/functions", "placement"},
		libraries: []string{pflag},
	},
	"bench/validation": {
		module: []string{"bench", "bench/bar", "bench/contention", "bench/figure", "bench/fit", "bench/machine", "bench/page", "bench/report", "bench/sglang", "internal/config", "engine"},
		tests:  []string{"engine/datasheet", "modelconfig", "bench/page/pagetest"}, libraries: []string{pflag, "gonum.org/v1/plot"},
	},
	"bench/serve":       {module: []string{"bench/bar", "internal/clock", "internal/config", "load", "load/records", "sim", "bench/client", "bench/figure", "bench/machine", "bench/page", "bench/ratesearch", "bench/report", "bench/server", "bench/scrape", "bench/simulation", "bench/steady", "internal/otlp", "tokenizer", "internal/version"}, libraries: []string{otel}, tests: []string{"bench/result"}},
	"bench/toolflags":   {},
	"bench/serving":     {module: []string{"load", "bench/client", "bench/figure", "bench/machine"}},
	"bench/scrape":      {module: []string{"bench/client", "bench/page"}, libraries: []string{"github.com/prometheus"}},
	"bench/steady":      {module: []string{"internal/config", "bench/client", "bench/figure", "bench/page"}},
	"bench/calibration": {module: []string{"bench/bar", "bench/client", "bench/figure", "bench/fit", "bench/machine", "bench/page", "bench/report", "bench/serve", "bench/server", "bench/simulation", "internal/clock", "internal/config", "engine", "kvcache", "load", "sim"}},
	"bench/fit":         {module: []string{"bench/figure", "internal/config", "engine"}},
	"bench/simulation": {
		module:    []string{"bench/bar", "internal/config", "load", "engine", "handoff", "kvcache", "placement", "sim", "tokenizer", "bench/client", "bench/figure", "bench/page", "bench/report"},
		libraries: []string{"gonum.org/v1/plot"},
	},
	"bench/transfer": { // no cluster: two transfer engines
		module:    []string{"bench/bar", "bench/figure", "bench/goodput", "bench/kvlayout", "bench/linerate", "bench/machine", "bench/page", "bench/pattern", "bench/recovery", "bench/reference", "bench/size", "kvcache", "transport", "transport/connection", "transport/rails", "transport/topology", "transport/transporttest", "internal/clock", "internal/config"},
		libraries: []string{"gonum.org/v1/plot"},
	},
	"bench/matrix": {module: []string{"bench/bar", "internal/config", "bench/page", "bench/result"}, libraries: []string{xsys, "go.yaml.in/yaml/v3"}}, // runs programs, knows none
	"bench/incast": {module: []string{"bench/figure", "transport", "transport/rails"}},
	"bench/nics":   {module: []string{"bench", "bench/scrape", "engine", "handoff", "bench/incast", "bench/machine", "bench/page", "bench/recovery", "bench/size", "bench/transfer", "internal/clock", "internal/config", "transport", "lab/nics", "lab/wire"}, tests: []string{"bench/client", "bench/figure"}}, // kvbench on the hosts of the NIC lab
	"bench/contention": {
		module:    []string{"bench/figure", "bench/machine", "bench/page", "bench/simulation", "internal/clock", "internal/config", "engine", "handoff", "kvcache", "kvtransfer", "load", "placement", "sim", "transport", "transport/pacing", "transport/rails"},
		libraries: []string{pflag, "gonum.org/v1/plot"},
	},
	"bench/engines": {module: []string{"bench/bar", "bench/figure", "bench/machine", "bench/page", "internal/config", "lab", "lab/nics", "lab/vllm"}, libraries: []string{pflag, "gonum.org/v1/plot"}}, // runs vLLM, knows no cluster
	"cmd/proxy":     {module: []string{"command", "command/commandtest", "daemon"}, libraries: []string{cobra}},
	"cmd/prefill":   {module: []string{"command", "command/commandtest", "daemon", "proto"}, libraries: []string{cobra}},
	"cmd/decode":    {module: []string{"command", "command/commandtest", "daemon", "proto"}, libraries: []string{cobra}},
	"cmd/kvbench": {
		module:    []string{"bench", "bench/check", "bench/compare", "bench/contention", "bench/engines", "bench/matrix", "bench/client", "bench/incast", "bench/nics", "bench/kvlayout", "bench/nullserver", "bench/page", "bench/recovery", "bench/reference", "bench/report", "bench/ratesearch", "bench/scrape", "bench/serve", "bench/server", "bench/steady", "internal/otlp", "tokenizer", "bench/serving", "bench/sglang", "bench/simulation", "bench/size", "bench/toolflags", "bench/topo", "bench/transfer", "bench/validation", "cluster", "command", "command/commandtest", "internal/config", "daemon", "engine", "engine/datasheet", "modelconfig", "bench/profile", "handoff", "load", "load/records", "node", "placement", "sim", "transport", "transport/pacing", "transport/rails", "transport/topology"},
		libraries: []string{cobra, pflag, "golang.org/x/term"},
	},
	"cmd/kvlab":           {module: []string{"command", "command/commandtest", "internal/config", "lab", "lab/nics", "lab/vllm", "lab/wire"}, libraries: []string{cobra, pflag, "golang.org/x/term"}},
	"cmd/libkvferry":      {module: []string{"foreign", "transport", "internal/version"}},
	"nixl":                {tests: []string{"lab/vllm"}}, // C++, and the tests that build and call it
	"command":             {module: []string{"internal/config", "internal/version"}, libraries: []string{cobra, pflag}},
	"command/commandtest": {module: []string{"command"}, libraries: []string{cobra, pflag}},
	"lab":                 {module: []string{"internal/config", "lab/wire"}, libraries: []string{xsys}}, // boots programs, knows none
	"lab/vllm":            {module: []string{"bench/bar", "lab"}},
	"lab/wire":            {module: []string{"internal/config"}, libraries: []string{xsys}},
	"lab/nics": {
		module:    []string{"internal/config", "lab", "lab/wire"},
		libraries: []string{xsys, "github.com/vishvananda/netlink", "github.com/vishvananda/netns"},
	},
}

// exceptions are single files that may import more than their layer.
var exceptions = map[string][]string{
	// Which engine a node has is chosen in one place; the rest knows it by its interfaces.
	"node/config.go": {"engine/batching", "engine/modelled"},
}
