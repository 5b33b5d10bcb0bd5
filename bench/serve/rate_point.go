package serve

import "math"

// A RatePoint sums up the runs of one value.
type RatePoint struct {
	Value    float64 `json:"value"`
	Runs     int     `json:"runs"`
	Requests int     `json:"requests"` // of runs that are not void
	Attained int     `json:"attained"` // of these, within the SLO
	VoidRuns int     `json:"void_runs,omitempty"`
	Why      string  `json:"void,omitempty"` // the last void run's reason
}

// void reports whether no run of it told anything.
func (p *RatePoint) void() bool { return p.VoidRuns == p.Runs }

// Share is the part of the requests that kept the SLO.
func (p *RatePoint) Share() float64 {
	if p.Requests == 0 {
		return 0
	}
	return float64(p.Attained) / float64(p.Requests)
}

// kept reports whether the share is what is wanted.
func (p *RatePoint) kept(attainment float64) bool {
	return float64(p.Attained) >= attainment*float64(p.Requests)*(1-1e-12) // 0.55 x 100 is more than 55
}

// sure reports whether more runs are not likely to change kept.
func (p *RatePoint) sure(attainment float64) bool {
	low, high := wilson(p.Attained, p.Requests)
	return low >= attainment || high < attainment
}

// z is the standard normal's 97.5th percentile: 2.5 % of the draws are beyond it on each
// side.
const z = 1.959963984540054

// wilson returns the 95 % score interval of a share of which n draws had k (E. B. Wilson,
// Probable Inference, 1927):
//
//	(p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n),  p = k/n
//
// It is from 0 to 1 if there were none.
func wilson(k, n int) (low, high float64) {
	if n < 1 {
		return 0, 1
	}
	m, p := float64(n), float64(k)/float64(n)
	middle := p + z*z/(2*m)
	half := z * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	low, high = (middle-half)/(1+z*z/m), (middle+half)/(1+z*z/m)
	switch k { // exact there, but for rounding
	case 0:
		low = 0
	case n:
		high = 1
	}
	return low, high
}

// RequestsFor returns how many requests a value needs, all of which keep the SLO, to be sure that it attains it: 381
// for 0.99. It returns 0 for an attainment of 1, which no number of requests makes sure.
func RequestsFor(attainment float64) int {
	if attainment >= 1 {
		return 0
	}
	return int(math.Ceil(z * z * attainment / (1 - attainment)))
}
