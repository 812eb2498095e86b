package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Workers serves programs that stay: each has slots, a presence that it prolongs by its beats, and
// a holder that has all of its handoffs. It reports on them by their leases, like every Holder.
type Workers interface {
	// Register creates the queue of an agent, and its profile if it has none. It returns the profile
	// that counts.
	Register(ctx context.Context, request Registration) (Registered, error)
	// Present prolongs the presence of a holder by its lease. The first call begins it, and has to
	// come before the first ClaimMany.
	Present(ctx context.Context, presence Presence) (Presented, error)
	// Leave ends the presence of a holder at once. Release its handoffs first.
	Leave(ctx context.Context, presence Presence) error
	// ClaimMany takes offers for a holder, the most urgent first, and waits for the first of them.
	// Without an offer the answer is empty, and no error.
	ClaimMany(ctx context.Context, request ClaimMany) (Claims, error)
}

// Profiles is the rule by which agents register themselves. An admin is not bound by it.
type Profiles string

const (
	// ProfilesNew (the default): an agent that has no profile may make one.
	ProfilesNew Profiles = "new"
	// ProfilesKeep refuses an agent that has none. A trusted program registers agents.
	ProfilesKeep Profiles = "keep"
	// ProfilesReplace: an agent may change its own, too.
	ProfilesReplace Profiles = "replace"
)

// Registration is the request to register an agent.
type Registration struct {
	// Profile is for an agent that has none; its ID is the agent.
	Profile protocol.Profile
	// Replace changes the profile that exists.
	Replace bool
	// Lease is how long the queue keeps an offer from others if a worker is silent about it, at most
	// broker.AckWait, which is the default.
	Lease time.Duration
}

// Registered is the answer to a registration.
type Registered struct {
	Profile protocol.Profile `json:"profile"`
	// LeaseMS is the lease that workers of this engine have by default, in milliseconds; 0 if there
	// is none.
	LeaseMS int64 `json:"lease_ms,omitempty"`
}

// Presence is a worker as others see it.
type Presence struct {
	Agent string `json:"agent"`
	// Key is the secret of the holder: 16 to 64 random characters of A-Z a-z 0-9 _ -. HolderID makes
	// the holder from it.
	Key string `json:"key"`
	// LeaseMS is how long the presence lasts after a call, in milliseconds: 1 s to a day.
	LeaseMS  int64 `json:"lease_ms"`
	Slots    int   `json:"slots,omitempty"`
	Busy     int   `json:"busy,omitempty"`     // slots in use
	Draining bool  `json:"draining,omitempty"` // it takes no more offers
	Program  bool  `json:"program,omitempty"`  // it runs a program for each handoff
	// Host, PID and StartedAt are for people.
	Host      string        `json:"host,omitempty"`
	PID       int           `json:"pid,omitempty"`
	StartedAt protocol.Time `json:"started_at,omitzero"`
}

// Presented is the answer to a presence.
type Presented struct {
	Holder string `json:"holder"`           // its id
	Paused bool   `json:"paused,omitempty"` // the agent gets no offers until it is resumed
}

// ClaimMany is the request for offers.
type ClaimMany struct {
	Agent string
	Key   string // of the holder, see Presence
	Lease time.Duration
	Most  int // offers, 1 to OffersMax
	// Wait is how long to wait for the first offer.
	Wait time.Duration
	// Accept accepts the offers at once. Without it each is to be acknowledged by its lease within
	// the handoff's acknowledge timeout.
	Accept bool
	// Pulled, if not nil, is called with the number of offers before they are claimed. A gateway's
	// client does not call it.
	Pulled func(n int)
	// Skipped is that of Claim.
	Skipped func(ticket string, refused bool, err error)
	// Go, if not nil, runs the claims, each in a goroutine. The stack of a new goroutine grows for a
	// while; a worker has some that have run others.
	Go func(claim func())
}

// Claims is the answer to ClaimMany. Fewer offers than were asked for do not mean that the queue is
// empty.
type Claims struct {
	Held   []Held `json:"held,omitempty"`
	Paused bool   `json:"paused,omitempty"` // the agent gets no offers until it is resumed
}

const (
	// OffersMax bounds the offers of one ClaimMany.
	OffersMax = 256
	// holderKeyMin is the shortest key of a holder: it must not be guessed.
	holderKeyMin = 16
	// remoteBytesMax bounds the packages of one answer of a gateway, beyond the first.
	remoteBytesMax = 4 << 20
	// unheardMax is how soon a worker behind a gateway must report on a new claim: it sends a
	// heartbeat every 10 s. Otherwise the answer with the claim was lost, and the claim is released.
	// A large package takes longer to arrive: unheardPerMiB more.
	unheardMax    = broker.AckWait / 2
	unheardPerMiB = 2 * time.Second
)

