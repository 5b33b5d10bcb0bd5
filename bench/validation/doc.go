// Package validation is kvferry reproduce validate: how far figures that are computed in virtual time are
// from published ones, for every profile that ships and every published table.
//
//	checks ──▶ figures of a profile, beside what was published ──▶ Set: median, 90th percentile, worst
//
// A set is in sample where the profile was fitted to what it stands beside, and held back where it
// was not: fitted to another run of the same server, or to nothing, being made of a model's
// config.json and a GPU's datasheet. Those profiles are in folder profiles; the fits can be made
// again ([Config].FitTo).
//
// docs/validation.md is table.md of this command. A set that is worse than its limit is an error.
package validation
