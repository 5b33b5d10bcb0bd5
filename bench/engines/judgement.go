package engines

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kvferry/bench/document"
)

// own says that a trial is kvferry's to stand. Its connectors have to stand every fault; its plugin all but those of
// which vLLM's NixlConnector is to be shown: it does not check bytes, and a transfer has no deadline but the backend's,
// which the wrapper's stall is in front of.
func (tr *Trial) own() bool {
	theirs := slices.Contains([]string{"flip", "tear", "replay", "nixl-flip", "stall"}, tr.Fault)
	return strings.HasPrefix(tr.Setting, "kvferry-") || tr.Setting == "nixl-kvferry" && !theirs
}

// fault says why a trial is not as it has to be: "" if it is.
func (tr *Trial) fault() string {
	control := tr.Fault == "flip-unchecked" // it shows that a flipped bit is seen at all
	switch {
	case tr.Error != "":
		return tr.Error
	case !tr.Fired:
		return "the fault did not come, or not at its moment"
	case control && tr.Outcome != Wrong:
		return "a flipped bit changed no token"
	case tr.Fault == "flip" && tr.Outcome == Right:
		return "a flipped bit was not found, and changed no token"
	case !control && slices.Contains([]Outcome{Hang, Crashed, Wrong}, tr.Outcome):
		return strings.TrimSpace(string(tr.Outcome) + " " + tr.Text)
	case tr.Next != Right && tr.Next != Recomputed:
		return "the next prompt: " + string(tr.Next)
	case tr.Lost > 0:
		return fmt.Sprintf("P has lost %d blocks", tr.Lost)
	}
	return ""
}

// said is a trial in a few words.
func (tr *Trial) said() string {
	if tr.Error != "" {
		return "could not be tried"
	}
	text := fmt.Sprintf("%s, %.1f s", tr.Outcome, tr.Seconds)
	if !tr.Fired {
		text += ", NOT FIRED"
	}
	if tr.Next != Right && tr.Next != Recomputed {
		text += ", NEXT " + strings.ToUpper(string(tr.Next))
	}
	if tr.Lost > 0 {
		text += fmt.Sprintf(", %d BLOCKS LOST", tr.Lost)
	}
	return text
}

// outcomes are what became of prompts, connector by fault, and all that there is of each.
func (r *Result) outcomes() []document.Table {
	var settings, faults []string
	cells := map[[2]string]string{}
	details := document.Table{
		Title: "each prompt that a fault befell: whether it came, what became of the prompt and when, D's own tokens of it, the next prompt, P's blocks that stay held",
		Left:  3, Head: []string{"setting", "rail", "fault", "came", "outcome", "s", "D computed", "next", "blocks lost", ""},
	}
	for i := range r.Trials {
		tr := &r.Trials[i]
		if !slices.Contains(settings, tr.Setting) {
			settings = append(settings, tr.Setting)
		}
		if !slices.Contains(faults, tr.Fault) {
			faults = append(faults, tr.Fault)
		}
		cells[[2]string{tr.Fault, tr.Setting}] = tr.said()
		lost, mark := strconv.Itoa(tr.Lost), "ok"
		if tr.Lost < 0 {
			lost = ""
		}
		if tr.fault() != "" {
			mark = map[bool]string{true: "FAILED", false: "bad"}[tr.own()]
		}
		details.Add(
			tr.Setting, tr.Rail, tr.Fault, map[bool]string{true: "yes", false: "NO"}[tr.Fired], string(tr.Outcome), fmt.Sprintf("%.2f", tr.Seconds),
			strconv.Itoa(tr.Computed), string(tr.Next), lost, mark,
		)
	}
	matrix := document.Table{Title: "what became of a prompt that a fault befell", Left: 1 + len(settings), Head: append([]string{"fault"}, settings...)}
	for _, f := range faults {
		line := []string{f}
		for _, s := range settings {
			line = append(line, cells[[2]string{f, s}])
		}
		matrix.Add(line...)
	}
	return []document.Table{matrix, details}
}

// faultNotes are why trials are not as they have to be, and what the faults are.
func (r *Result) faultNotes() (notes document.Notes) {
	for i := range r.Trials {
		if why := r.Trials[i].fault(); why != "" {
			notes.Addf(document.Fault, "%s %s, %s: %s", r.Trials[i].Setting, r.Trials[i].Rail, r.Trials[i].Fault, why)
		}
	}
	for _, f := range Faults {
		if slices.ContainsFunc(r.Trials, func(tr Trial) bool { return tr.Fault == f.Name }) {
			notes.Add(document.Info, f.Name+": "+f.What)
		}
	}
	return notes
}