// holderSpace is the namespace of the holders of workers.
var holderSpace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/agenthandoff/handoff/holder"))

// HolderID returns the id of the holder of an agent with this key. It is made of both, so that no
// agent can take, or prolong the presence of, a holder of another's.
func HolderID(agent, key string) string {
	return uuid.NewSHA1(holderSpace, []byte(agent+"\x00holder\x00"+key)).String()
}

// holderOf returns the holder of a key.
func holderOf(agent, key string, leaseMS int64) (protocol.Holder, error) {
	if err := protocol.CheckID("key", key); err != nil {
		return protocol.Holder{}, err
	}
	switch {
	case len(key) < holderKeyMin:
		return protocol.Holder{}, invalid("key", "is %d characters long, must be %d to %d that cannot be guessed", len(key), holderKeyMin, protocol.IDBytesMax)
	case leaseMS < protocol.LeaseMinMS || leaseMS > protocol.LeaseMaxMS:
		return protocol.Holder{}, invalid("lease_ms", "is %d, must be %d to %d", leaseMS, protocol.LeaseMinMS, protocol.LeaseMaxMS)
	}
	return protocol.Holder{ID: HolderID(agent, key), Agent: agent, LeaseMS: leaseMS}, nil
}

// Register implements Workers. A person exists without a profile.
func (c *Session) Register(ctx context.Context, r Registration) (Registered, error) {
	wanted := r.Profile
	if err := c.mayWork("Register", wanted.ID); err != nil {
		return Registered{}, err
	}
	if err := protocol.CheckAgent("agent", wanted.ID); err != nil {
		return Registered{}, err
	}
	profile, err := c.s.b.Profile(ctx, wanted.ID)
	there, admin, rule := err == nil, c.caller.has(RoleAdmin), c.s.cfg.Profiles
	switch {
	case err != nil && !errors.Is(err, broker.ErrNotFound):
		return Registered{}, err
	case there && !r.Replace:
	case there && !admin && rule != ProfilesReplace:
		return Registered{}, forbidden("replace", "no profile is changed here; that of %s is changed inside", wanted.ID)
	case !there && wanted.ID == protocol.Human:
		profile = wanted
	case !there && !admin && rule == ProfilesKeep:
		return Registered{}, forbidden("profile", "%s is not registered, and no agent is registered here; register it inside", wanted.ID)
	default:
		wanted.RegisteredByWork = !there || profile.RegisteredByWork
		wanted.UpdatedAt = time.Now().UTC().Truncate(time.Microsecond)
		if err := wanted.Validate(); err != nil {
			return Registered{}, err
		}
		if err := c.s.b.PutProfile(ctx, wanted); err != nil {
			return Registered{}, err
		}
		profile = wanted
	}
	keep := r.Lease
	if keep == 0 {
		keep = broker.AckWait
	}
	if err := errors.Join(c.s.b.EnsureQueue(ctx, wanted.ID), c.s.b.KeepOffers(ctx, wanted.ID, keep)); err != nil {
		return Registered{}, err
	}
	return Registered{profile, c.s.cfg.LeaseMS}, nil
}

// registered returns the profile of an agent. An agent that has no profile is
// refused: a made-up name gets no queue.
func (c *Session) registered(ctx context.Context, agent string) (*protocol.Profile, error) {
	directory, err := c.s.b.Directory(ctx)
	if err != nil {
		return nil, err
	}
	profile, ok := directory.Agent(agent)
	if ok || c.caller.has(RoleAdmin) {
		return profile, nil
	}
	read, err := c.s.b.Profile(ctx, agent) // the snapshot may lag behind its registration
	if errors.Is(err, broker.ErrNotFound) {
		return nil, protocol.Errorf(protocol.CodeUnknownAgent, "agent", "%s is not registered; call Register first", agent)
	}
	return &read, err
}

// Present implements Workers.
func (c *Session) Present(ctx context.Context, p Presence) (Presented, error) {
	if err := c.mayWork("Present", p.Agent); err != nil {
		return Presented{}, err
	}
	h, err := holderOf(p.Agent, p.Key, p.LeaseMS)
	switch {
	case err != nil:
		return Presented{}, err
	case p.Slots < 0 || p.Slots > protocol.ConcurrencyMax:
		return Presented{}, invalid("slots", "is %d, must be 0 to %d", p.Slots, protocol.ConcurrencyMax)
	case p.Busy < 0 || p.Busy > protocol.ConcurrencyMax:
		return Presented{}, invalid("busy", "is %d, must be 0 to %d", p.Busy, protocol.ConcurrencyMax)
	case len(p.Host) > protocol.NameBytesMax:
		return Presented{}, protocol.Errorf(protocol.CodeTooLarge, "host", "%s", protocol.OverSize(len(p.Host), protocol.NameBytesMax))
	}
	profile, err := c.registered(ctx, p.Agent)
	if err != nil {
		return Presented{}, err
	}
	h.Slots, h.Busy, h.Draining, h.Program = p.Slots, p.Busy, p.Draining, p.Program
	h.Host, h.PID, h.StartedAt = p.Host, p.PID, p.StartedAt
	return Presented{h.ID, profile.Paused}, c.s.b.Beat(ctx, h)
}

