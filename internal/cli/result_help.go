package cli

// resultHelp is what result --help teaches.
const resultHelp = `Result prints the body of the result: text as it is, JSON indented. With -o json it
prints the whole result: status, body, summary, artifacts, variables.

Of a handoff whose last output was a malformed result it prints that output, as it came,
and the exit code is 5; -o json has in "malformed" what is wrong with it. A warning says
what of an output did not go into the result.

Of a group it prints the members' results, in the order of the recipients, each
under a heading; with -o json a list of agent, ticket, closed, status and result.

--late prints what came too late: results of workers that had lost their lease by
then, oldest first, with -o json as a list. They change nothing, unless the
handoff's policy says late_result=use and no attempt is left.

--return prints the return: the end of a closed handoff as its source gets it,
with status, result, changed variables, artifacts, tokens, notes, why it was rolled
back and by whom, the digest of the package, and the trail of who refused, asked and
failed. It is always JSON. With --package what had been handed off goes with it.

` + chainHelp + `

` + gatewayHelp + `

Exit codes: 0 there is a result; 4 the handoff is still open, or nothing came late
so far; 5 it closed without success and has none (a group: it has members' results,
and yet no success); 3 no such ticket.`
