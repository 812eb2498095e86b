package protocol

import (
	"strconv"
	"strings"

	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
	"github.com/google/uuid"
)

// IDBytesMax is the longest an agent id, or anything else that becomes a
// subject token, may be.
const IDBytesMax = 64

// ticketBytes is the length of a ticket.
const ticketBytes = 36

// ticketSpace is the namespace of tickets that are derived from a key.
var ticketSpace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/agenthandoff/handoff/ticket"))

// NewTicket makes a random ticket (UUIDv4). What is promised or repeated
// has a derived one (UUIDv5), so that a crash in between is harmless.
func NewTicket() string { return uuid.NewString() }

// TicketForKey is the ticket of an idempotency key: the UUIDv5 of source and key.
func TicketForKey(source, key string) string {
	return uuid.NewSHA1(ticketSpace, []byte(source+"\x00"+key)).String()
}

// Every name below has two NULs, that of a key one: an agent may be called like a
// ticket, and must not be able to take the ticket that is derived from it.

// ChildTicketN is the ticket of a parent's child with this ordinal, from 0.
func ChildTicketN(parent string, n int) string {
	return uuid.NewSHA1(ticketSpace, []byte(parent+"\x00ordinal\x00"+strconv.Itoa(n))).String()
}

// CallTicket is the ticket of the call for bids to one of the agents that are asked, from 0.
func CallTicket(ticket string, n int) string {
	return uuid.NewSHA1(ticketSpace, []byte(ticket+"\x00call\x00"+strconv.Itoa(n))).String()
}

// ReturnTicket is the ticket of the handoff that delivers a handoff's return.
func ReturnTicket(ticket string) string {
	return uuid.NewSHA1(ticketSpace, []byte(ticket+"\x00return\x00")).String()
}

// RedriveTicket is the ticket under which a closed handoff is submitted again.
func RedriveTicket(origin string) string {
	return uuid.NewSHA1(ticketSpace, []byte(origin+"\x00redrive\x00")).String()
}

// ParseTicket reads a ticket: any RFC 9562 UUID in its hyphenated form.
// It returns the canonical, lower-case form.
func ParseTicket(s string) (string, error) {
	if len(s) != ticketBytes {
		return "", Errorf(CodeInvalid, "ticket", "%q is not a ticket; a ticket is the UUID that a submission returns", wirejson.Clip(s))
	}
	id, err := uuid.Parse(s)
	if err != nil {
		return "", Errorf(CodeInvalid, "ticket", "%q is not a ticket; a ticket is the UUID that a submission returns", wirejson.Clip(s))
	}
	text, _ := id.MarshalText() // it does not fail, and stays on the stack
	if string(text) == s {
		return s, nil
	}
	return string(text), nil
}

// CheckID tells whether s may stand for an agent or another subject token:
// 1 to 64 of A-Z a-z 0-9 _ and -.
func CheckID(field, s string) error {
	if s == "" {
		return Errorf(CodeMissing, field, "is missing or empty")
	}
	if len(s) > IDBytesMax {
		return Errorf(CodeInvalid, field, "is %d bytes long, at most %d are allowed", len(s), IDBytesMax)
	}
	if i := strings.IndexFunc(s, notIDRune); i >= 0 {
		return Errorf(CodeInvalid, field, "%s has a character at byte %d that is not one of A-Z a-z 0-9 _ -", strconv.QuoteToASCII(s), i)
	}
	return nil
}

func notIDRune(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
}
