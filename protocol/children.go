package protocol

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// What a handoff hands off from within its work is found again by its key: the one that the package
// has, or else the digest of the package and how many equal ones the attempt asked for before it.

// childCell is how many characters of the hash of a key the state keeps for each child.
const childCell = 8

// noCell fills the place of a child without a key: one that goes with a result.
const noCell = "........"

// ChildKey identifies a package that was handed off under a handoff.
type ChildKey struct {
	Given   string // the key of the package; empty is that its digest counts
	Written string // the digest of the package as it was written
	Nth     int    // of the equal ones that the attempt asks for, from 1; 0 is the next
}

// ChildKeyOf returns the key of a package as it was written. That is before it takes over anything from
// its parent. Times, the trace and the resolved deadline do not count.
func ChildKeyOf(p Package) (ChildKey, error) {
	key := ChildKey{Given: p.Key}
	p.Key, p.Source, p.Parent, p.CreatedAt, p.Constraints.Deadline = "", "", "", Time{}, Time{}
	p.TraceParent, p.TraceState, p.Context.TraceID = "", "", ""
	body, err := EncodePackage(p)
	if err != nil {
		return key, err
	}
	sum := sha256.Sum256(body)
	key.Written = hex.EncodeToString(sum[:16])
	return key, nil
}

// Cell returns the short form of a key, which the state of the parent keeps. repeat counts those that
// have the key.
func (k ChildKey) Cell(repeat int) string {
	name := "written\x00" + k.Written
	if k.Given != "" {
		name = "key\x00" + k.Given
	}
	sum := sha256.Sum256([]byte(name + "\x00" + strconv.Itoa(repeat)))
	return base64.RawURLEncoding.EncodeToString(sum[:childCell*6/8])
}

// ChildTicket is the ticket of a child. It is of its parent and of the short form of its key.
func ChildTicket(parent, cell string) string {
	return uuid.NewSHA1(ticketSpace, []byte(parent+"\x00child\x00"+cell)).String()
}

// Cell returns the short form of the key of a child; empty is that it has none.
func (c *Children) Cell(n int) string {
	if c == nil || n < 0 || (n+1)*childCell > len(c.Keys) {
		return ""
	}
	if cell := c.Keys[n*childCell : (n+1)*childCell]; cell != noCell {
		return cell
	}
	return ""
}

// ByCell returns the ordinal of the child with a key in its short form.
func (c *Children) ByCell(cell string) (n int, ok bool) {
	if c == nil {
		return 0, false
	}
	for n := range len(c.Keys) / childCell {
		if c.Keys[n*childCell:(n+1)*childCell] == cell {
			return n, true
		}
	}
	return 0, false
}

// SetCell records the short form of the key of a child.
func (c *Children) SetCell(n int, cell string) {
	if missing := n - len(c.Keys)/childCell; missing > 0 {
		c.Keys += strings.Repeat(noCell, missing)
	}
	c.Keys = c.Keys[:n*childCell] + cell + c.Keys[min((n+1)*childCell, len(c.Keys)):]
}

// ChildTicket is the ticket of a child, by its ordinal.
func (s *State) ChildTicket(n int) string {
	if cell := s.Children.Cell(n); cell != "" {
		return ChildTicket(s.Ticket, cell)
	}
	return ChildTicketN(s.Ticket, n)
}
