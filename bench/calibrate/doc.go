// Package calibrate fits a profile to a server that runs: it asks a short series of loads, each
// of which shows one or two of the profile's costs, and searches the costs with which the simulator
// gives the same times.
//
//	Point ──▶ load ──▶ server, live    ──▶ records ──▶ measures ─┐
//	                └▶ serve.Model, in virtual time ──▶ measures ─┴▶ Fit ──▶ profile, intervals
//
// A [Point] is a small load: prompts one after another, a batch that decodes, a prompt beside a
// decode. What is measured of it is a function of the clients' records, the same for a live server
// and for the simulator. So no formula of a cost stands here: what a step takes is known to package
// engine alone, and whatever the simulator models can be fitted.
//
// The times are nearly linear in the costs, so the fit is Gauss and Newton's, with costs that are
// not below 0. A cost that the times do not need is left out, and how large it may be is said. The
// intervals are those of a bootstrap with measures that are as far off as those measured are, which
// also contains what the model cannot fit. A [HeldBack] load, that nothing is fitted to, is set beside its prediction.
//
// Times are milliseconds, as in profiles.
package calibrate
