package natsgateway

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// name is the NATS service of all gateways, and their queue group.
const name = "handoff-gateway"

// serviceVersion is the version of what may be asked (SemVer), for the tools that
// list services.
const serviceVersion = "1.0.0"

// prefix is that of all subjects. The number changes where a gateway of the one kind
// cannot answer a client of the other.
const prefix = "handoff.v1."

// Subject is where an agent's requests go to any gateway.
func Subject(agent, verb string) string { return prefix + agent + "." + verb }

// SubjectAt is where they go to one gateway.
func SubjectAt(agent, gateway, verb string) string {
	return prefix + agent + ".at." + gateway + "." + verb
}

// Subjects covers all that an agent may publish to.
func Subjects(agent string) string { return prefix + agent + ".>" }

// InboxPrefix is what the subjects of an agent's answers begin with: all that it
// need be able to subscribe to.
func InboxPrefix(agent string) string { return "_INBOX_" + agent }

// parseSubject returns the agent and the verb of a request. ok is false for any other
// subject.
func parseSubject(subject string) (agent, verb string, ok bool) {
	rest, ok := strings.CutPrefix(subject, prefix)
	tokens := strings.Split(rest, ".")
	switch {
	case !ok || protocol.CheckID("agent", tokens[0]) != nil:
		return "", "", false
	case len(tokens) == 2:
		return tokens[0], tokens[1], true
	case len(tokens) == 4 && tokens[1] == "at":
		return tokens[0], tokens[3], true
	}
	return "", "", false
}

// mayReply reports whether an answer may go to a subject: an inbox of this agent, or
// what servers put in its place between two accounts (_R_) and between two clusters
// (_GR_), which no client may name itself. Anywhere else an answer could be taken for
// something that we say by ourselves.
func mayReply(agent, reply string) bool {
	for _, inbox := range [...]string{"_INBOX.", "_R_.", "_GR_.", InboxPrefix(agent) + "."} {
		if rest, ok := strings.CutPrefix(reply, inbox); ok && rest != "" {
			return true
		}
	}
	return false
}

// The headers of requests and answers.
const (
	// headerRequest is 1 in every request and in no answer: a request that names a subject
	// of requests as its reply has the gateway ask for nothing.
	headerRequest = "Handoff-Request"
	// headerGateway is the id of the gateway, in every answer.
	headerGateway = "Handoff-Gateway"
	// headerBody is, in a request, the body that was sent before in chunks.
	headerBody = "Handoff-Body"
	// headerMore is, in an answer, whose rest is to be fetched in chunks.
	headerMore = "Handoff-More"
	// headerTotal is how many bytes the whole is, headerOffset where a chunk begins.
	headerTotal  = "Handoff-Total"
	headerOffset = "Handoff-Offset"
	// headerAgain is, in a refusal with CodeBusy, after how many milliseconds it is
	// worth asking again.
	headerAgain = "Handoff-Retry-After-Ms"
)

// The verbs.
const (
	verbRegister = "register"
	verbProfile  = "profile"
	verbBeat     = "beat"
	verbLeave    = "leave"

	verbPull         = "pull"
	verbPackage      = "package"
	verbExtend       = "extend"
	verbReleaseOffer = "give-back"
	verbAcknowledge  = "acknowledge"

	verbPut  = "put"  // a chunk of a request
	verbRead = "read" // a chunk of an answer
)

// Limits of what goes through a gateway. Those of what it keeps are in Config.
const (
	// ChunkBytesMax bounds the body of one message. What is larger goes in chunks; a
	// server whose messages hold less takes smaller ones.
	ChunkBytesMax = 512 << 10
	// CallBytesMax bounds a request, or an answer, as a whole: a package or result
	// of 64 MiB, and 8 MiB for what goes with it.
	CallBytesMax = protocol.PackageBytesMax + 8<<20
	// WaitMax is how long one request may wait for something to happen.
	WaitMax = api.WaitMax
	// offersMax is how many offers one pull may take.
	offersMax = 256
	// answerTimeMax is how long an answer may take, beside what it waits.
	answerTimeMax = 30 * time.Second
	// chunksExpireAfter is how long chunks stay with a gateway after the last of them came, or went:
	// longer than a request takes that consists of them.
	chunksExpireAfter = time.Minute
	// holderKeyMin is the shortest key of a holder: it must not be guessed.
	holderKeyMin = 16
)

// holderSpace is the namespace of holders that serve through a gateway.
var holderSpace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/agenthandoff/handoff/holder"))

// HolderID is the holder of an agent with this key. It is made of both, so that
// no agent can take, or prolong the presence of, a holder of another's.
func HolderID(agent, key string) string {
	return uuid.NewSHA1(holderSpace, []byte(agent+"\x00holder\x00"+key)).String()
}

// Requests and answers. Fields that are free data are read by protocol's decoders.

type registerRequest struct {
	Profile json.RawMessage `json:"profile,omitempty"` // absent: the agent's name and nothing else
	Replace bool            `json:"replace,omitempty"` // what is there
}

type profileAnswer struct {
	Profile protocol.Profile `json:"profile"`
	LeaseMS int64            `json:"lease_ms,omitempty"` // that workers on this engine have by default
}

type presenceRequest struct {
	Holder    string        `json:"holder"` // its key
	LeaseMS   int64         `json:"lease_ms,omitempty"`
	Slots     int           `json:"slots,omitempty"`
	Busy      int           `json:"busy,omitempty"`
	Draining  bool          `json:"draining,omitempty"`
	Program   bool          `json:"program,omitempty"`
	Polling   bool          `json:"polling,omitempty"`
	Host      string        `json:"host,omitempty"`
	PID       int           `json:"pid,omitempty"`
	StartedAt protocol.Time `json:"started_at,omitzero"`
}

type presenceAnswer struct {
	Holder string `json:"holder"` // its id
	Paused bool   `json:"paused,omitempty"`
}

type pullRequest struct {
	Most   int   `json:"most"`
	WaitMS int64 `json:"wait_ms,omitempty"`
}

type pullAnswer struct {
	Offers []wireOffer `json:"offers,omitempty"`
	Paused bool        `json:"paused,omitempty"`
}

// wireOffer is an offer. With Whole all of it is there; else the verb package has
// the rest.
type wireOffer struct {
	Token  string         `json:"token"`
	Ticket string         `json:"ticket"`
	Offer  uint64         `json:"offer"`
	State  protocol.State `json:"state"`
	Whole  bool           `json:"whole,omitempty"`
	content
}

type content struct {
	Package json.RawMessage       `json:"package,omitempty"`
	Answers []protocol.Answer     `json:"answers,omitempty"`
	Trail   []protocol.TrailEntry `json:"trail,omitempty"`
}

type offerRequest struct {
	Token string `json:"token"`
}

type acknowledgeRequest struct {
	Token   string          `json:"token"`
	Ticket  string          `json:"ticket"`
	Offer   uint64          `json:"offer"`
	Holder  string          `json:"holder"` // its key
	LeaseMS int64           `json:"lease_ms"`
	Ack     json.RawMessage `json:"ack"`
	Start   bool            `json:"start,omitempty"`
}

// claimAnswer is a new claim. Its worker reports by operations.
type claimAnswer struct {
	Lease    string             `json:"lease,omitempty"`
	State    *protocol.State    `json:"state,omitempty"`    // absent if the offer was refused
	Returns  []protocol.Return  `json:"returns,omitempty"`  // ends of children that came with the claim
	Children []broker.HandedOff `json:"children,omitempty"` // that were handed off before
}

type empty struct{}
