package cli

import "slices"

// noticedMax is how many handoffs are remembered that need a person.
const noticedMax = 100

// notice remembers a handoff that needs a person: the last of them. The caller has the lock.
func (r *topRates) notice(ticket string) {
	if slices.Contains(r.noticed, ticket) {
		return
	}
	if len(r.noticed) == noticedMax {
		r.noticed = r.noticed[1:]
	}
	r.noticed = append(r.noticed, ticket)
}

// noticedTickets are the handoffs that got stuck, or too deep, while top was watching.
func (r *topRates) noticedTickets() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.noticed)
}
