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

	verbHold      = "hold"
	verbProgress  = "progress"
	verbSpend     = "spend"
	verbDecide    = "decide"
	verbMoreTime  = "more-time"
	verbComplete  = "complete"
	verbFail      = "fail"
	verbRelease   = "release"
	verbRefuse    = "refuse"
	verbSuspend   = "suspend"
	verbEscalate  = "escalate"
	verbAnswer    = "answer"
	verbRollBack  = "hand-back"
	verbHandOff   = "hand-off"
	verbHandedOff = "handed-off"
	verbReturns   = "returns"

	verbLock   = "lock"
	verbUnlock = "unlock"
	verbVars   = "vars"

	verbSubmit  = "submit"
	verbStatus  = "status"
	verbResult  = "result"
	verbReturn  = "return"
	verbContext = "context"
	verbCancel  = "cancel"

	verbApprove = "approve"
	verbDeny    = "deny"
	verbWaiting = "waiting"

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

// claimRef names a claim of the agent's. It is good at every gateway; the one that has it
// cached need not read it first.
type claimRef struct {
	Lease string `json:"lease"`
	Fence uint64 `json:"fence,omitempty"`
}

func (r *claimRef) ref() *claimRef { return r }

// claimAnswer is what every request about a claim is answered with.
type claimAnswer struct {
	Lease string          `json:"lease,omitempty"` // of a new one
	State *protocol.State `json:"state,omitempty"` // absent where it is over

	Signal    *broker.Signal     `json:"signal,omitempty"`
	Suspended bool               `json:"suspended,omitempty"`
	Ticket    string             `json:"ticket,omitempty"`
	HandedOff []broker.HandedOff `json:"handed_off,omitempty"`
	Returns   []protocol.Return  `json:"returns,omitempty"`

	// Barred are the hand-offs that were refused with a result, and Status is what that counts as.
	Barred []barredHandOff       `json:"barred,omitempty"`
	Status protocol.ResultStatus `json:"status,omitempty"`

	Seq       uint64              `json:"seq,omitempty"`
	Waiting   bool                `json:"waiting,omitempty"`
	Workspace *protocol.Workspace `json:"workspace,omitempty"`
}

// barredHandOff is a hand-off that a limit or a rule has refused.
type barredHandOff struct {
	To string `json:"to,omitempty"` // in words
	protocol.Error
}

type progressRequest struct {
	claimRef
	Progress json.RawMessage `json:"progress"`
}

type spendRequest struct {
	claimRef
	Usage protocol.Usage `json:"usage"`
}

type lockRequest struct {
	claimRef
	Paths  []protocol.LockPath `json:"paths"`
	WaitMS int64               `json:"wait_ms"`
}

// varsRequest sets variables, or none to read the workspace.
type varsRequest struct {
	claimRef
	Values    map[string]json.RawMessage `json:"values,omitempty"`
	IfVersion *int                       `json:"if_version,omitempty"`
}

type moreTimeRequest struct {
	claimRef
	ExtendMS int64  `json:"extend_ms"`
	Reason   string `json:"reason"`
}

type completeRequest struct {
	claimRef
	Result json.RawMessage `json:"result"`
}

type wireChild struct {
	Nth     int             `json:"nth,omitempty"` // of equal ones
	Package json.RawMessage `json:"package"`
}

type failRequest struct {
	claimRef
	Code         string          `json:"code"`
	Message      string          `json:"message,omitempty"`
	Retryable    bool            `json:"retryable,omitempty"`
	RetryAfterMS int64           `json:"retry_after_ms,omitempty"`
	Usage        *protocol.Usage `json:"usage,omitempty"`
}

type releaseRequest struct {
	claimRef
	Reason string          `json:"reason,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
}

type refuseRequest struct {
	claimRef
	Ack json.RawMessage `json:"ack"`
}

type decideRequest struct {
	claimRef
	Decision protocol.WorkDecision `json:"decision"`
}

type suspendRequest struct {
	claimRef
	Children []int `json:"children"`
}

type escalateRequest struct {
	claimRef
	Rationale  string `json:"rationale"`
	Assessment string `json:"assessment,omitempty"`
}

// answerRequest answers by the lease of an escalation, or by the ticket of a handoff of
// the agent's own.
type answerRequest struct {
	claimRef
	Ticket string          `json:"ticket,omitempty"`
	Answer json.RawMessage `json:"answer"`
}

type rollBackRequest struct {
	claimRef
	Reason string          `json:"reason"`
	Result json.RawMessage `json:"result,omitempty"`
}

type childRequest struct {
	claimRef
	Child wireChild `json:"child"`
}

type submitRequest struct {
	Package json.RawMessage `json:"package"`
}

type ticketRequest struct {
	Ticket string `json:"ticket"`
	// Of status and result: chain is of the handoff that the chain of this one has come to.
	Of protocol.ReturnScope `json:"of,omitempty"`
	// Of status alone: answer when the handoff is closed, ended or accepted, or after so long.
	Until  api.Until `json:"until,omitempty"`
	WaitMS int64     `json:"wait_ms,omitempty"`
}

type cancelRequest struct {
	Ticket   string `json:"ticket"`
	Reason   string `json:"reason,omitempty"`
	Children bool   `json:"children,omitempty"`
}

// verdictRequest is what the agent says to a handoff that waits for its approval.
type verdictRequest struct {
	Ticket string `json:"ticket"`
	Agent  string `json:"agent,omitempty"` // that it was asked about
	Any    bool   `json:"any,omitempty"`
	Reason string `json:"reason,omitempty"`
}

type waitingAnswer struct {
	Handoffs []protocol.State `json:"handoffs"`
}

type ticketAnswer struct {
	Ticket  string            `json:"ticket"`
	State   protocol.State    `json:"state,omitzero"`
	Ready   bool              `json:"ready,omitempty"` // what was waited for
	Result  *protocol.Result  `json:"result,omitempty"`
	Return  *protocol.Return  `json:"return,omitempty"`
	Context *protocol.Context `json:"context,omitempty"`
}

type empty struct{}
