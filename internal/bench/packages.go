package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// sizeMin is the smallest size of a generated package: that of its required fields.
const sizeMin = 512

// fillerText fills the summary of generated packages.
const fillerText = "the login form keeps the session open after a password change so that a second tab still acts as the user who has left " +
	"please review the handler and its tests and say whether a token that was issued before the change is refused afterwards "

// generatePackage returns a package of a size as stored, give or take the digits of an instant
// and of an agent's number.
func generatePackage(size int, source, agent string) (protocol.Package, error) {
	pkg := protocol.Package{
		Source: source, Target: protocol.Target{Agent: agent}, Reason: "the change is ready for a review",
		Task:    protocol.Task{ID: instantID(0), Type: "review", Description: "review the change and say what is wrong with it"},
		Context: protocol.Context{WorkflowID: "bench"},
	}
	normalize(&pkg, time.Date(2026, 1, 2, 3, 4, 5, 123_456_000, time.UTC)) // an instant of the greatest length
	body, err := protocol.EncodePackage(pkg)
	if err != nil {
		return pkg, err
	}
	const field = `,"summary":""` // the field around the filler
	missing := size - len(body) - len(field)
	if missing < 1 {
		return pkg, protocol.Errorf(protocol.CodeInvalid, "size", "is %d, and a package has at least %d bytes", size, len(body)+len(field)+1)
	}
	pkg.Context.Summary = strings.Repeat(fillerText, missing/len(fillerText)+1)[:missing]
	if strings.HasSuffix(pkg.Context.Summary, " ") {
		pkg.Context.Summary = pkg.Context.Summary[:missing-1] + "."
	}
	return pkg, nil
}

// normalize fills in the fields that every package gets at its submission, so that its size is
// known.
func normalize(pkg *protocol.Package, now time.Time) {
	pkg.CreatedAt = now.UTC().Truncate(time.Microsecond)
	pkg.Normalize(now)
}

// ReadPackages reads every *.json file of a directory as a package, and every
// line of every *.jsonl file. It removes the fields that lead beyond submit and complete: key,
// parent, return, output schema, required capabilities, deadline, timeouts and policy. Groups
// are refused. An error names the file.
func ReadPackages(dir string) ([]protocol.Package, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []protocol.Package
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		bodies, err := readBodies(path)
		if err != nil {
			return nil, err
		}
		for i, body := range bodies {
			pkg, err := readPackage(body)
			if err != nil {
				where := path
				if len(bodies) > 1 {
					where = fmt.Sprintf("%s, line %d", path, i+1)
				}
				return nil, fmt.Errorf("%s: %w", where, err)
			}
			all = append(all, pkg)
		}
	}
	if len(all) == 0 {
		return nil, protocol.Errorf(protocol.CodeInvalid, "packages", "%s has no package in it: no file *.json or *.jsonl", dir)
	}
	return all, nil
}

// readBodies reads the packages of a file; none of a file with another extension.
func readBodies(path string) ([][]byte, error) {
	ext := filepath.Ext(path)
	if !slices.Contains([]string{".json", ".jsonl"}, ext) {
		return nil, nil
	}
	body, err := os.ReadFile(path)
	if err != nil || ext == ".json" {
		return [][]byte{body}, err
	}
	var bodies [][]byte
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, protocol.PackageBytesMax+1)
	for lines.Scan() {
		if line := bytes.TrimSpace(lines.Bytes()); len(line) > 0 {
			bodies = append(bodies, bytes.Clone(line))
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return bodies, nil
}

func readPackage(body []byte) (protocol.Package, error) {
	pkg, err := protocol.DecodePackage(body)
	if err != nil {
		return pkg, err
	}
	if pkg.GroupSize() > 0 {
		return pkg, errors.New("target: a group is many handoffs; give its members each a file")
	}
	pkg.Source, pkg.Target = "bench", protocol.Target{Agent: "bench-1"}
	pkg.Type, pkg.Key, pkg.Parent, pkg.Origin, pkg.Returned, pkg.Return = protocol.Sequential, "", "", "", nil, nil
	pkg.RequiredCapabilities, pkg.Policy = nil, protocol.PolicyOverrides{}
	pkg.Expectations.OutputSchema, pkg.Expectations.TimeoutMS, pkg.Constraints.Deadline = nil, 0, time.Time{}
	pkg.Task.ID = instantID(0)
	now := time.Now()
	normalize(&pkg, now)
	return pkg, pkg.Validate(now)
}
