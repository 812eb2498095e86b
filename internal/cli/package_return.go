package cli

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/protocol"
)

// returnFlags are the flags that say what comes back, and, of a group, to whom it
// goes and when it has succeeded.
type returnFlags struct {
	expected        bool
	timeout         time.Duration
	onTimeout, wait string
	groupFile       string
	aggregate       string
	countFrom       []string
	cancelRest      bool
}

func (f *returnFlags) declare(fs *pflag.FlagSet) {
	fs.BoolVar(&f.expected, "return", false, "deliver the end to the source, as work that it takes in (a delegation and an escalation always do)")
	fieldVar(fs, &f.timeout, "return-timeout", "a result is expected back within this; required for a delegation")
	fs.StringVar(&f.onTimeout, "on-return-timeout", "", "`WHAT` follows the return timeout: "+policyWords("on_return_timeout"))
	fs.StringVar(&f.wait, "await", "", "`WHAT` a parent that hands this off does meanwhile: continue (default), or block until it has ended")
	fs.StringVar(&f.groupFile, "group", "", "hand to a group: a JSON list of members, each with its target and what is different for it, from a `FILE`, or stdin with -")
	fs.StringVar(&f.aggregate, "aggregate", "", "a group has succeeded when `WHO` of it has: all (default), any or majority")
	fs.StringArrayVar(&f.countFrom, "count-from", nil, "the `AGENT` of a group whose end counts (repeatable; default: all of them)")
	fs.BoolVar(&f.cancelRest, "cancel-rest", false, "cancel the other members once the group's outcome is certain")
}

// apply sets what comes back, and the members of a group.
func (f *returnFlags) apply(pkg *protocol.Package, changed func(string) bool, a *app) error {
	if f.groupFile != "" {
		part, err := a.readPart(f.groupFile, `{"members":`, `}`)
		if err != nil {
			return err
		}
		pkg.Members = part.Members
	}
	var own protocol.ReturnProtocol
	if pkg.Return != nil {
		own = *pkg.Return
	}
	given := false
	set := func(flag string, expects bool, do func()) {
		if changed(flag) {
			do()
			given = true
			own.Expected = own.Expected || expects
		}
	}
	set("return-timeout", true, func() { own.TimeoutMS = f.timeout.Milliseconds() })
	set("on-return-timeout", true, func() { own.OnTimeout = protocol.OnTimeout(f.onTimeout) })
	set("await", true, func() { own.Wait = f.wait })
	set("aggregate", false, func() { own.Aggregation = protocol.Aggregation(f.aggregate) })
	set("count-from", false, func() { own.From = f.countFrom })
	set("cancel-rest", false, func() { own.CancelRest = f.cancelRest })
	set("return", false, func() { own.Expected = f.expected })
	if !given {
		return nil
	}
	if own.TimeoutMS == 0 && changed("return-timeout") { // 0 is absent on the wire, and is not what the flag means
		return protocol.Errorf(protocol.CodeInvalid, "return.timeout_ms", "is 0; leave --return-timeout out for none")
	}
	pkg.Return = &own
	return nil
}
