//go:build proof

package access

import "maps"

// knownHoles are what is possible: for each role the attacks that succeed, and why.
// security.md says the same in words. Where this no longer holds the test says so.
var knownHoles = map[string]map[string]string{
	"reviewer": {},
	"reader":   {"read its ledger": "it is there to read", "read its workspace": "likewise"},
	"trusted-submitter": {
		"read its ledger":                       "it waits for ends",
		"write its ledger":                      "who submits appends, and one ledger is all there is",
		"write its ledger in a batch":           "likewise",
		"a trace into the ledger":               "likewise: it goes where one may write",
		"put an offer into its queue":           "who submits offers",
		"write its workspace":                   "who submits writes the workspace that a handoff is in",
		"read its workspace":                    "likewise",
		"announce an append":                    "who appends announces, and a supervisor reads the head",
		"roll the timers up by an announcement": "likewise: the server cannot tell it from that",
	},
	"builder": joined(inside, map[string]string{
		"read its ledger":                       "it reads heads",
		"write its ledger":                      "it appends what it did",
		"write its ledger in a batch":           "likewise",
		"a trace into the ledger":               "likewise",
		"put an offer into its queue":           "it offers what it hands off",
		"announce an append":                    "it announces its appends",
		"roll the timers up by an announcement": "likewise, and the server cannot tell it from that",
		"list its queue":                        "it watches that the stream is still the same",
		"forge a holder of its":                 "it beats",
		"roll the holders up":                   "it beats, and the server cannot tell a beat from that",
		"roll the bodies up":                    "it puts large results, and likewise",
		"write its workspace":                   "it locks, sets variables and hands off in the workspace of its handoff",
		"read its workspace":                    "likewise",
	}),
	"gateway": joined(inside, map[string]string{
		"take its offers":                       "it does what workers do, for all agents",
		"look at its consumer":                  "likewise",
		"read its offer by sequence":            "likewise",
		"list its queue":                        "likewise",
		"say +ACK for its delivery":             "likewise; the other words come too late",
		"put an offer into its queue":           "likewise",
		"announce an append":                    "likewise",
		"roll the timers up by an announcement": "likewise",
		"read its ledger":                       "likewise",
		"write its ledger":                      "likewise",
		"write its ledger in a batch":           "likewise",
		"a trace into the ledger":               "likewise",
		"forge a holder of its":                 "likewise",
		"roll the holders up":                   "likewise",
		"roll the bodies up":                    "likewise",
		"write its workspace":                   "likewise",
		"read its workspace":                    "likewise",
		"change its profile":                    "it registers agents",
		"roll the agents up":                    "likewise",
		"listen to handoff.v1.tester.>":         "it is who answers",
	}),
	"index": joined(inside, map[string]string{
		"read its ledger":           "it is there to read",
		"list its queue":            "it looks at streams",
		"listen to handoff.query.*": "it is who answers",
	}),
	"supervisor": joined(inside, map[string]string{
		"look at its consumer":                  "it makes the queues",
		"read its offer by sequence":            "it makes offers",
		"list its queue":                        "likewise",
		"put an offer into its queue":           "likewise",
		"read its ledger":                       "it decides",
		"write its ledger":                      "likewise",
		"write its ledger in a batch":           "likewise",
		"a trace into the ledger":               "likewise",
		"roll the bodies up":                    "it puts what is returned",
		"forge its health":                      "it counts how attempts end",
		"write its workspace":                   "it grants what a workspace is asked for",
		"read its workspace":                    "likewise",
		"roll the timers up":                    "the timers are its",
		"announce an append":                    "likewise",
		"roll the timers up by an announcement": "likewise",

		"remove an offer by its sequence": "it takes ended offers out of the queues; one that stands is put there again",
		"a timer that forges a wake-up":   "likewise",
	}),
}

// inside is what every role in the account HANDOFF can do: direct an answer at
// whatever the engine listens to there.
var inside = map[string]string{
	"an answer into the ledger":             "answers go where the question says",
	"an answer into its queue":              "likewise",
	"an answer into the timers":             "likewise",
	"an answer into its profile":            "likewise",
	"an answer into the holders":            "likewise",
	"an answer into the bodies":             "likewise",
	"an answer to its inbox or the gateway": "likewise",

	"an answer into the API, to purge":               "that nothing is there is an answer without a body, and that an order to purge",
	"an answer into the API, to delete its consumer": "likewise",
	"an answer into the API, to delete the ledger":   "likewise: who is inside is as trusted as the operator",
}

func joined(all ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, one := range all {
		maps.Copy(out, one)
	}
	return out
}
