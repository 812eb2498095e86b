package natsgateway

import (
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// name is the NATS service of all gateways, and their queue group.
const name = "handoff-gateway"

// serviceVersion is the version of the operations (SemVer), for the tools that
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

// InboxPrefix begins the subjects of an agent's answers, the only ones that it must subscribe to.
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
// the subject in its place between two accounts (_R_) and between two clusters (_GR_), which no
// client may name itself. An answer elsewhere could be taken for a message of our own.
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

// The verbs for the chunks of large bodies. The others are the names of operations.
const (
	verbPut  = "put"  // a chunk of a request
	verbRead = "read" // a chunk of an answer
)

// Limits of requests and answers. Those of a gateway's memory are in Config.
const (
	// ChunkBytesMax bounds the body of one message. A larger one goes in chunks, which are
	// smaller where the server's messages are.
	ChunkBytesMax = 512 << 10
	// CallBytesMax bounds a request, or an answer, as a whole: a package or result
	// of 64 MiB, and 8 MiB for the rest.
	CallBytesMax = protocol.PackageBytesMax + 8<<20
	// WaitMax is how long one request may wait for something to happen.
	WaitMax = api.WaitMax
	// answerTimeMax is how long an answer may take, besides the wait.
	answerTimeMax = 30 * time.Second
	// chunksExpireAfter is how long chunks stay with a gateway after the last of them came, or went:
	// longer than a request takes that consists of them.
	chunksExpireAfter = time.Minute
)

// ofAgents are the groups of operations that agents may ask for. The others concern other agents,
// or have answers without bounds.
var ofAgents = []string{"Source", "Holder", "Approver", "Sharer", "Decider", "Workers"}

// operationOf returns the operation that a verb names, or nil.
func operationOf(verb string) *api.Operation {
	if op := api.OperationOf(verb); op != nil && slices.Contains(ofAgents, op.Group) {
		return op
	}
	return nil
}

// Verbs returns all that an agent may ask a gateway for.
func Verbs() []string {
	verbs := []string{verbPut, verbRead}
	for _, op := range api.Operations {
		if operationOf(op.Name) != nil {
			verbs = append(verbs, op.Name)
		}
	}
	return verbs
}
