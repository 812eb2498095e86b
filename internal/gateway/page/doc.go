// Package page serves people: the fleet, the board, a handoff, an inbox and the agents, as HTML below
// /ui, over the operations of package api.
//
// Each view is rendered on the server from at most three questions to the index, and each act is one
// operation. Links and forms work without the script, which only keeps a view fresh, and adds keys.
// In its colours amber means that a person is needed, red that something failed or is stuck, and one accent
// is for links, buttons and work; all else is grey. Texts of agents are data: escaped, without hidden characters, and never links.
package page