// Leave implements Workers.
func (c *Session) Leave(ctx context.Context, p Presence) error {
	if err := c.mayWork("Leave", p.Agent); err != nil {
		return err
	}
	h, err := holderOf(p.Agent, p.Key, max(p.LeaseMS, protocol.LeaseMinMS))
	if err != nil {
		return err
	}
	c.s.claims.dropOf(h.ID)
	return c.s.b.RemoveHolder(ctx, h.ID)
}

// Reconnected receives, coalesced, after the connection to the engine came back.
func (c *Session) Reconnected(ctx context.Context) <-chan struct{} { return c.s.b.Reconnected(ctx) }

// ClaimMany implements Workers. If ctx ends, the wait ends, and unclaimed offers are released;
// claims that have begun are finished and returned.
func (c *Session) ClaimMany(ctx context.Context, r ClaimMany) (Claims, error) {
	if err := c.mayWork("ClaimMany", r.Agent); err != nil {
		return Claims{}, err
	}
	if r.Most < 1 || r.Most > OffersMax {
		return Claims{}, invalid("most", "is %d, must be 1 to %d", r.Most, OffersMax)
	}
	holder, err := holderOf(r.Agent, r.Key, r.Lease.Milliseconds())
	if err != nil {
		return Claims{}, err
	}
	if profile, err := c.registered(ctx, r.Agent); err != nil {
		return Claims{}, err
	} else if profile.Paused {
		return Claims{Paused: true}, nil
	}
	offers, err := c.pull(ctx, r.Agent, r.Most, r.Wait)
	switch {
	case errors.Is(err, ErrWaitEnded):
		return Claims{}, nil
	case err != nil || len(offers) == 0:
		return Claims{}, err
	}
	if r.Pulled != nil {
		r.Pulled(len(offers))
	}
	if paused := c.isPaused(ctx, holder); paused || ctx.Err() != nil {
		releaseOffers(offers)
		return Claims{Paused: paused}, ctx.Err()
	}
	return Claims{Held: c.claimAll(ctx, c.s.fitting(ctx, offers), holder, &r)}, nil
}

// isPaused reports whether offers that have just come are not to be claimed: their agent was paused,
// or their holder drains. A holder behind a gateway may have left.
func (c *Session) isPaused(ctx context.Context, holder protocol.Holder) bool {
	directory, err := c.s.b.Directory(ctx)
	if err != nil {
		return false
	}
	profile, _ := directory.Agent(holder.Agent)
	return profile.Paused || directory.Holders[holder.ID].Draining
}

// releaseOffers lets others have offers at once. An offer that cannot be released comes again.
func releaseOffers(offers []*broker.Offer) {
	for _, offer := range offers {
		_ = offer.Release()
	}
}

// fitting releases the offers whose packages do not fit one answer of a gateway.
func (s *Service) fitting(ctx context.Context, offers []*broker.Offer) []*broker.Offer {
	if !s.cfg.Remote {
		return offers
	}
	var size int64
	for i, offer := range offers {
		if size += offer.Size(); offer.Inline() {
			pkg, _ := offer.Package(ctx) // which asks nothing
			size += int64(len(pkg))
		}
		if i > 0 && size > remoteBytesMax {
			releaseOffers(offers[i:])
			return offers[:i]
		}
	}
	return offers
}

// claimAll claims offers at the same time, so that their appends share a message.
func (c *Session) claimAll(ctx context.Context, offers []*broker.Offer, holder protocol.Holder, r *ClaimMany) []Held {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), broker.AckWait)
	defer cancel()
	claims := make([]*broker.Claim, len(offers))
	run := r.Go
	if run == nil {
		run = func(claim func()) { go claim() }
	}
	var others sync.WaitGroup
	others.Add(len(offers) - 1)
	for i := 1; i < len(offers); i++ {
		run(func() {
			defer others.Done()
			claims[i] = claimFor(ctx, offers[i], holder, r)
		})
	}
	claims[0] = claimFor(ctx, offers[0], holder, r)
	others.Wait()
	held := make([]Held, 0, len(claims))
	for _, claim := range claims {
		if claim != nil {
			held = append(held, c.s.hold(ctx, claim))
		}
	}
	return held
}

