package leases

import "time"

// MaxWaited bounds for how long somebody can say that it has waited.
const MaxWaited = 7 * 24 * time.Hour

// ticketFor is for how long somebody counts as waiting who does not ask again. maxTickets bounds how many do: each
// request looks at all of them.
const (
	ticketFor  = time.Second
	maxTickets = 512
)

// tickets are those who wait for slots and ask again and again, from several processes. What is free is kept for those of
// them who have waited longest: otherwise whoever releases a slot would have it again first. Only durations are
// compared, and only this process's clock counts.
type tickets map[opKey]ticket

type ticket struct {
	since time.Time // when the waiting began
	until time.Time // when it counts no more
	takes int       // slots that are wanted
}

// ahead is how many slots those want who have waited longer than the one who asks.
func (t tickets) ahead(r Request, now time.Time) (slots int) {
	since := now
	if r.Ticket != "" {
		since = now.Add(-r.Waited)
	}
	own := opKey{r.Holder, r.Ticket}
	if mine, ok := t[own]; ok && mine.since.Before(since) {
		since = mine.since
	}
	for k, other := range t {
		switch {
		case !now.Before(other.until):
			delete(t, k)
		case k != own && other.since.Before(since):
			slots += other.takes
		}
	}
	return slots
}

// take notes that somebody waits.
func (t tickets) take(r Request, takes int, now time.Time) {
	if r.Ticket == "" {
		return
	}
	k := opKey{r.Holder, r.Ticket}
	mine, ok := t[k]
	if !ok {
		if len(t) >= maxTickets {
			return // it waits without a ticket: those who have one go first
		}
		mine = ticket{since: now.Add(-r.Waited)}
	}
	mine.until, mine.takes = now.Add(ticketFor), takes
	t[k] = mine
}

func (t tickets) drop(holder, name string) { delete(t, opKey{holder, name}) }