// claimFor claims one offer; nil if that is not possible. An append without an answer is repeated:
// otherwise the handoff would wait, held, until its offer comes again.
func claimFor(ctx context.Context, offer *broker.Offer, holder protocol.Holder, r *ClaimMany) *broker.Claim {
	for {
		claim, err := claimOffer(ctx, offer, holder, Claim{Accept: r.Accept})
		switch {
		case err == nil:
			return claim
		case !errors.Is(err, broker.ErrUnreachable) || errors.Is(err, broker.ErrClosed):
		default:
			select {
			case <-ctx.Done():
			case <-time.After(pullMin):
				_ = offer.Extend() // if it fails, another worker may get the offer, too
				continue
			}
		}
		if !skip(ctx, offer, holder, err, r.Skipped) && r.Skipped != nil {
			r.Skipped(offer.Ticket, false, err)
		}
		return nil
	}
}

// awaitReport releases a claim of a worker behind a gateway that does not report on it in time. The
// timer ends with the first report.
func (s *Service) awaitReport(lease string, claim *broker.Claim) *time.Timer {
	within := unheardMax + time.Duration(len(claim.Package)>>20)*unheardPerMiB
	return time.AfterFunc(within, func() {
		if !s.claims.isUnheard(lease) {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), broker.AckWait)
		defer cancel()
		_ = claim.Release(ctx, "the answer with the claim did not arrive", nil) // otherwise its clocks end it
		s.claims.drop(lease)
	})
}

type registerRequest struct {
	Agent   string          `json:"agent"`
	Profile json.RawMessage `json:"profile,omitempty"`
	Replace bool            `json:"replace,omitempty"`
	LeaseMS int64           `json:"lease_ms,omitempty"`
}

func register(s *Session, ctx context.Context, r registerRequest) (Registered, error) {
	profile := protocol.Profile{ID: r.Agent}
	if len(r.Profile) > 0 {
		var err error
		if profile, err = protocol.DecodeProfile(r.Profile); err != nil {
			return Registered{}, err
		}
		if profile.ID != "" && profile.ID != r.Agent {
			return Registered{}, forbidden("profile.id", "is %s, and %s is to be registered", protocol.CutText(profile.ID, 64), protocol.CutText(r.Agent, 64))
		}
		profile.ID = r.Agent
	}
	lease, err := millis("lease_ms", r.LeaseMS, protocol.LeaseMaxMS)
	if err != nil {
		return Registered{}, err
	}
	return s.Register(ctx, Registration{profile, r.Replace, lease})
}

func leave(s *Session, ctx context.Context, p Presence) (struct{}, error) {
	return struct{}{}, s.Leave(ctx, p)
}

type claimManyRequest struct {
	Agent   string `json:"agent"`
	Key     string `json:"key"`
	LeaseMS int64  `json:"lease_ms"`
	Most    int    `json:"most"`
	WaitMS  int64  `json:"wait_ms,omitempty"`
	Accept  bool   `json:"accept,omitempty"`
}

func claimMany(s *Session, ctx context.Context, r claimManyRequest) (Claims, error) {
	wait, err1 := waitLimit(r.WaitMS)
	lease, err2 := millis("lease_ms", r.LeaseMS, protocol.LeaseMaxMS)
	if err := cmp.Or(err1, err2); err != nil {
		return Claims{}, err
	}
	return s.ClaimMany(ctx, ClaimMany{Agent: r.Agent, Key: r.Key, Lease: lease, Most: r.Most, Wait: wait, Accept: r.Accept})
}

func cutReason(s string) string { return protocol.CutText(s, protocol.ReasonBytesMax) }

// Register implements Workers.
func (c *remote) Register(ctx context.Context, r Registration) (Registered, error) {
	raw, err := protocol.Marshal(r.Profile)
	return unless(err, func() (Registered, error) {
		return askFor[Registered](ctx, c, "Register", 0, registerRequest{r.Profile.ID, raw, r.Replace, r.Lease.Milliseconds()})
	})
}

// Present implements Workers.
func (c *remote) Present(ctx context.Context, p Presence) (Presented, error) {
	p.Host = protocol.CutText(p.Host, protocol.NameBytesMax)
	return askFor[Presented](ctx, c, "Present", 0, p)
}

// Leave implements Workers.
func (c *remote) Leave(ctx context.Context, p Presence) error {
	_, err := askFor[struct{}](ctx, c, "Leave", 0, Presence{Agent: p.Agent, Key: p.Key})
	return err
}

// ClaimMany implements Workers. It waits for WaitMax at most.
func (c *remote) ClaimMany(ctx context.Context, r ClaimMany) (Claims, error) {
	wait := min(r.Wait, WaitMax)
	return askFor[Claims](ctx, c, "ClaimMany", wait+pullMin, claimManyRequest{r.Agent, r.Key, r.Lease.Milliseconds(), min(r.Most, OffersMax), wait.Milliseconds(), r.Accept})
}
